"""Sign with an OIDC identity instead of a key, using Sigstore, and verify such signatures.

The library `sigstore` is an optional dependency, so this module imports it only in the functions that need it.
"""

from __future__ import annotations

import base64
import contextlib
import logging
import os
import re
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from toolchain.core import strict_json
from toolchain.core.digest import canonical
from toolchain.core.errors import ConfigError, DocumentError, ToolchainError, UnreachableError, UntrustedError
from toolchain.trust.dsse import BUNDLE, LARGEST, Envelope

if TYPE_CHECKING:
    from sigstore.models import Bundle, ClientTrustConfig
    from sigstore.oidc import IdentityToken
    from sigstore.verify import Verifier

T = TypeVar("T")
PATIENCE = 180.0  # seconds to wait for a signature, or for the root certificates of a Sigstore instance
MEDIA_TYPE = "application/vnd.dev.sigstore.bundle.v0.3+json"
TOKEN = "SIGSTORE_IDENTITY_TOKEN"  # noqa: S105 - it is the name of an environment variable
_ISSUER = "1.3.6.1.4.1.57264.1.1"  # the extension of a certificate that contains the issuer of the token
_OF_CIRCLECI = (
    "https://circleci.com/api/v2/projects/%(oidc.circleci.com/project-id)s"
    "/pipeline-definitions/%(oidc.circleci.com/pipeline-definition-id)s"
)
# For tokens of these issuers (regular expressions), Fulcio derives the name in the certificate from claims. These are
# the templates in its config/identity/config.yaml. For other issuers, the name is the subject or the e-mail address.
_NAMES = (
    (r"https://token\.actions\.githubusercontent\.com(/.*)?", "https://github.com/%(job_workflow_ref)s"),
    (
        r"https://(gitlab\.com|dev\.gitlab\.org|ops\.gitlab\.net|gitlab\.archlinux\.org)",
        "https://%(ci_config_ref_uri)s",
    ),
    (r"https://agent\.buildkite\.com", "https://buildkite.com/%(organization_slug)s/%(pipeline_slug)s"),
    (r"https://oidc\.circleci\.com(/org/.*)?", _OF_CIRCLECI),
)


@dataclass(frozen=True)
class Identity:
    """The identity of a signer, which a certificate from Sigstore proves.

    Args:
        name: the name in the certificate: an e-mail address, or, for a GitHub workflow,
            `https://github.com/OWNER/NAME/.github/workflows/FILE@refs/…`.
        issuer: the OIDC issuer of the identity, such as `https://token.actions.githubusercontent.com`. ConfigError is
            raised if it is empty.
        config: a file with the trust config of a Sigstore instance, if it is private or there is no network; None
            for the public Sigstore, whose current trust config is downloaded.
    """

    name: str
    issuer: str
    config: Path | None = None

    def __post_init__(self) -> None:
        if not self.issuer:
            # For an empty issuer, sigstore would skip the check of the issuer.
            raise ConfigError(
                "identity-needs-issuer",
                "the issuer of the identity is empty",
                why="another issuer could vouch for the same name",
                fix="add e.g. --issuer https://token.actions.githubusercontent.com",
            )

    @property
    def id(self) -> str:
        """The name and the issuer, in a form for messages."""
        return f"{self.name} (vouched for by {self.issuer})"

    @cached_property
    def _verifier(self) -> Verifier:
        from sigstore.verify import Verifier  # noqa: PLC0415

        with _translated("the root certificates of Sigstore are not available"):
            return Verifier(trusted_root=_patiently(lambda: trust_config(self.config)).trusted_root)

    def opened(self, content: bytes) -> Envelope:
        """Verify a Sigstore bundle, and return an envelope with its payload.

        UntrustedError is raised if the content is not a bundle, or if its signature, certificate or log entry is
        invalid or belongs to another identity. ConfigError or UnreachableError is raised if sigstore is not installed,
        or if its trust config cannot be used.
        """
        require()
        from sigstore.errors import Error  # noqa: PLC0415
        from sigstore.models import Bundle  # noqa: PLC0415
        from sigstore.verify.policy import Identity as Demand  # noqa: PLC0415

        verifier = self._verifier
        try:
            strict_json.read(content, "the bundle", keys=BUNDLE, limit=LARGEST)
            kind, payload = verifier.verify_dsse(
                Bundle.from_json(content), Demand(identity=self.name, issuer=self.issuer)
            )
        except Error as error:
            raise UntrustedError(
                "identity-mismatch", "a bundle is not signed by this identity", why=_short(error)
            ) from error
        except Exception as error:
            # For hostile certificates and JSON, sigstore and its dependencies raise exceptions of many types.
            unread = f"sigstore cannot read it ({type(error).__name__})"
            why = error.what if isinstance(error, DocumentError) else unread
            raise UntrustedError("not-a-sigstore-bundle", "an attachment is not a Sigstore bundle", why=why) from error
        return Envelope(kind, payload, ((self.name, b""),))


