"""A stand-in for torch that only satisfies `import torch`; it computes nothing.

Kernel modules written for PyTorch import torch beside their Triton functions, for the host code around them. Compiling
the Triton functions needs none of that host code, so a 900 MB package need not be in the image. This module answers
every attribute and every `import torch.…` with an inert object. It is in a folder of its own, which the kernel worker
alone puts on the module path, and nothing made from it reaches a code object.
"""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import sys
import types
from typing import Any


class _Anything:
    """Answers every attribute, call, item and operator with something equally inert."""

    _name: str

    def __init__(self, name: str = "torch") -> None:
        self.__dict__["_name"] = name

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") and name.endswith("__"):
            raise AttributeError(name)
        return _Anything(self._name + "." + name)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        # A decorator written for torch must hand its function through.
        if len(args) == 1 and not kwargs and isinstance(args[0], (types.FunctionType, type)):
            return args[0]
        return _Anything(self._name + "()")

    def __getitem__(self, key: Any) -> Any:
        return _Anything(self._name + "[]")

    def __iter__(self) -> Any:
        return iter(())

    def __bool__(self) -> bool:
        return False

    def __int__(self) -> int:
        return 0

    def __float__(self) -> float:
        return 0.0

    def __mro_entries__(self, bases: Any) -> tuple[type, ...]:
        return (object,)

    def __or__(self, other: Any) -> Any:
        return self

    __ror__ = __or__

    def __repr__(self) -> str:
        return "<stand-in for " + self._name + ">"


class _Module(types.ModuleType):
    __path__: list[str] = []  # noqa: RUF012 - what the import system wants of a package

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") and name.endswith("__"):
            raise AttributeError(name)
        return _Anything(self.__name__ + "." + name)


class _Finder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Makes `import torch.nn.functional` and the like work, whatever follows the first dot."""

    def find_spec(self, fullname: str, path: Any = None, target: Any = None) -> Any:  # noqa: ARG002
        if fullname.startswith("torch."):
            return importlib.machinery.ModuleSpec(fullname, self, is_package=True)
        return None

    def create_module(self, spec: Any) -> types.ModuleType:
        return _Module(spec.name)

    def exec_module(self, module: types.ModuleType) -> None:
        """Nothing to run."""


__version__ = "0+standin"
sys.modules[__name__].__class__ = _Module
if not any(isinstance(finder, _Finder) for finder in sys.meta_path):
    sys.meta_path.append(_Finder())
