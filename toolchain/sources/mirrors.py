"""Read which mirrors and keyrings the machine's apt is configured to use."""

from __future__ import annotations

import platform
import re
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from urllib.parse import unquote

from toolchain.core import process
from toolchain.core.deb822 import stanzas
from toolchain.core.errors import EngineError, SourceError
from toolchain.core.process import CommandError

# apt removes the login from $(SITE), and leaves it in $(REPO_URI).
_TARGETS = "$(CREATED_BY)\t$(REPO_URI)\t$(RELEASE)\t$(COMPONENT)\t$(ORIGIN)\t$(SOURCESENTRY)"
# Before the first `apt-get update`, apt lists the configured archives only with this option.
_UNREAD = ("-o", "APT::Get::IndexTargets::ReleaseInfo=false")
_LOGIN = re.compile(r"(?P<scheme>[^/]*://)(?:(?P<login>[^/@]*)@)?(?P<rest>.*)")
_POCKETS = ("", "-updates", "-security", "-backports")
_COMPONENTS = {"main", "contrib", "non-free", "non-free-firmware", "restricted", "universe", "multiverse"}


@dataclass(frozen=True, kw_only=True)
class Mirror:
    """A suite of a package archive that apt is configured to use.

    Args:
        site: the base URL of the archive, without a login. It must not be logged or recorded, because the mirror may be
            private.
        keyring: the path of the keyring, or a whole armoured key; empty for apt's default keys.
        login: the login `USER:PASSWORD` in the configured URL, percent-encoded; empty if the URL has none.
    """

    site: str
    suite: str
    components: tuple[str, ...]
    keyring: str
    login: str = field(default="", repr=False)

    @property
    def security(self) -> bool:
        """Return whether the suite belongs to the security archive, judged by its name."""
        return self.suite.endswith("-security") or "/updates" in self.suite

    def stanza(self, kind: str, *, login: bool) -> str:
        """Return the mirror for apt as a paragraph of a .sources file; `kind` is `deb` or `deb-src`.

        The form with one line for each mirror cannot contain a whole key.

        Args:
            login: whether the URL contains the login. Then only the user may be able to read the file, and apt prints
                the login with `--print-uris`.
        """
        scheme, _, rest = self.site.partition("://")
        site = f"{scheme}://{self.login}@{rest}" if login and self.login else self.site
        lines = [f"Types: {kind}", f"URIs: {site}", f"Suites: {self.suite}"]
        lines += [f"Components: {' '.join(self.components)}"]
        lines += [f"Signed-By: {self.keyring}"] if self.keyring else []
        return "\n".join(lines) + "\n"

    def auth(self) -> str:
        """Return the login as apt's auth.conf has it, for a file that only the user can read; empty without a login."""
        words = [unquote(word) for word in self.login.split(":", 1)]
        pairs = zip(("login", "password"), words, strict=False)
        return f"machine {self.site} {' '.join(f'{key} {word}' for key, word in pairs)}\n" if self.login else ""


def apt_mirrors() -> list[Mirror]:
    """Return the suites of the distribution's own archives in apt's configuration.

    The main suites come first, then their updates and backports, and the security suites last. SourceError is raised if
    apt cannot list the suites, or if none is configured.
    """
    ask = ("apt-get", "indextargets", "--format", _TARGETS)
    try:
        listing = process.run(ask, capture=True).stdout or process.run([*ask, *_UNREAD], capture=True).stdout
    except (CommandError, EngineError) as error:
        raise SourceError(
            "mirrors-unknown",
            "apt cannot list its mirrors",
            why=error.why or error.what,
            fix="use a Debian or Ubuntu machine, because source packages are fetched by apt",
        ) from error
    codename = _codename()
    rows: dict[tuple[str, str], tuple[list[str], str]] = {}
    for line in listing.splitlines():
        created_by, address, suite, component, origin, entry = (line.split("\t") + [""] * 6)[:6]
        known = origin if not origin.startswith("$(") else ""
        by_name = suite in {codename + pocket for pocket in _POCKETS} and component in _COMPONENTS
        ours = known in {"Debian", "Ubuntu"} or (not known and by_name)
        if created_by == "Packages" and ours and suite:
            components, _ = rows.setdefault((address.rstrip("/"), suite), ([], entry))
            if component not in components:
                components.append(component)
    mirrors = []
    for (address, suite), (components, entry) in rows.items():
        parts = _LOGIN.fullmatch(address)
        site, login = (parts["scheme"] + parts["rest"], parts["login"] or "") if parts else (address, "")
        keyring = _signed_by(entry, address, suite)
        mirrors.append(Mirror(site=site, suite=suite, components=tuple(components), keyring=keyring, login=login))
    if not mirrors:
        raise SourceError(
            "mirrors-unknown",
            "apt has no mirror of the distribution configured",
            fix="add a mirror to /etc/apt/sources.list.d, and run `apt-get update`",
        )
    return sorted(mirrors, key=lambda mirror: (mirror.security, "-" in mirror.suite))


def _codename() -> str:
    try:
        return platform.freedesktop_os_release().get("VERSION_CODENAME", "")
    except OSError:
        return ""


def _signed_by(entry: str, address: str, suite: str) -> str:
    """Return the `Signed-By` value of a mirror, or an empty string if none is found.

    `entry` is the location `FILE:NUMBER` of the mirror in apt's configuration. The file is read, because apt does not
    print the value. If no stanza of the suite in a .sources file has the URL `address`, the first value in the stanzas
    of the suite is used.
    """
    name, _, number = entry.rpartition(":")
    path = Path(name)
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError):
        return ""
    if path.suffix == ".sources":
        of_suite = [stanza for stanza in stanzas(text) if suite in stanza.get("suites", "").split()]
        for stanza in of_suite:
            if address in {uri.rstrip("/") for uri in stanza.get("uris", "").split()}:
                return stanza.get("signed-by", "")
        return next((stanza["signed-by"] for stanza in of_suite if stanza.get("signed-by")), "")
    lines = text.splitlines()
    line = lines[int(number) - 1] if number.isdecimal() and 0 < int(number) <= len(lines) else ""
    match = re.match(r"\s*deb\s+\[[^\]]*\bsigned-by=([^\s\]]+)", line)
    return match[1] if match else ""


def suites(mirrors: Sequence[Mirror], hints: Sequence[str], known: Sequence[str]) -> list[Mirror]:
    """Return the suites to search for a source package: `hints`, the configured suites, then Debian's other suites.

    If a suite is not configured and its name ends with `-security`, it is searched in the security archive, or skipped
    if no security archive is configured. Any other suite that is not configured is searched in the first archive.
    Debian's other suites are included only if a configured suite is one of Debian's, because the archives of other
    distributions do not contain them.

    Args:
        mirrors: the configured suites.
        known: Debian's suites, in the order of the search.
    """
    security = next((mirror for mirror in mirrors if mirror.security), None)
    debian = {*known, *(f"{old}stable" for old in ("", "old", "oldold")), "testing", "unstable"}
    named = [mirror.suite for mirror in mirrors]
    others = known if any(suite in debian for suite in named) else ()
    by_suite: dict[str, Mirror] = {}
    for suite in (*hints, *named, *others):
        own = next((mirror for mirror in mirrors if mirror.suite == suite), None)
        archive = security if suite.endswith("-security") else mirrors[0]
        if (mirror := own or archive) is not None:
            by_suite.setdefault(suite, replace(mirror, suite=suite))
    return list(by_suite.values())
