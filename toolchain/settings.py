"""What the user asked for: values from the command line, the environment, the file and the defaults, in that order."""

from __future__ import annotations

import os
import tomllib
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from toolchain.errors import ConfigError

EPOCH = 1767225600  # 2026-01-01T00:00:00Z: the one timestamp of all layers
FORMAT = 1  # raised when the same inputs would make other bytes


@dataclass(frozen=True)
class Cache:
    """The tool's own folder. Everything in it can be deleted; it comes back at the cost of time."""

    root: Path

    @property
    def store(self) -> Path:
        """Sources by digest."""
        return self.root / "store"

    @property
    def images(self) -> Path:
        """The OCI layout of all that was built here."""
        return self.root / "images"

    @property
    def records(self) -> Path:
        """One JSON file for each finished stage, by input digest."""
        return self.root / "records"

    @property
    def engine(self) -> Path:
        """The engine's own storage, apart from the user's."""
        return self.root / "engine"

    @property
    def work(self) -> Path:
        """Unfinished work and cache mounts; TMPDIR of every child."""
        return self.root / "work"

    @property
    def logs(self) -> Path:
        """Full logs."""
        return self.root / "logs"

    @property
    def locks(self) -> Path:
        """Lock files."""
        return self.root / "locks"


def default_cache() -> Path:
    """`TOOLCHAIN_CACHE`, else below the user's cache folder."""
    if named := os.environ.get("TOOLCHAIN_CACHE"):
        return Path(named).absolute()
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "toolchain"


@dataclass(frozen=True, kw_only=True)
class Request:
    """One invocation, resolved. Every verb gets this and nothing else.

    Args:
        base: recipe name (`debian13`) or a local OCI image (`oci:DIR`, `oci:DIR:TAG` or `docker-archive`-like ref).
        arch: OCI architectures, sorted.
        sources: overrides by source name: a path, `URL@SHA` or `distro:PACKAGE`.
        patches: patch files by source name, in order.
        gpus: LLVM names (`gfx942`), sorted.
        jobs: compile jobs, 0 for as many as cores and memory allow.
    """

    cache: Cache
    base: str = "debian13"
    arch: tuple[str, ...] = ("amd64",)
    sources: dict[str, str] = field(default_factory=dict)
    patches: dict[str, tuple[Path, ...]] = field(default_factory=dict)
    triton: str | None = None
    aotriton: str | None = None
    gpus: tuple[str, ...] = ()
    select: str | None = None
    limit: int | None = None
    keep_going: bool = False
    kernel_timeout: float | None = None
    allow_binary: tuple[str, ...] = ()
    only: str = "distribution"
    jobs: int = 0
    offline: bool = False
    compression: str = "gzip"
    contract: bool = True
    json: bool = False


class _FileModel(BaseModel):
    """toolchain.toml: the same names as the options, without the dashes in front."""

    model_config = ConfigDict(extra="forbid", frozen=True, populate_by_name=True)

    base: str | None = None
    arch: str | None = None
    source: list[str] | None = None
    patch: list[str] | None = None
    triton: str | None = None
    aotriton: str | None = None
    gpu: str | None = None
    select: str | None = None
    limit: int | None = None
    keep_going: bool | None = Field(None, alias="keep-going")
    kernel_timeout: float | None = Field(None, alias="kernel-timeout")
    allow_binary: list[str] | None = Field(None, alias="allow-binary")
    jobs: int | None = None
    offline: bool | None = None
    compression: str | None = None
    dest: str | None = None
    cache: str | None = None


def read_file(path: Path) -> dict[str, Any]:
    """Option values from a TOML file, by parameter name.

    Raises:
        ConfigError: not there, not TOML, an unknown key or a value of the wrong type.
    """
    try:
        content = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError(f"cannot read {path}", why=str(error.strerror), fix="check --config") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path} is not TOML", why=str(error)) from error
    try:
        model = _FileModel.model_validate(content)
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(str(part) for part in first["loc"])
        known = ", ".join(sorted(f.alias or name for name, f in _FileModel.model_fields.items()))
        unknown = first["type"] == "extra_forbidden"
        raise ConfigError(
            f"{path}: unknown key {where!r}" if unknown else f"{path}: bad value for {where!r}",
            why=f"known keys: {known}" if unknown else first["msg"],
            fix="correct or remove the key",
        ) from error
    return {name: value for name, value in model.model_dump().items() if value is not None}