class Keyless:
    """A signer that uses the OIDC identity of this process.

    The attribute `identity` is what the certificate of the last signature says. Before the first signature, it is what
    the certificate is expected to say, so that earlier signatures can be found.
    """

    def __init__(self, config: Path | None = None) -> None:
        """Read the identity now, so that a missing identity is reported before anything is uploaded."""
        require()
        self._config = config
        self._token = _identity()
        self.identity = Identity(_name_of(self._token), self._token.federated_issuer, config)

    def __repr__(self) -> str:
        return f"Keyless({self.identity.id})"

    def sign(self, statement: Mapping[str, Any]) -> bytes:
        """Sign a statement, and return a Sigstore bundle.

        The bundle contains the statement, its signature, the certificate of the identity, and the entry in Sigstore's
        log. UnreachableError is raised if Sigstore does not answer or fails, and ConfigError if it refuses to sign, or
        if the trust config or a new token cannot be used.
        """
        from sigstore.dsse import Statement  # noqa: PLC0415
        from sigstore.sign import SigningContext  # noqa: PLC0415

        if not self._token.in_validity_period():
            self._token = _identity()  # a GitHub token expires after minutes, and an upload may take longer

        def signed() -> Bundle:
            context = SigningContext.from_trust_config(trust_config(self._config))
            with context.signer(self._token) as signer:
                return signer.sign_dsse(Statement(canonical(statement)))

        with _translated("Sigstore did not sign the statement", secret=str(self._token)):
            bundle = _patiently(signed)
        self.identity = _certified(bundle, self.identity)
        return bundle.to_json().encode()


def require() -> None:
    """Raise ConfigError if the library `sigstore` is not installed; otherwise, make it log only warnings and errors."""
    try:
        import sigstore.models  # noqa: F401, PLC0415
    except ImportError as error:
        raise ConfigError(
            "sigstore-missing",
            "signatures by identity need sigstore, which is not installed",
            why=f"Python finds no module {error.name}",
            fix="pip install '.[keyless]' in a checkout of the tool, or use --key",
        ) from error
    # At debug level, sigstore logs whole statements, which would flood the log of this tool.
    logging.getLogger("sigstore").setLevel(logging.WARNING)


