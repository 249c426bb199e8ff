"""Fresh containers of a base image for the steps of workflows, with this machine's way to packages."""

from __future__ import annotations

import contextlib
import os
import re
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from toolchain.engine.buildah import Buildah
from toolchain.sources.mirrors import apt_mirrors

WORKSPACE, TEMP, HOME, VOLUME = "/__w/toolchain/toolchain", "/__w/_temp", "/github/home", "/var/cache/toolchain"
_PASSED = re.compile(r"PIP_(?!CERT)\w+|https?_proxy|no_proxy", re.IGNORECASE)
_CERTIFICATES = ("SSL_CERT_FILE", "PIP_CERT", "REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE", "GIT_SSL_CAINFO")
_CAPABILITIES = """
    CHOWN DAC_OVERRIDE DAC_READ_SEARCH FOWNER FSETID KILL SETGID SETUID SETPCAP LINUX_IMMUTABLE NET_BIND_SERVICE
    NET_BROADCAST NET_ADMIN NET_RAW IPC_LOCK IPC_OWNER SYS_MODULE SYS_RAWIO SYS_CHROOT SYS_PTRACE SYS_PACCT SYS_ADMIN
    SYS_BOOT SYS_NICE SYS_RESOURCE SYS_TIME SYS_TTY_CONFIG MKNOD LEASE AUDIT_WRITE AUDIT_CONTROL SETFCAP MAC_OVERRIDE
    MAC_ADMIN SYSLOG WAKE_ALARM BLOCK_SUSPEND AUDIT_READ
""".split()  # noqa: SIM905 - a table, in the order of their bits


def privileged() -> list[str]:
    """`--privileged`, as far as this machine itself is: every capability that it may hand out."""
    found = re.search(r"^CapBnd:\s*([0-9a-f]+)", Path("/proc/self/status").read_text(), re.MULTILINE)
    bits = int(found[1], 16) if found else 0
    names = [name for number, name in enumerate(_CAPABILITIES) if bits >> number & 1]
    return [word for name in names for word in ("--cap-add", f"CAP_{name}")]


def _machine_folders() -> list[Path]:
    """Folders that pip's configuration names: wheels and indexes on this machine."""
    said = subprocess.run(
        [sys.executable, "-m", "pip", "config", "list"], capture_output=True, text=True, check=False
    ).stdout
    named = {Path(path) for path in re.findall(r"(?:file://|(?<=[' =]))(/[\w./+-]+)", said)}
    tops = {Path(*path.parts[:3]) for path in named if path.is_dir() and len(path.parts) > 2}
    return sorted(path for path in tops if path.is_dir() and not path.is_relative_to("/etc"))


@dataclass(kw_only=True)
class Way:
    """How a container on this machine reaches packages and the registry: mounts and environment, no name of a host."""

    folder: Path
    registry: str
    suite: str = "trixie"
    mounts: list[str] = field(default_factory=list)
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
        for name in ("/etc/pip.conf", "/etc/xdg/pip", "/etc/apt/auth.conf.d"):
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
        self.mounts += ["--volume", f"{self.folder / 'pip-cache'}:/machine/pip-cache"]
        self.env["PIP_CACHE_DIR"] = "/machine/pip-cache"

    def _file(self, name: str, content: str, inside: str) -> None:
        (self.folder / name).write_text(content)
        self.mounts += ["--volume", f"{self.folder / name}:{inside}:ro"]

    def _bring(self, here: Path, inside: str) -> None:
        if here.exists():
            self.mounts += ["--volume", f"{here}:{inside}:ro"]


class Machine:
    """One fresh container: workspace, RUNNER_TEMP, home and the volume are folders below `home`."""

    def __init__(self, engine: Buildah, image: str, way: Way, home: Path) -> None:
        self._engine, self._way, self.home = engine, way, home
        self.places = {
            WORKSPACE: home / "workspace", TEMP: home / "temp", HOME: home / "home", VOLUME: home / "volume"
        }  # fmt: skip
        for place in self.places.values():
            place.mkdir(parents=True, exist_ok=True)
        self.programs = home / "programs"
        self.programs.mkdir(exist_ok=True)
        # Held as the tool holds its own: what the tool runs beside this would sweep the mounts of a stranger away.
        self._held = contextlib.ExitStack()
        self.name = self._held.enter_context(engine.container(image))

    def outside(self, path: str) -> Path:
        """Where a path of the container, or one that is relative to the workspace, lies on this machine."""
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
        """Run a script; its exit code. Where `cancel` turns true it is broken off as the runner does: SIGINT, SIGTERM,
        SIGKILL."""
        temp = self.places[TEMP]
        (temp / "step.sh").write_text(script)
        known = {"PATH": "/machine/programs:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"}
        lines = [f"export {name}={shlex.quote(value)}" for name, value in (known | self._way.env | dict(env)).items()]
        words = [word.replace("{0}", f"{TEMP}/step.sh") for word in shell]
        (temp / "enter.sh").write_text("\n".join([*lines, f"cd {WORKSPACE}", f"exec {shlex.join(words)}"]) + "\n")
        mounts = [word for inside, here in self.places.items() for word in ("--volume", f"{here}:{inside}")]
        mounts += ["--volume", f"{self.programs}:/machine/programs:ro", *self._way.mounts]
        argv = self._engine.command(
            "run", "--isolation", "chroot", *privileged(), *mounts, "--", self.name, "/bin/sh", f"{TEMP}/enter.sh",
            network=True,
        )  # fmt: skip
        with log.open("ab") as sink:
            child = subprocess.Popen(
                argv, stdin=subprocess.DEVNULL, stdout=sink, stderr=sink, start_new_session=True,
                env=dict(os.environ),
            )  # fmt: skip
            return _wait(child, cancel, self._way.limit)

    def commit(self, name: str) -> str:
        """An image of the container as it is now."""
        self._engine.call("commit", "--quiet", self.name, f"localhost/{name}", timeout=None)
        return f"localhost/{name}"

    def remove(self) -> None:
        """The container goes; its folders stay."""
        self._held.close()


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
