"""Commands and workers in containers of docker or podman, by python-on-whales; `docker_probe` checks them first."""

from __future__ import annotations

import contextlib
import itertools
import os
import shutil
import subprocess
import tempfile
import threading
import weakref
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

from python_on_whales import DockerClient
from python_on_whales.exceptions import DockerException, NoSuchImage

from toolchain.core import process, strict_json
from toolchain.core.errors import EngineError
from toolchain.core.process import CommandError, Result
from toolchain.core.recipe import Mount, plain_files
from toolchain.engine import view
from toolchain.engine.attended import attended
from toolchain.engine.isolation import DROPPED
from toolchain.engine.single import layers_of, single_layout
from toolchain.engine.storage import process_identity

# What images of ours are called in a daemon's storage.
IMAGES = "localhost/toolchain"
_NUMBER = itertools.count()
_LABEL = "toolchain.core.process"
# docker's and podman's own failures; the command in the container has the other codes.
_ENGINE_FAILED = 125
_PATIENCE = 30.0
# Where a client looks for its daemon, and how it comes to it; other programs of ours do not get these.
_SETTINGS = (
    "DOCKER_HOST", "DOCKER_CONTEXT", "DOCKER_CONFIG", "DOCKER_TLS", "DOCKER_TLS_VERIFY", "DOCKER_CERT_PATH",
    "DOCKER_API_VERSION", "CONTAINER_HOST", "CONTAINER_CONNECTION", "CONTAINER_SSHKEY", "CONTAINERS_CONF",
    "CONTAINERS_STORAGE_CONF", "SSH_AUTH_SOCK", "XDG_CONFIG_HOME", "XDG_DATA_HOME", "DBUS_SESSION_BUS_ADDRESS",
)  # fmt: skip
# The kernel lets the first process of a PID namespace ignore signals that others die of, abort's among them. So the
# command is never the first one: its exit status must be the same as elsewhere.
_SHELL = ("-c", '"$@"; exit $?', "sh")


