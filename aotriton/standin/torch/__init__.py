"""A substitute for torch that lets kernel modules import torch; it computes nothing.

Kernel modules for PyTorch import torch for their host code. Compiling their Triton functions does not run the host
code, so the image does not need torch. Each attribute that this module does not define is an inert object, unless its
name begins and ends with two underscores. Every name `torch.…` can be imported, as a module with such attributes.
"""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import sys
import types
from typing import Any


class _Anything:
    """An inert object. Its attributes, its items and the results of most calls are inert objects too."""

    _name: str

    def __init__(self, name: str = "torch") -> None:
        self.__dict__["_name"] = name

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") and name.endswith("__"):
            raise AttributeError(name)
        return _Anything(self._name + "." + name)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        # A call with only a function or a class may be a decoration, so it returns its argument.
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
    __path__: list[str] = []  # noqa: RUF012 - the import system requires it of a package

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") and name.endswith("__"):
            raise AttributeError(name)
        return _Anything(self.__name__ + "." + name)


class _Finder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    def find_spec(self, fullname: str, path: Any = None, target: Any = None) -> Any:  # noqa: ARG002
        if fullname.startswith("torch."):
            return importlib.machinery.ModuleSpec(fullname, self, is_package=True)
        return None

    def create_module(self, spec: Any) -> types.ModuleType:
        return _Module(spec.name)

    def exec_module(self, module: types.ModuleType) -> None:
        """Do nothing, because the module has no code."""


__version__ = "0+standin"
sys.modules[__name__].__class__ = _Module
if not any(isinstance(finder, _Finder) for finder in sys.meta_path):
    sys.meta_path.append(_Finder())
