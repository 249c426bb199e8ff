"""A login whose tokens are valid for the requested scopes, as in hosted registries."""

from __future__ import annotations

import base64
import itertools
import re
import time
from dataclasses import dataclass, field
from urllib.parse import parse_qs, urlsplit

_NAME = re.compile(r"^/v2/(.+)/(?:blobs|manifests|tags|referrers)/")


@dataclass
class ScopedLogin:
    """An authority that issues tokens and checks them.

    Args:
        login: user:password of the only user who may push.
        identity: a refresh token of the user, as ACR issues it; if it is set, the password is not accepted.
        private: whether a pull needs the login too.
        lasts: seconds until a token expires.
        says: whether the answer contains this time.
        challenge: the challenge of the registry, with `{realm}`, `{service}` and `{scope}`.
        path: path that issues tokens.
        name: name of the host that issues them, if it is not the registry's.
        service: the expected service; a request for another one gets no token.
        posts: whether a POST is accepted; Harbor answers 405.
        word: key of the token in the answer.
    """

    login: str = "user:pass-word"
    identity: str = ""
    private: bool = False
    lasts: float = 300.0
    says: bool = True
    challenge: str = 'Bearer realm="{realm}",service="{service}",scope="{scope}"'
    path: str = "/token"
    name: str = ""
    service: str = "here"
    posts: bool = True
    word: str = "access_token"
    asked: list[tuple[str, ...]] = field(default_factory=list)
    refused: list[str] = field(default_factory=list)
    tokens: dict[str, tuple[float, tuple[str, ...]]] = field(default_factory=dict)
    _numbers: itertools.count[int] = field(default_factory=itertools.count)

    def ask(
        self, method: str, path: str, headers: dict[str, str], body: bytes, host: str
    ) -> tuple[int, dict[str, object], dict[str, str]] | None:
        """Return the status, JSON and headers of the authority's answer; None lets the request through."""
        said = headers.get("Authorization", "")
        if path.startswith(self.path):
            return (405, {}, {}) if method == "POST" and not self.posts else self._token(path, said, body.decode())
        found = _NAME.match(path)
        name = found[1] if found else ""
        needed = [(name, "pull" if method in {"GET", "HEAD"} else "push")]
        needed += [(other, "pull") for other in parse_qs(urlsplit(path).query).get("from", [])]
        until, scopes = self.tokens.get(said.removeprefix("Bearer "), (0.0, ()))
        if until > time.monotonic() and all(_allows(scopes, *one) for one in needed):
            return None
        self.refused.append(f"{method} {path.partition('?')[0]}")
        actions = "pull" if method in {"GET", "HEAD"} else "pull,push"
        where = f"{self.name}:{host.rpartition(':')[2]}" if self.name else host
        asked = self.challenge.format(
            realm=f"http://{where}{self.path}", service=self.service, scope=f"repository:{name}:{actions}"
        )
        return 401, {"errors": [{"code": "UNAUTHORIZED"}]}, {"WWW-Authenticate": asked}

    def _token(self, path: str, said: str, form: str) -> tuple[int, dict[str, object], dict[str, str]]:
        query = parse_qs(form or urlsplit(path).query)
        scopes = tuple(scope for text in query.get("scope", []) for scope in text.split())
        self.asked.append(scopes)
        if "{service}" in self.challenge and query.get("service") != [self.service]:
            return 400, {}, {}
        if self.identity:
            known = bool(form) and query.get("refresh_token") == [self.identity]
        else:
            known = said == "Basic " + base64.b64encode(self.login.encode()).decode()
        if not known and (said or form or self.private):
            return 401, {}, {}
        if not known:
            scopes = tuple(scope for scope in scopes if scope.endswith(":pull"))
        token = f"token-number-{next(self._numbers)}"
        self.tokens[token] = (time.monotonic() + self.lasts, scopes)
        return 200, {self.word: token, **({"expires_in": self.lasts} if self.says else {})}, {}


def _allows(scopes: tuple[str, ...], name: str, action: str) -> bool:
    return any(scope.startswith(f"repository:{name}:") and action in scope.rpartition(":")[2] for scope in scopes)
