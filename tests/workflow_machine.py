"""Fresh containers of a base image for the steps of workflows, with the host's access to packages."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from tests.rooted import Rooted
from toolchain.sources.mirrors import apt_mirrors

TOP = Path(__file__).resolve().parents[1]
WORKSPACE, TEMP, HOME, VOLUME = "/__w/toolchain/toolchain", "/__w/_temp", "/github/home", "/var/cache/toolchain"
_PASSED = re.compile(r"PIP_(?!CERT)\w+|https?_proxy|no_proxy", re.IGNORECASE)
_CERTIFICATES = ("SSL_CERT_FILE", "PIP_CERT", "REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE", "GIT_SSL_CAINFO")


def _machine_folders() -> list[Path]:
    """Return the top folders of the paths that pip's configuration names, such as those of wheels and indexes."""
    said = subprocess.run(
        [sys.executable, "-m", "pip", "config", "list"], capture_output=True, text=True, check=False
    ).stdout
    named = {Path(path) for path in re.findall(r"(?:file://|(?<=[' =]))(/[\w./+-]+)", said)}
    tops = {Path(*path.parts[:3]) for path in named if path.is_dir() and len(path.parts) > 2}
    return sorted(path for path in tops if path.is_dir() and not path.is_relative_to("/etc"))


@dataclass(kw_only=True)
class Way:
    """The mounts and the environment by which a container reaches packages and the registry."""

    folder: Path
    registry: str
    suite: str = "trixie"
    mounts: list[tuple[Path, str, bool]] = field(default_factory=list)
    env: dict[str, str] = field(default_factory=dict)
    limit: float = 1200

    def __post_init__(self) -> None:
        self.folder.mkdir(parents=True)
        main = next(mirror for mirror in apt_mirrors() if not mirror.security)
        keyring = "/usr/share/keyrings/debian-archive-keyring.gpg"
        self._file(
            "machine.sources",
            f"Types: deb\nURIs: {main.site}\nSuites: {self.suite}\nComponents: main\nSigned-By: {keyring}\n",
            "/etc/apt/sources.list.d/machine.sources",
        )
        config = subprocess.run(["apt-config", "dump"], capture_output=True, text=True, check=True).stdout
        lines = [line for line in config.splitlines() if line.startswith("Acquire::")]
        self._file("99machine", "\n".join(lines) + "\n", "/etc/apt/apt.conf.d/99machine")
        plain = f'[[registry]]\nlocation = "{self.registry}"\ninsecure = true\n'
        self._file("loopback.conf", plain, "/etc/containers/registries.conf.d/loopback.conf")
        for name in ("/etc/hosts", "/etc/resolv.conf", "/etc/pip.conf", "/etc/xdg/pip", "/etc/apt/auth.conf.d"):
            self._bring(Path(name), name)
        self._bring(Path.home() / ".config/pip", f"{HOME}/.config/pip")
        for place in _machine_folders():
            self._bring(place, str(place))
        self.env |= {name: value for name, value in os.environ.items() if _PASSED.fullmatch(name)}
        certificates = Path("/etc/ssl/certs/ca-certificates.crt")
        if certificates.is_file():
            self._file("ca.crt", certificates.read_text(), "/machine/ca.crt")
            self.env |= dict.fromkeys(_CERTIFICATES, "/machine/ca.crt")
        (self.folder / "pip-cache").mkdir()
        self.mounts.append((self.folder / "pip-cache", "/machine/pip-cache", True))
        self.env["PIP_CACHE_DIR"] = "/machine/pip-cache"

    def _file(self, name: str, content: str, inside: str) -> None:
        (self.folder / name).write_text(content)
        self.mounts.append((self.folder / name, inside, False))

    def _bring(self, here: Path, inside: str) -> None:
        if here.exists():
            self.mounts.append((here, inside, False))


class Machine:
    """A fresh container, whose workspace, RUNNER_TEMP, home and volume are folders below `home`."""

    def __init__(self, lower: tuple[Path, ...], way: Way, home: Path) -> None:
        self._way, self.home = way, home
        self._container, self._lent = Rooted(lower, home / "container"), False
        self.places = {
            WORKSPACE: home / "workspace", TEMP: home / "temp", HOME: home / "home", VOLUME: home / "volume"
        }  # fmt: skip
        for place in self.places.values():
            place.mkdir(parents=True, exist_ok=True)
        self.programs = home / "programs"
        self.programs.mkdir(exist_ok=True)

    def outside(self, path: str) -> Path:
        """Return the host's path of a path in the container, which may be relative to the workspace."""
        full = os.path.normpath(Path(WORKSPACE) / path)
        for inside, here in self.places.items():
            if full == inside or full.startswith(f"{inside}/"):
                return here / full.removeprefix(inside).lstrip("/")
        raise AssertionError(f"{path} is in no folder that outlives the container")

    def run(
        self,
        shell: list[str],
        script: str,
        env: Mapping[str, str],
        *,
        log: Path,
        cancel: Callable[[], bool] | None = None,
    ) -> int:
        """Run a script, and return its exit code.

        If `cancel` returns true, or after the time limit, the script is ended as GitHub's runner does: by SIGINT,
        SIGTERM and SIGKILL.
        """
        temp = self.places[TEMP]
        (temp / "step.sh").write_text(script)
        known = {"PATH": "/machine/programs:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"}
        lines = [f"export {name}={shlex.quote(value)}" for name, value in (known | self._way.env | dict(env)).items()]
        words = [word.replace("{0}", f"{TEMP}/step.sh") for word in shell]
        (temp / "enter.sh").write_text("\n".join([*lines, f"cd {WORKSPACE}", f"exec {shlex.join(words)}"]) + "\n")
        binds = [(here, inside, True) for inside, here in self.places.items()]
        binds += [(self.programs, "/machine/programs", False), *self._way.mounts]
        argv = self._container.command(["/bin/sh", f"{TEMP}/enter.sh"], binds=binds)
        with log.open("ab") as sink:
            child = subprocess.Popen(
                argv, stdin=subprocess.DEVNULL, stdout=sink, stderr=sink, start_new_session=True,
                env={**os.environ, "PYTHONPATH": str(TOP)},
            )  # fmt: skip
            return _wait(child, cancel, self._way.limit)

    def commit(self) -> tuple[Path, ...]:
        """Return the layers with the current files of the container, for other machines."""
        self._lent = True
        return (self._container.upper, *self._container.lower)

    def remove(self) -> None:
        """Remove the container unless it was committed; its folders are kept."""
        if not self._lent:
            shutil.rmtree(self._container.place)


def _wait(child: subprocess.Popen[bytes], cancel: Callable[[], bool] | None, limit: float) -> int:
    end = time.monotonic() + limit
    while child.poll() is None:
        if time.monotonic() > end or (cancel is not None and cancel()):
            for number, patience in ((signal.SIGINT, 7.5), (signal.SIGTERM, 2.5), (signal.SIGKILL, 20)):
                os.killpg(child.pid, number)
                try:
                    child.wait(patience)
                    break
                except subprocess.TimeoutExpired:
                    continue
            return 137
        time.sleep(0.1)
    return child.returncode
