"""Keys on this machine: made, read, used to sign and to check. Ed25519, or ECDSA on P-256."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec, ed25519

from toolchain.digest import sha256_bytes, write_atomically
from toolchain.errors import ConfigError

PASSPHRASE = "TOOLCHAIN_KEY_PASSPHRASE"  # noqa: S105 - the name of a variable
_PRIVATE = (ed25519.Ed25519PrivateKey, ec.EllipticCurvePrivateKey)
_PUBLIC = (ed25519.Ed25519PublicKey, ec.EllipticCurvePublicKey)


@dataclass(frozen=True)
class PublicKey:
    """What a signature is checked with; `id` is the SHA-256 of its SubjectPublicKeyInfo."""

    key: ed25519.Ed25519PublicKey | ec.EllipticCurvePublicKey

    @property
    def id(self) -> str:
        """`sha256:<hex>`: the same as `openssl pkey -pubin -outform DER | sha256sum` gives."""
        spki = self.key.public_bytes(serialization.Encoding.DER, serialization.PublicFormat.SubjectPublicKeyInfo)
        return sha256_bytes(spki)

    def verifies(self, signature: bytes, content: bytes) -> bool:
        """Whether `signature` over `content` is by this key."""
        try:
            if isinstance(self.key, ed25519.Ed25519PublicKey):
                self.key.verify(signature, content)
            else:
                self.key.verify(signature, content, ec.ECDSA(hashes.SHA256()))
        except InvalidSignature:
            return False
        return True

    def pem(self) -> bytes:
        """As it stands in a file."""
        return self.key.public_bytes(serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo)


@dataclass(frozen=True, repr=False)
class Signer:
    """A private key. It is never shown, not even in a traceback.

    Args:
        bundles: whether what it signs for others also goes out as Sigstore bundles.
    """

    key: ed25519.Ed25519PrivateKey | ec.EllipticCurvePrivateKey
    bundles: bool = False

    @property
    def public(self) -> PublicKey:
        """Its other half."""
        return PublicKey(self.key.public_key())

    @property
    def repeats(self) -> bool:
        """Whether the same content gets the same signature each time."""
        return self.sign(b"") == self.sign(b"")

    def sign(self, content: bytes) -> bytes:
        """A signature over `content`; the same one each time where the library can do that."""
        if isinstance(self.key, ed25519.Ed25519PrivateKey):
            return self.key.sign(content)
        try:
            return self.key.sign(content, ec.ECDSA(hashes.SHA256(), deterministic_signing=True))
        except UnsupportedAlgorithm:  # OpenSSL before 3.2: another signature each time, each of them good
            return self.key.sign(content, ec.ECDSA(hashes.SHA256()))


def new_key(path: Path) -> PublicKey:
    """Make an Ed25519 key: the private half at `path` (mode 0600), the public one beside it as `<path>.pub`.

    With the variable TOOLCHAIN_KEY_PASSPHRASE the private half is encrypted with it.

    Raises:
        ConfigError: one of the two files is there already, or cannot be written.
    """
    other = path.with_name(f"{path.name}.pub")
    for file in (path, other):
        if file.exists() or file.is_symlink():
            raise ConfigError(f"{file} is there already", why="a key is never written over", fix="name another file")
    signer = Signer(ed25519.Ed25519PrivateKey.generate())
    secret = _passphrase()
    how = serialization.BestAvailableEncryption(secret) if secret else serialization.NoEncryption()
    content = signer.key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, how)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        # Never readable by others, not even for a moment.
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        with os.fdopen(descriptor, "wb") as stream:
            stream.write(content)
        write_atomically(other, signer.public.pem())
    except OSError as error:
        raise ConfigError(f"cannot write {path}", why=str(error.strerror), fix="name another file") from error
    return signer.public


def _passphrase() -> bytes | None:
    said = os.environ.get(PASSPHRASE)
    return said.encode() if said else None


def _content(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise ConfigError(f"cannot read the key {path}", why=str(error.strerror), fix="check --key") from error


def _p256(key: object) -> bool:
    return not isinstance(key, ec.EllipticCurvePrivateKey | ec.EllipticCurvePublicKey) or isinstance(
        key.curve, ec.SECP256R1
    )


def load_signer(path: Path) -> Signer:
    """A private key in PEM (PKCS#8 or SEC1); encrypted ones need TOOLCHAIN_KEY_PASSPHRASE.

    Raises:
        ConfigError: unreadable, not a private key, of another kind, or the passphrase is missing or wrong.
    """
    try:
        key = serialization.load_pem_private_key(_content(path), _passphrase_for(path))
    except (ValueError, TypeError, UnsupportedAlgorithm) as error:
        raise ConfigError(
            f"{path} is not a private key that can be used",
            why="not PEM, or its passphrase is missing or wrong",
            fix=f"toolchain keygen FILE makes one; the passphrase goes into {PASSPHRASE}",
        ) from error
    if not isinstance(key, _PRIVATE) or not _p256(key):
        raise ConfigError(f"{path} is a key of another kind", why="Ed25519 and ECDSA on P-256 are known")
    return Signer(key)


def _passphrase_for(path: Path) -> bytes | None:
    # A passphrase for a key that has none is refused by the library; the variable may be meant for another key.
    return _passphrase() if b"ENCRYPTED" in _content(path) else None


def load_public(path: Path) -> PublicKey:
    """A public key in PEM; of a private one its public half.

    Raises:
        ConfigError: unreadable, not a key, or of another kind.
    """
    content = _content(path)
    if b"PRIVATE KEY" in content:
        return load_signer(path).public
    try:
        key = serialization.load_pem_public_key(content)
    except (ValueError, UnsupportedAlgorithm) as error:
        raise ConfigError(
            f"{path} is not a public key", why="not PEM", fix="toolchain keygen FILE makes one"
        ) from error
    if not isinstance(key, _PUBLIC) or not _p256(key):
        raise ConfigError(f"{path} is a key of another kind", why="Ed25519 and ECDSA on P-256 are known")
    return PublicKey(key)
