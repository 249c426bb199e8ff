"""The kernel stores that the user names, opened."""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from toolchain.core.cache import Cache
from toolchain.core.errors import ConfigError
from toolchain.core.locks import kept
from toolchain.kernels.oci_store import OciStore
from toolchain.kernels.result_name import Naming
from toolchain.kernels.result_store import FolderStore, KernelStore
from toolchain.kernels.shared import SharedResults
from toolchain.oci.places import open_place
from toolchain.oci.reference import parse
from toolchain.request.model import Request
from toolchain.request.option_values import is_store_folder

if TYPE_CHECKING:
    from toolchain.trust.keys import PublicKey, Signer

# What is signed is named, so that no other statement by the same key can be taken for one.
STATEMENT = "application/vnd.toolchain.kernel-result.v1+json"


@dataclass(frozen=True)
class ResultKey:
    """The user's key, for results of kernels.

    Args:
        signer: None if the file holds the public half alone.
    """

    public: PublicKey
    signer: Signer | None

    @property
    def id(self) -> str:
        """Of the public half."""
        return self.public.id

    def sign(self, statement: bytes) -> bytes | None:
        """Sign a statement; None without the private half."""
        from toolchain.trust.dsse import pae  # noqa: PLC0415

        return self.signer.sign(pae(STATEMENT, statement)) if self.signer is not None else None

    def verifies(self, signature: bytes, statement: bytes) -> bool:
        """Return whether this key signed a statement."""
        from toolchain.trust.dsse import pae  # noqa: PLC0415

        return self.public.verifies(signature, pae(STATEMENT, statement))


def result_key(path: Path | None) -> ResultKey | None:
    """The key in a file: a private one signs and is trusted, a public one is trusted."""
    if path is None:
        return None
    from toolchain.trust.keys import load_public, load_signer  # noqa: PLC0415 - cryptography

    public = load_public(path)
    try:
        return ResultKey(public, load_signer(path))
    except ConfigError:
        return ResultKey(public, None)


@contextlib.contextmanager
def shared_results(
    request: Request, naming: Naming, *, about: Mapping[str, Any] | None = None
) -> Iterator[SharedResults | None]:
    """The stores of a request, until the end of the `with`; None if it names none.

    Raises:
        ConfigError: one of them is invalid, or a registry although nothing may reach out.
    """
    places = request.shards or ((request.kernel_store,) if request.kernel_store else ())
    if not places:
        yield None
        return
    with contextlib.ExitStack() as stack:
        stores = [stack.enter_context(open_store(place, request.cache, offline=request.offline)) for place in places]
        yield SharedResults(stores, naming, key=result_key(request.kernel_key), only=bool(request.shards), about=about)


def check_folders(request: Request) -> None:
    """Refuse folders that cannot be kernel stores, and those of shards that hold none; asks no registry."""
    for place in request.shards or ((request.kernel_store,) if request.kernel_store else ()):
        if is_store_folder(place) and not FolderStore(Path(place)).made and request.shards:
            raise ConfigError(
                f"there is no kernel store at {place}",
                why="a shard makes one there with its first result",
                fix="name the folder that was the shard's --kernel-store",
            )


@contextlib.contextmanager
def open_store(place: str, cache: Cache, *, offline: bool = False) -> Iterator[KernelStore]:
    """A store, until the end of the `with`.

    Args:
        place: see `option_values.kernel_store`.

    Raises:
        ConfigError: it is invalid, or a registry although nothing may reach out.
    """
    if is_store_folder(place):
        yield FolderStore(Path(place))
        return
    ref = parse(place)
    if offline and ref.remote:
        raise ConfigError("--offline forbids asking a registry", fix="use a folder or oci:DIR as --kernel-store")
    cache.work.mkdir(parents=True, exist_ok=True)
    with (
        tempfile.TemporaryDirectory(dir=cache.work, prefix="kernel-store-") as scratch,
        kept(Path(scratch)),
        open_place(ref) as opened,
    ):
        yield OciStore(opened, Path(scratch))
