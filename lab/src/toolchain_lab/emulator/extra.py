"""The extra `emulator`: numpy, without which nothing else of this package can be imported."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

from toolchain.core.errors import ConfigError


def require_numpy(user: str = "the emulator") -> Path:
    """The folder that numpy is imported from, and with it all that the tool imports.

    Args:
        user: what needs it, for display.

    Raises:
        ConfigError: numpy is not installed.
    """
    spec = find_spec("numpy")
    if spec is None or spec.origin is None:
        # Not by the name of the project, which another one has on the Python index.
        raise ConfigError(f"{user} needs numpy", fix="pip install './lab[emulator]' in a checkout of the tool")
    return Path(spec.origin).resolve().parents[1]