class DockerRunner:
    """Runs commands in containers of a docker daemon or of podman, without network unless asked.

    Args:
        host: the daemon's address, e.g. `unix:///run/docker.sock`; where the program itself looks otherwise.
        program: `docker` or `podman`.
        scratch: folder for an image on its way into the daemon; the system's for temporary files otherwise.
        settings: folder for the profile of system calls; one for temporary files otherwise.

    Attributes:
        user: `UID:GID` that containers run as; empty for the image's own, which is root.
        facts: what the probe found, for a record; see `docker_probe`.
    """

    def __init__(
        self,
        host: str | None = None,
        program: str = "docker",
        *,
        scratch: Path | None = None,
        settings: Path | None = None,
    ) -> None:
        self.program = program
        self.user = ""
        self.facts: Mapping[str, Any] = {}
        self._scratch = scratch
        self._settings = settings
        self._host = host
        self._client: Any = DockerClient(host=host, client_call=[program])

    @property
    def address(self) -> str:
        """The daemon's address, where one was given; else empty."""
        variable = "DOCKER_HOST" if self.program == "docker" else "CONTAINER_HOST"
        return self._host or os.environ.get(variable, "")

    def version(self) -> str:
        """Version of the daemon, or of podman.

        Raises:
            EngineError: the program is not installed, or the daemon does not answer within half a minute.
        """
        process.which(self.program, fix=f"apt-get install {'docker.io' if self.program == 'docker' else self.program}")
        words = [*self._words(), "version", "--format", "{{json .}}"]
        answer = process.run(words, env=_settings(), capture=True, check=False, timeout=_PATIENCE)
        try:
            answered = strict_json.read(answer.stdout)
            side = answered.get("Server") or (answered.get("Client") if self.program == "podman" else None) or {}
        except (ValueError, AttributeError):
            side = {}
        if answer.returncode != 0 or not side.get("Version"):
            raise EngineError(
                f"{self.program} version failed{f' at {self.address}' if self.address else ''}",
                why="\n".join(line for line in answer.tail[-3:] if not line.startswith("{")),
                fix=f"is its daemon running? try: {self.program} info",
            )
        return str(side["Version"])

    def cleanup(self) -> None:
        """Remove containers of invocations that were killed; a daemon's containers do not die with their client.

        A daemon may serve several machines. Only what this one started is looked at.
        """
        with self._errors("ps"):
            listed = self._client.container.list(all=True, filters=[("label", _LABEL)])
        for container in listed:
            with contextlib.suppress(DockerException):  # another invocation may be quicker
                machine, _, identity = str(container.config.labels.get(_LABEL, "")).rpartition("/")
                pid = identity.partition("-")[0]
                if machine == _machine() and pid.isdigit() and process_identity(int(pid)) != identity:
                    container.remove(force=True, volumes=True)

    def ensure_image(self, key: str, layout: Path, digest: str) -> str:
        """Load an image of an OCI layout; does nothing when it is there. See `Buildah.ensure_image`.

        What is run is what the layout holds: layers are compared by digest, whatever a name in the daemon refers to.

        Raises:
            EngineError: the layout has no such image, skopeo is missing, or the engine refused it.
        """
        reference = f"{IMAGES}/{key}:{digest.removeprefix('sha256:')[:12]}"
        layers = layers_of(layout, digest)
        if self._layers(reference) == layers:
            return reference
        if self._scratch is not None:
            self._scratch.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix="load-", dir=self._scratch) as name:
            folder = Path(name)
            single = single_layout(layout, digest, folder)
            # Through a file: skopeo's own docker client is too old for today's daemons. No policy is asked, since the
            # digest has just been taken from our own layout.
            argv = ["skopeo", "--insecure-policy", "copy", "--quiet", f"oci:{single.name}:image"]
            argv += [f"docker-archive:image.tar:{reference}"]
            try:
                process.run(argv, cwd=folder)
            except CommandError as error:
                raise EngineError(
                    f"cannot convert {digest} for {self.program}",
                    why=error.why,
                    fix="check that skopeo works here and that the temporary folder has room",
                ) from error
            with self._errors("load"):
                self._client.image.load(folder / "image.tar", quiet=True)
        if self._layers(reference) != layers:
            raise EngineError(
                f"{self.program} holds other layers under {reference} than it was given",
                why=f"given: {', '.join(layers)}; there: {', '.join(self._layers(reference)) or 'nothing'}",
                fix=f"{self.program} image rm {reference}",
            )
        return reference

    def forget_image(self, reference: str) -> None:
        """Remove an image from the daemon's storage; its layout keeps it."""
        with contextlib.suppress(DockerException):
            self._client.image.remove(reference, force=True)

    def take_tree(self, archive: Path, name: str) -> str:
        """An image of a tar archive, for the probe; its reference."""
        reference = f"{IMAGES}/{name}"
        with self._errors("import"):
            self._client.image.import_(archive, tag=reference)
        return reference

    def _layers(self, reference: str) -> list[str]:
        """The digests of an image's uncompressed layers, lowest first; none if there is no such image."""
        with self._errors("image inspect"):
            try:
                root_fs = self._client.image.inspect(reference).root_fs
            except NoSuchImage:
                return []
        return list(root_fs.layers or ()) if root_fs is not None else []

    def run(
        self,
        image: str,
        argv: Sequence[str],
        *,
        mounts: Sequence[Mount] = (),
        env: Mapping[str, str] | None = None,
        network: bool = False,
        log: Path | None = None,
        on_line: Callable[[str], None] | None = None,
        capture: bool = False,
        check: bool = True,
        timeout: float | None = None,
    ) -> Result:
        """Run a command in a fresh container; arguments as for `Buildah.run`.

        Raises:
            CommandError: `check` is set and the command failed.
            EngineError: the engine does not answer, has no such image or refused.
        """
        process.which(self.program)
        options = self._options(mounts, env, network=network)
        with contextlib.ExitStack() as stack:
            sink = None
            if log is not None:
                log.parent.mkdir(parents=True, exist_ok=True)
                sink = stack.enter_context(log.open("a", encoding="utf-8", buffering=1))
            lines = _Lines(sink, on_line, capture)
            code = self._stream(image, argv, options, lines, timeout)
        if code == _ENGINE_FAILED:
            raise EngineError(
                f"{self.program} could not run a container",
                why="\n".join(lines.tail),
                fix="see what the daemon's log says",
            )
        if check and code != 0:
            raise CommandError([self.program, "run", image, *argv], code, tuple(lines.tail))
        return Result(code, "".join(lines.whole), tuple(lines.tail))

    @contextlib.contextmanager
    def worker(
        self, image: str, argv: Sequence[str], *, mounts: Sequence[Mount] = (), env: Mapping[str, str] | None = None
    ) -> Iterator[subprocess.Popen[str]]:
        """A long-lived process in a container of its own, without network; see `Buildah.worker`.

        What is yielded is the client, whose pipes and exit code are the worker's. The daemon's container does not end
        with its client, so it is removed by name at the end of the block.

        Raises:
            EngineError: there is no such image, or the engine refused.
        """
        name = self._name()
        options = self._options(mounts, env)
        with self._errors("create"):
            self._client.container.create(
                image, [*_SHELL, *argv], name=name, interactive=True, pull="never", remove=True, **options
            )
        try:
            words = [*self._words(), "container", "start", "--attach", "--interactive", name]
            with process.piped(words, env=_settings()) as child, attended(child):
                yield child
        finally:
            self._remove(name)

    def _options(
        self, mounts: Sequence[Mount], env: Mapping[str, str] | None, *, network: bool = False
    ) -> dict[str, Any]:
        profile = self._profile(plain=plain_files(mounts))
        return {
            "entrypoint": "/bin/sh",
            "envs": dict(env or {}),
            # The same everywhere, as under buildah: what is made must not learn where.
            "hostname": "toolchain",
            "labels": {_LABEL: f"{_machine()}/{process_identity(os.getpid())}"},
            "mounts": [_mount(mount) for mount in mounts],
            "networks": ["host" if network else "none"],
            "cap_drop": list(DROPPED),
            # Where SELinux rules, a container reads no folder of a user's otherwise; nothing is relabelled for it.
            "security_options": ["label=disable", "no-new-privileges", f"seccomp={profile}"],
            **({"user": self.user} if self.user else {}),
        }

    def _profile(self, *, plain: bool) -> Path:
        if self._settings is None:
            self._settings = Path(tempfile.mkdtemp(prefix="toolchain-"))
            weakref.finalize(self, shutil.rmtree, self._settings, ignore_errors=True)
        return view.profile(self._settings, plain=plain)

    def _stream(
        self, image: str, argv: Sequence[str], options: Mapping[str, Any], lines: _Lines, timeout: float | None
    ) -> int:
        name = self._name()
        timer = threading.Timer(timeout, self._kill, [name]) if timeout is not None else None
        try:
            if timer is not None:
                timer.start()
            output = self._client.container.run(
                image, [*_SHELL, *argv], name=name, pull="never", remove=True, stream=True, **options
            )
            for stream, content in output:
                lines.take(str(stream), content.decode(errors="replace"))
        except DockerException as error:
            if not lines.tail:
                lines.tail.extend((error.stderr or str(error)).splitlines())
            return int(error.return_code)
        finally:
            if timer is not None:
                timer.cancel()
            self._remove(name)
        return 0

    def _name(self) -> str:
        return f"toolchain-{process_identity(os.getpid())}-{next(_NUMBER)}"

    def _words(self) -> list[str]:
        """The first words of the client's command line."""
        return [os.fspath(word) for word in self._client.client_config.docker_cmd]

    def _remove(self, name: str) -> None:
        with contextlib.suppress(DockerException):
            self._client.container.remove(name, force=True, volumes=True)

    def _kill(self, name: str) -> None:
        with contextlib.suppress(DockerException):
            self._client.container.kill(name)

    @contextlib.contextmanager
    def _errors(self, what: str) -> Iterator[None]:
        process.which(self.program)
        try:
            yield
        except DockerException as error:
            raise EngineError(
                f"{self.program} {what} failed",
                why=(error.stderr or str(error)).strip(),
                fix=f"is its daemon running? try: {self.program} info",
            ) from error


