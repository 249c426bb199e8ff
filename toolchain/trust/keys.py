"""Keys on this machine: made, read, used to sign and to check. Ed25519, or ECDSA on P-256."""

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

PASSPHRASE = "TOOLCHAIN_KEY_PASSPHRASE"  # noqa: S105 - the name of a variable
_PRIVATE = (ed25519.Ed25519PrivateKey, ec.EllipticCurvePrivateKey)
_PUBLIC = (ed25519.Ed25519PublicKey, ec.EllipticCurvePublicKey)
_LONGEST_PASSPHRASE = 1023  # bytes; what OpenSSL takes
_LARGEST = 1 << 20  # bytes of a key's file
_LABEL = re.compile(rb"-----BEGIN ([A-Z0-9 ]{1,40})-----")
# cosign's keys hold JSON with scrypt and secretbox, for which the library here has no cipher.
_OF_COSIGN = (b"ENCRYPTED SIGSTORE PRIVATE KEY", b"ENCRYPTED COSIGN PRIVATE KEY")


@dataclass(frozen=True)
class PublicKey:
    """A public key, which checks signatures; `id` is the SHA-256 of its SubjectPublicKeyInfo."""

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
        """The key in PEM form."""
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
    """
    if not path.name:
        raise ConfigError("not-a-file-name", f"{path} is not a name of a file", fix="e.g. toolchain keygen release-key")
    if not path.parent.is_dir():
        fix = f"make it, for you alone: mkdir -m 700 -p {shlex.quote(str(path.parent))}"
        raise ConfigError("output-unwritable", f"cannot write {path}", why=f"there is no folder {path.parent}", fix=fix)
    public = path.with_name(f"{path.name}.pub")
    for file in (path, public):
        if file.exists() or file.is_symlink():
            raise ConfigError(
                "key-exists", f"{file} is there already", why="a key is never written over", fix="name another file"
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
            begun.unlink(missing_ok=True)  # half of a pair is useless, also after an interrupt
    return signer.public


def _passphrase() -> bytes | None:
    passphrase = os.environb.get(PASSPHRASE.encode(), b"")
    if len(passphrase) > _LONGEST_PASSPHRASE:
        raise ConfigError(
            "passphrase-too-long",
            f"the passphrase in {PASSPHRASE} has {len(passphrase):,} bytes",
            why=f"a key is encrypted with at most {_LONGEST_PASSPHRASE:,}",
            fix="set a shorter one",
        )
    return passphrase or None


def _content(path: Path) -> bytes:
    """The content of a key's file. It is read once: it may be a pipe."""
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
            why="nothing was written there; a pipe also gives what it holds once only",
            fix="name another file; toolchain keygen FILE makes a key",
        )
    return content


def _p256(key: object) -> bool:
    return not isinstance(key, ec.EllipticCurvePrivateKey | ec.EllipticCurvePublicKey) or isinstance(
        key.curve, ec.SECP256R1
    )


def load_signer(path: Path) -> Signer:
    """A private key in PEM (PKCS#8 or SEC1), also from a pipe; encrypted ones need TOOLCHAIN_KEY_PASSPHRASE."""
    return _signer(_content(path), path)


def _signer(content: bytes, path: Path) -> Signer:
    match = _LABEL.search(content)
    label = match[1] if match else b""
    if label == b"PUBLIC KEY":
        raise ConfigError(
            "not-a-private-key",
            f"{path} is not a private key",
            why="it is a public key, which can only verify",
            fix="name the private half; keygen writes it beside FILE.pub as FILE",
        )
    if label in _OF_COSIGN:
        raise ConfigError(
            "not-a-private-key",
            f"{path} is not a private key that can be used",
            why="it is encrypted in cosign's own way, which is not read here",
            fix="make one with toolchain keygen FILE; `cosign import-key-pair --key FILE` gives it to cosign. "
            "To verify, name the public half, cosign.pub",
        )
    # A passphrase for a key that has none is refused by the library; the variable may be meant for another key.
    encrypted = b"ENCRYPTED" in content
    secret = _passphrase() if encrypted else None
    try:
        key = serialization.load_pem_private_key(content, secret)
    except (ValueError, TypeError, UnsupportedAlgorithm) as error:
        why, fix = "no PEM of PKCS#8 or SEC1", "toolchain keygen FILE makes one"
        if label and not encrypted:
            why += f", but of {label.decode()}"
        if encrypted:
            why = (
                "it is encrypted, and the passphrase is missing"
                if secret is None
                else "the passphrase does not open it"
            )
            fix = f"put its passphrase into the variable {PASSPHRASE}"
        raise ConfigError(
            "not-a-private-key", f"{path} is not a private key that can be used", why=why, fix=fix
        ) from error
    if not isinstance(key, _PRIVATE) or not _p256(key):
        raise ConfigError(
            "key-kind",
            f"{path} is a key of another kind",
            why="Ed25519 and ECDSA on P-256 are known",
            fix="make one with toolchain keygen FILE",
        )
    return Signer(key)


def load_public(path: Path) -> PublicKey:
    """A public key in PEM, also from a pipe; of a private one its public half."""
    content = _content(path)
    if b"PRIVATE KEY" in content:
        return _signer(content, path).public
    try:
        key = serialization.load_pem_public_key(content)
    except (ValueError, UnsupportedAlgorithm) as error:
        raise ConfigError(
            "not-a-public-key",
            f"{path} is not a public key",
            why="no PEM of a public key",
            fix="toolchain keygen FILE makes one",
        ) from error
    if not isinstance(key, _PUBLIC) or not _p256(key):
        raise ConfigError(
            "key-kind",
            f"{path} is a key of another kind",
            why="Ed25519 and ECDSA on P-256 are known",
            fix="give the publisher's key as PEM, of one of these kinds",
        )
    return PublicKey(key)
