"""Create and read keys, and sign and verify with them; the algorithms are Ed25519 and ECDSA on P-256."""

from __future__ import annotations

import errno
import os
import re
import shlex
from dataclasses import dataclass
from pathlib import Path

from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec, ed25519

from toolchain.core.digest import sha256_bytes, write_atomically
from toolchain.core.errors import ConfigError
from toolchain.core.filesystem import NewFile

PASSPHRASE = "TOOLCHAIN_KEY_PASSPHRASE"  # noqa: S105 - it is the name of an environment variable
_PRIVATE = (ed25519.Ed25519PrivateKey, ec.EllipticCurvePrivateKey)
_PUBLIC = (ed25519.Ed25519PublicKey, ec.EllipticCurvePublicKey)
_LONGEST_PASSPHRASE = 1023  # bytes; OpenSSL's maximum
_LARGEST = 1 << 20  # bytes; the rest of a larger key file is not read
_LABEL = re.compile(rb"-----BEGIN ([A-Z0-9 ]{1,40})-----")
# `cryptography` cannot decrypt private keys with these labels, because cosign encrypts them with scrypt and secretbox.
_OF_COSIGN = (b"ENCRYPTED SIGSTORE PRIVATE KEY", b"ENCRYPTED COSIGN PRIVATE KEY")


@dataclass(frozen=True)
class PublicKey:
    """A public key for Ed25519 or ECDSA on P-256."""

    key: ed25519.Ed25519PublicKey | ec.EllipticCurvePublicKey

    @property
    def id(self) -> str:
        """The digest (`sha256:<hex>`) of the key's SubjectPublicKeyInfo.

        `openssl pkey -pubin -outform DER | sha256sum` prints the same digits.
        """
        spki = self.key.public_bytes(serialization.Encoding.DER, serialization.PublicFormat.SubjectPublicKeyInfo)
        return sha256_bytes(spki)

    def verifies(self, signature: bytes, content: bytes) -> bool:
        try:
            if isinstance(self.key, ed25519.Ed25519PublicKey):
                self.key.verify(signature, content)
            else:
                self.key.verify(signature, content, ec.ECDSA(hashes.SHA256()))
        except InvalidSignature:
            return False
        return True

    def pem(self) -> bytes:
        return self.key.public_bytes(serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo)


@dataclass(frozen=True, repr=False)
class Signer:
    """A private key, which `repr` does not show.

    Args:
        bundles: whether `publish` also attaches Sigstore bundles with the signed statements.
    """

    key: ed25519.Ed25519PrivateKey | ec.EllipticCurvePrivateKey
    bundles: bool = False

    @property
    def public(self) -> PublicKey:
        return PublicKey(self.key.public_key())

    def sign(self, content: bytes) -> bytes:
        """Return a signature over `content`.

        Signing the same content again gives the same bytes, except for a P-256 key with an OpenSSL version before 3.2.
        """
        if isinstance(self.key, ed25519.Ed25519PrivateKey):
            return self.key.sign(content)
        try:
            return self.key.sign(content, ec.ECDSA(hashes.SHA256(), deterministic_signing=True))
        except UnsupportedAlgorithm:
            return self.key.sign(content, ec.ECDSA(hashes.SHA256()))


def new_key(path: Path) -> PublicKey:
    """Create a pair of Ed25519 keys, write them to two new files, and return the public key.

    The private key is written to `path` with the mode 0600, and the public key to `<path>.pub`. If
    TOOLCHAIN_KEY_PASSPHRASE is set, the private key is encrypted with it. ConfigError is raised if one of the files
    exists or cannot be written, or if the passphrase is too long, and DigestError if another process changes a file.
    """
    if not path.name:
        raise ConfigError(
            "not-a-file-name", f"{path} is not the name of a file", fix="e.g. toolchain keygen release-key"
        )
    if not path.parent.is_dir():
        fix = f"make it, readable only by you: mkdir -m 700 -p {shlex.quote(str(path.parent))}"
        raise ConfigError(
            "output-unwritable", f"cannot write {path}", why=f"the folder {path.parent} does not exist", fix=fix
        )
    public = path.with_name(f"{path.name}.pub")
    for file in (path, public):
        if file.exists() or file.is_symlink():
            raise ConfigError(
                "key-exists", f"{file} already exists", why="keys are never overwritten", fix="name another file"
            )
    signer = Signer(ed25519.Ed25519PrivateKey.generate())
    secret = _passphrase()
    how = serialization.BestAvailableEncryption(secret) if secret else serialization.NoEncryption()
    content = signer.key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, how)
    begun: Path | None = None
    try:
        with NewFile(path, mode=0o600) as new:
            new.stream.write(content)
            begun = path
            if not new.finish(sha256_bytes(content), replace=False):
                begun = None
                raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), str(path))
        write_atomically(public, signer.public.pem(), check=True)
        begun = None
    except OSError as error:
        raise ConfigError(
            "output-unwritable", f"cannot write {path}", why=str(error.strerror), fix="name another file"
        ) from error
    finally:
        if begun is not None:
            begun.unlink(missing_ok=True)  # the private key is not kept without its public key
    return signer.public