@dataclass
class _Lines:
    """The destination of a container's output."""

    sink: IO[str] | None
    on_line: Callable[[str], None] | None
    capture: bool
    tail: deque[str] = field(default_factory=lambda: deque(maxlen=process.TAIL_LINES * 5))
    whole: list[str] = field(default_factory=list)

    def take(self, stream: str, content: str) -> None:
        if self.sink is not None:
            self.sink.write(content)
        if self.capture and stream == "stdout":
            self.whole.append(content)
        for line in content.splitlines():
            self.tail.append(line)
            if self.on_line is not None:
                self.on_line(line)


def _settings() -> dict[str, str]:
    return {name: os.environ[name] for name in _SETTINGS if name in os.environ}


def _machine() -> str:
    """This boot of this machine, and the PID namespace that numbers of processes are of."""
    boot = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
    return f"{boot}/{Path('/proc/self/ns/pid').readlink()}"


def _mount(mount: Mount) -> list[str]:
    """A bind mount as docker and podman read it: a CSV record. Older podmans know no quotes: few fields have them."""
    fields = ["type=bind", _field(f"source={mount.source.absolute()}"), _field(f"target={mount.target}")]
    return [*fields, "readonly"] if mount.read_only else fields


def _field(text: str) -> str:
    return '"' + text.replace('"', '""') + '"' if {",", '"'} & set(text) else text
