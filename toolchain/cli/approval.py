"""Which values of a toolchain.toml are used: harmless ones always, all others once the user has approved the file.

A file in the current folder may be someone else's, as after `git clone`. A file that the user names with `--config`
or TOOLCHAIN_CONFIG needs no approval.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from toolchain.core.digest import write_atomically
from toolchain.core.errors import ConfigError

# Options that decide what is built and how much of the machine it uses; `plan` shows all of it. Every other option is
# ignored in a file without approval: whose code, keys and signatures are accepted, where images and results come from
# and go to, what runs containers, and which folders are written to.
HARMLESS = frozenset({
    "aotriton", "arch", "base", "calls", "check", "compression", "drop-binary", "fresh", "glibc", "gpu", "jobs",
    "keep-going", "kernel-memory", "kernel-timeout", "limit", "lock-file", "locked", "offline", "only", "patch",
    "python", "rocm", "select", "source", "source-repo", "stage", "triton", "wheel", "without",
})  # fmt: skip
# Keys whose content decides whom a build trusts. They often are next to the file, and are approved with it.
_KEYS = ("key", "public-key", "kernel-key")
_MOST = 1 << 16  # bytes of a key's file


def harmless(name: str, value: Any) -> bool:
    """Whether an option with this value may come from a file without approval.

    A base is harmless if it is a recipe's name; a local image is unverified code. A lock file is harmless in the
    current folder or below: `bundle import` writes a missing one.
    """
    if name == "lock-file":
        return "\0" not in value and Path(os.path.realpath(value)).is_relative_to(os.path.realpath("."))
    return name in HARMLESS and not (name == "base" and str(value).startswith("oci:"))


def by_option(values: Mapping[str, Any]) -> dict[str, Any]:
    """Values by the options' names instead of by parameter."""
    return {parameter.replace("_", "-"): value for parameter, value in values.items()}


@dataclass(frozen=True)
class Settings:
    """A toolchain.toml that was read.

    Args:
        path: as it was named or found.
        values: those that are used, by parameter.
        trusting: the names of those among them that are not harmless, with their values.
        ignored: names of options that are not used because the file was not approved.
    """

    path: Path
    values: Mapping[str, Any]
    trusting: Mapping[str, Any] = field(default_factory=dict)
    ignored: tuple[str, ...] = ()

    @property
    def ignored_line(self) -> str:
        """The warning about ignored options; empty if there are none."""
        if not self.ignored:
            return ""
        return f"ignored in {self.path}, which is not approved (`toolchain trust`): {', '.join(self.ignored)}"


def settings(path: Path, *, named: bool) -> Settings:
    """The values of a toolchain.toml that are used.

    Args:
        named: whether the user named the file.

    Raises:
        ConfigError: as `config_file.read_values`.
    """
    from toolchain.cli.config_file import read_content, read_values  # noqa: PLC0415 - most calls have no file

    content = read_content(path)
    values = read_values(path, content)
    by_name = by_option(values)
    trusting = {name: value for name, value in by_name.items() if not harmless(name, value)}
    if not trusting or named or is_approved(path, content, by_name):
        return Settings(path, values, trusting)
    used = {name: value for name, value in values.items() if name.replace("_", "-") not in trusting}
    return Settings(path, used, ignored=tuple(trusting))


# The user's approvals: one small file for each, outside of the folders that they are about.


def _folder() -> Path:
    home = os.environ.get("XDG_STATE_HOME", "")
    # The XDG base directory specification says to ignore a relative path.
    state = Path(home) if home.startswith("/") else Path("~/.local/state").expanduser()
    return state / "toolchain" / "trusted"


def _real(path: Path) -> bytes:
    """The file's path with its folder resolved but not the file: relative paths in a symlinked file use its folder."""
    return os.fsencode(Path(os.path.realpath(path.parent)) / path.name)


def _name(path: Path, content: bytes, by_name: Mapping[str, Any]) -> str:
    """The name under which an approval is remembered: the file's path, then its bytes and those of its keys."""
    hasher = hashlib.sha256()
    for part in (content, *(_key_bytes(by_name[name]) for name in _KEYS if name in by_name)):
        hasher.update(hashlib.sha256(part).digest())
    return f"{hashlib.sha256(_real(path)).hexdigest()}-{hasher.hexdigest()}"


def _key_bytes(path: Any) -> bytes:
    try:
        at = Path(path).expanduser()
        return at.read_bytes() if at.is_file() and at.stat().st_size <= _MOST else b""
    except (OSError, RuntimeError, ValueError):
        return b""


def is_approved(path: Path, content: bytes, by_name: Mapping[str, Any]) -> bool:
    """Whether the user approved this file with this content.

    Args:
        content: of the file.
        by_name: its values by option.
    """
    try:
        return (_folder() / _name(path, content, by_name)).is_file()
    except (OSError, RuntimeError):  # no HOME, or one that cannot be read
        return False


def approve(path: Path, content: bytes, by_name: Mapping[str, Any]) -> None:
    """Remember that the user approves this file as it is.

    Raises:
        ConfigError: the approval cannot be written.
    """
    try:
        write_atomically(_folder() / _name(path, content, by_name), _real(path) + b"\n", mode=0o600)
    except (OSError, RuntimeError) as error:
        raise ConfigError(
            f"the approval of {path} cannot be saved",
            why=str(error),
            fix=f"set XDG_STATE_HOME to a folder of your own, or name the file: toolchain --config {path} VERB",
        ) from error


def revoke(path: Path) -> int:
    """Remove every approval of a file, for any content.

    Returns:
        The number of approvals removed.
    """
    prefix = _name(path, b"", {}).partition("-")[0]
    approvals = list(_folder().glob(f"{prefix}-*"))
    for approval in approvals:
        approval.unlink(missing_ok=True)
    return len(approvals)