def trust_config(path: Path | None) -> ClientTrustConfig:
    """Return the trust config of a Sigstore instance, which contains its addresses and its root certificates.

    ConfigError is raised if the file cannot be read or is malformed.

    Args:
        path: a file with the trust config; None to download that of the public Sigstore.
    """
    from sigstore.models import ClientTrustConfig  # noqa: PLC0415

    if path is None:
        return ClientTrustConfig.production()
    try:
        return ClientTrustConfig.from_json(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ConfigError(
            "trust-config-malformed",
            f"{path} is not a trust config of Sigstore",
            why=error.strerror if isinstance(error, OSError) and error.strerror else "it is not JSON, or lacks a value",
            fix="give the file ClientTrustConfig, in JSON, that the operator of the Sigstore provides",
        ) from error


def _name_of(token: IdentityToken) -> str:
    """Return the name that the public Sigstore is expected to write into the certificate for a token."""
    payload = str(token).split(".")[1]
    claims = strict_json.read(base64.urlsafe_b64decode(payload + "=" * (-len(payload) % 4)), "the token")
    for issuer, template in _NAMES:
        if re.fullmatch(issuer, token.federated_issuer):
            with contextlib.suppress(KeyError):
                return str(template % claims)
    return token.identity


def _certified(bundle: Bundle, expected: Identity) -> Identity:
    """Return the identity in the certificate of a bundle.

    A name or an issuer that the certificate lacks, or whose type is unknown, is taken from `expected`.
    """
    from cryptography.x509 import (  # noqa: PLC0415 - only the optional signatures need it
        ExtensionNotFound,
        ObjectIdentifier,
        RFC822Name,
        SubjectAlternativeName,
        UniformResourceIdentifier,
    )

    extensions = bundle.signing_certificate.extensions
    name, issuer = expected.name, expected.issuer
    with contextlib.suppress(ExtensionNotFound):
        names = extensions.get_extension_for_class(SubjectAlternativeName).value
        name = next(
            iter([*names.get_values_for_type(UniformResourceIdentifier), *names.get_values_for_type(RFC822Name)]), name
        )
    with contextlib.suppress(ExtensionNotFound):
        issuer = extensions.get_extension_for_oid(ObjectIdentifier(_ISSUER)).value.public_bytes().decode()
    there = replace(expected, name=name, issuer=issuer)
    return expected if there == expected else there  # an equal object keeps the certificates that it downloaded


def _identity() -> IdentityToken:
    from sigstore.oidc import IdentityError, IdentityToken, detect_credential  # noqa: PLC0415

    try:
        raw = os.environ.get(TOKEN) or detect_credential()
        if raw:
            return IdentityToken(raw)
    except IdentityError as error:
        raise ConfigError(
            "identity-unusable",
            "the identity of this process cannot be used",
            why=str(error).strip().splitlines()[0][:200] if str(error).strip() else type(error).__name__,
            fix="on GitHub: permissions: id-token: write",
        ) from None
    raise ConfigError(
        "identity-missing",
        "--keyless needs an identity, and this process has none",
        why=f"no CI system that issues OIDC tokens was recognised, and {TOKEN} is not set",
        fix="run it in such a CI system (on GitHub: permissions: id-token: write), or sign with --key FILE",
    )


@contextmanager
def _translated(what: str, *, secret: str = "") -> Iterator[None]:
    """Turn exceptions of sigstore and requests into UnreachableError or ConfigError."""
    import requests  # noqa: PLC0415
    from sigstore.errors import NetworkError, TUFError  # noqa: PLC0415

    try:
        yield
    except ToolchainError:
        raise
    except (requests.RequestException, NetworkError, TUFError) as error:
        raise UnreachableError(
            "sigstore-unreachable",
            what,
            why=_short(error, secret),
            fix="check the network; --sigstore FILE names another Sigstore",
        ) from None
    except Exception as error:
        # Some exceptions of sigstore have no public class, so the name of the module identifies them.
        if not (isinstance(error, ValueError) or type(error).__module__.startswith("sigstore")):
            raise
        cause = error.__cause__ or error.__context__
        response = cause.response if isinstance(cause, requests.HTTPError) else None
        status = f"HTTP {response.status_code}: " if response is not None else ""
        kind = UnreachableError if response is not None and response.status_code >= 500 else ConfigError
        raise kind(
            "sigstore-refused", what, why=status + _short(error, secret), fix="check the identity and its rights"
        ) from None


def _patiently(call: Callable[[], T]) -> T:
    """Return the result of `call` or raise its exception; raise UnreachableError after `PATIENCE` seconds."""
    result: list[T] = []
    failed: list[Exception] = []

    def run() -> None:
        try:
            result.append(call())
        except Exception as error:  # noqa: BLE001 - the waiting thread raises it again
            failed.append(error)

    thread = threading.Thread(target=run, daemon=True)  # a hanging daemon thread does not prevent the exit
    thread.start()
    thread.join(PATIENCE)
    if failed:
        raise failed[0]
    if not result:
        raise UnreachableError(
            "sigstore-unreachable",
            "Sigstore stopped answering",
            why=f"no answer in {PATIENCE:g} s",
            fix="try again later",
        )
    return result[0]


def _short(error: BaseException, secret: str = "") -> str:
    text = " ".join(str(error).split()) or type(error).__name__
    return (text.replace(secret, "[secret]") if secret else text)[:300]
