"""Open the kernel stores of a request, and load the key for their results."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from toolchain.core.errors import ConfigError
from toolchain.kernels.result_name import Naming
from toolchain.kernels.result_store import KernelStore
from toolchain.kernels.shared import SharedResults
from toolchain.request.model import Request

if TYPE_CHECKING:
    from toolchain.trust.keys import PublicKey, Signer

# Signatures cover this type, so that a statement of another type with a signature by the same key is not accepted as a
# kernel result.
STATEMENT = "application/vnd.toolchain.kernel-result.v1+json"


@dataclass(frozen=True)
class ResultKey:
    """The user's key for kernel results.

    Args:
        public: the public half, which verifies signatures.
        signer: the private half, which makes signatures; None if the key file contains only the public half.
    """

    public: PublicKey
    signer: Signer | None

    @property
    def id(self) -> str:
        return self.public.id

    @property
    def can_sign(self) -> bool:
        return self.signer is not None

    def sign(self, statement: bytes) -> bytes | None:
        """Return a signature over a statement; None if the private half is missing."""
        from toolchain.trust.dsse import pae  # noqa: PLC0415

        return self.signer.sign(pae(STATEMENT, statement)) if self.signer is not None else None

    def verifies(self, signature: bytes, statement: bytes) -> bool:
        """Return whether `signature` was made by this key over this statement."""
        from toolchain.trust.dsse import pae  # noqa: PLC0415

        return self.public.verifies(signature, pae(STATEMENT, statement))


def result_key(path: Path | None) -> ResultKey | None:
    """Return the key in a file; None if `path` is None.

    If the file contains only a public key, results are verified but not signed. ConfigError is raised if the file
    contains no usable key.
    """
    if path is None:
        return None
    from toolchain.trust.keys import load_public, load_signer  # noqa: PLC0415 - `trust.keys` imports cryptography

    public = load_public(path)
    try:
        return ResultKey(public, load_signer(path))
    except ConfigError:
        return ResultKey(public, None)


def shared_results(request: Request, naming: Naming) -> SharedResults | None:
    """Return access to the kernel stores of a request; None if the request names no store.

    Raise ConfigError if a named folder cannot be a kernel store, or if the key file contains no usable key.
    """
    places = request.shards or ((request.kernel_store,) if request.kernel_store else ())
    if not places:
        return None
    stores = [KernelStore(place) for place in places]
    return SharedResults(stores, naming, key=result_key(request.kernel_key), only=bool(request.shards))


def check_stores(request: Request) -> None:
    """Raise ConfigError if a named folder cannot be a kernel store, or if a shard's folder does not contain one."""
    if request.kernel_store is not None:
        KernelStore(request.kernel_store)
    for place in request.shards:
        if not KernelStore(place).exists:
            raise ConfigError(
                "kernel-store-missing",
                f"there is no kernel store at {place}",
                why="a campaign creates its kernel store with the first result",
                fix="name the folder that was the shard's --kernel-store",
            )