def _passphrase() -> bytes | None:
    passphrase = os.environb.get(PASSPHRASE.encode(), b"")
    if len(passphrase) > _LONGEST_PASSPHRASE:
        raise ConfigError(
            "passphrase-too-long",
            f"the passphrase in {PASSPHRASE} has {len(passphrase):,} bytes",
            why=f"a passphrase may have at most {_LONGEST_PASSPHRASE:,} bytes",
            fix="set a shorter passphrase",
        )
    return passphrase or None


def _content(path: Path) -> bytes:
    """Read a key file only once, because it may be a pipe; raise ConfigError if it cannot be read or is empty."""
    try:
        with path.open("rb") as stream:
            content = stream.read(_LARGEST)
    except OSError as error:
        raise ConfigError(
            "key-unreadable", f"cannot read the key {path}", why=str(error.strerror), fix="check the path"
        ) from error
    if not content.strip():
        raise ConfigError(
            "key-empty",
            f"the key {path} is empty",
            why="nothing was written to it, or it is a pipe that was already read",
            fix="name another file; toolchain keygen FILE makes a key",
        )
    return content


def _p256(key: object) -> bool:
    return not isinstance(key, ec.EllipticCurvePrivateKey | ec.EllipticCurvePublicKey) or isinstance(
        key.curve, ec.SECP256R1
    )


def _other_kind(path: Path) -> ConfigError:
    return ConfigError(
        "key-kind",
        f"the kind of the key {path} is not supported",
        why="only Ed25519 and ECDSA on P-256 are supported",
        fix="toolchain keygen FILE makes a key; to verify an image, ask its publisher for a key of one of these kinds",
    )


def load_signer(path: Path) -> Signer:
    """Read a private key from a PEM file (PKCS#8 or SEC1); raise ConfigError if the key cannot be used.

    An encrypted key is decrypted with the passphrase in TOOLCHAIN_KEY_PASSPHRASE.
    """
    return _signer(_content(path), path)


def _signer(content: bytes, path: Path) -> Signer:
    match = _LABEL.search(content)
    label = match[1] if match else b""
    if label == b"PUBLIC KEY":
        raise ConfigError(
            "not-a-private-key",
            f"{path} is not a private key",
            why="it is a public key, which can only verify",
            fix="name the private key; keygen writes it to FILE, and the public key to FILE.pub",
        )
    if label in _OF_COSIGN:
        raise ConfigError(
            "not-a-private-key",
            f"{path} is not a private key that can be used",
            why="it is encrypted in cosign's own format, which this tool cannot read",
            fix="make a key with toolchain keygen FILE; `cosign import-key-pair --key FILE` imports it. "
            "To verify, name the public key, cosign.pub",
        )
    # `cryptography` refuses a passphrase for an unencrypted key. The environment
    # variable may be set for another key, so it is only used for an encrypted one.
    encrypted = b"ENCRYPTED" in content
    secret = _passphrase() if encrypted else None
    try:
        key = serialization.load_pem_private_key(content, secret)
    except (ValueError, TypeError, UnsupportedAlgorithm) as error:
        why, fix = "it is not a PEM file with a PKCS#8 or SEC1 key", "toolchain keygen FILE makes a key"
        if label and not encrypted:
            why += f"; it contains: {label.decode()}"
        if encrypted:
            why = (
                "it is encrypted, and the passphrase is missing"
                if secret is None
                else "the passphrase does not decrypt it"
            )
            fix = f"put its passphrase into the environment variable {PASSPHRASE}"
        raise ConfigError(
            "not-a-private-key", f"{path} is not a private key that can be used", why=why, fix=fix
        ) from error
    if not isinstance(key, _PRIVATE) or not _p256(key):
        raise _other_kind(path)
    return Signer(key)


def load_public(path: Path) -> PublicKey:
    """Read a public key from a PEM file; raise ConfigError if the key cannot be used.

    If the file contains a private key, its public key is returned.
    """
    content = _content(path)
    if b"PRIVATE KEY" in content:
        return _signer(content, path).public
    try:
        key = serialization.load_pem_public_key(content)
    except (ValueError, UnsupportedAlgorithm) as error:
        raise ConfigError(
            "not-a-public-key",
            f"{path} is not a public key",
            why="it is not a PEM file with a public key",
            fix="toolchain keygen FILE makes a pair of keys",
        ) from error
    if not isinstance(key, _PUBLIC) or not _p256(key):
        raise _other_kind(path)
    return PublicKey(key)
