"""toolchain.toml: values for the options, from a file."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from toolchain.errors import ConfigError


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
    drop_binary: list[str] | None = Field(None, alias="drop-binary")
    python: str | None = None
    only: str | None = None
    jobs: int | None = None
    offline: bool | None = None
    locked: bool | None = None
    lock_file: str | None = Field(None, alias="lock-file")
    compression: str | None = None
    mirror: list[str] | None = None
    dest: str | None = None
    key: str | None = None
    source_repo: list[str] | None = Field(None, alias="source-repo")
    reuse_from: str | None = Field(None, alias="reuse-from")
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
    except (tomllib.TOMLDecodeError, UnicodeDecodeError, RecursionError) as error:
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
