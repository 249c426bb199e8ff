"""The same `run` as buildah's, on docker or podman through python-on-whales; contract checks use it where it works."""

from __future__ import annotations

import contextlib
import itertools
import logging
import os
import tempfile
import threading
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from python_on_whales import DockerClient
from python_on_whales.exceptions import DockerException

from toolchain import process
from toolchain.engine.single import single_layout
from toolchain.engine.storage import process_identity
from toolchain.errors import EngineError
from toolchain.process import CommandError, Result
from toolchain.recipe import Mount

LOG = logging.getLogger(__name__)

_NUMBER = itertools.count()
_LABEL = "toolchain.process"
# docker's and podman's own failures; the command in the container has the other codes.
_ENGINE_FAILED = 125


class DockerRunner:
    """Runs commands in containers of a docker daemon or of podman.

    Args:
        host: the daemon's address, e.g. `unix:///run/docker.sock`; the program's default otherwise.
        program: `docker` or `podman`.

    Attributes:
        network: what a container without network gets: `none`, or `host` after the engine refused to make one. Then
            nothing keeps the command from the network, and callers must not claim it.
    """

    def __init__(self, host: str | None = None, program: str = "docker") -> None:
        self.program = program
        self.network = "none"
        self._client: Any = DockerClient(host=host, client_call=[program])

    def version(self) -> str:
        """Version of the daemon, or of podman.

        Raises:
            EngineError: the program is not installed, or the daemon does not answer.
        """
        process.which(self.program, fix=f"apt-get install {'docker.io' if self.program == 'docker' else self.program}")
        with self._errors("version"):
            answer = self._client.version()
            side = answer.server or answer.client
            return str(side.version) if side is not None else "unknown"

    def cleanup(self) -> None:
        """Remove containers of invocations that were killed; a daemon's containers do not die with their client."""
        with self._errors("ps"):
            for container in self._client.container.list(all=True, filters=[("label", _LABEL)]):
                identity = str(container.config.labels.get(_LABEL, ""))
                pid = identity.partition("-")[0]
                if not pid.isdigit() or process_identity(int(pid)) != identity:
                    with contextlib.suppress(DockerException):
                        container.remove(force=True, volumes=True)

    def ensure_image(self, key: str, layout: Path, digest: str) -> str:
        """Load an image of an OCI layout; does nothing when it is there. See `Buildah.ensure_image`.

        Raises:
            EngineError: the layout has no such image, skopeo is missing, or the engine refused it.
        """
        reference = f"localhost/toolchain/{key}:{digest.removeprefix('sha256:')[:12]}"
        with self._errors("image inspect"):
            if self._client.image.exists(reference):
                return reference
        with tempfile.TemporaryDirectory(prefix="toolchain-load-") as name:
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
        return reference

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
        workdir: str | None = None,
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
        options: dict[str, Any] = {
            "entrypoint": argv[0],
            "envs": dict(env or {}),
            "mounts": [_mount(mount) for mount in mounts],
            **({"workdir": workdir} if workdir is not None else {}),
        }
        while True:
            options["networks"] = ["host" if network else self.network]
            lines = _Lines(log=log, on_line=on_line, capture=capture)
            code = self._stream(image, argv[1:], options, lines, timeout)
            if code != _ENGINE_FAILED:
                break
            why = "\n".join(lines.tail)
            if network or self.network == "host" or "network" not in why.lower():
                raise EngineError(
                    f"{self.program} could not run a container", why=why, fix="see what the daemon's log says"
                )
            LOG.warning("%s cannot make a container without network; checks run on the host's", self.program)
            self.network = "host"
        if check and code != 0:
            raise CommandError([self.program, "run", image, *argv], code, tuple(lines.tail))
        return Result(code, "".join(lines.whole), tuple(lines.tail))

    def _stream(
        self, image: str, words: Sequence[str], options: Mapping[str, Any], lines: _Lines, timeout: float | None
    ) -> int:
        identity = process_identity(os.getpid()) or str(os.getpid())
        name = f"toolchain-{identity}-{next(_NUMBER)}"
        timer = threading.Timer(timeout, self._kill, [name]) if timeout is not None else None
        try:
            if timer is not None:
                timer.start()
            output = self._client.container.run(
                image, list(words), name=name, labels={_LABEL: identity}, pull="never", stream=True, **options
            )
            with lines:
                for stream, content in output:
                    lines.take(str(stream), content.decode(errors="replace"))
        except DockerException as error:
            if not lines.tail:
                lines.tail.extend((error.stderr or str(error)).splitlines())
            return int(error.return_code)
        finally:
            if timer is not None:
                timer.cancel()
            with contextlib.suppress(DockerException):
                self._client.container.remove(name, force=True, volumes=True)
        return 0

    def _kill(self, name: str) -> None:
        with contextlib.suppress(DockerException):
            self._client.container.kill(name)

    @contextlib.contextmanager
    def _errors(self, what: str) -> Any:
        process.which(self.program)
        try:
            yield
        except DockerException as error:
            raise EngineError(
                f"{self.program} {what} failed",
                why=(error.stderr or str(error)).strip(),
                fix=f"is its daemon running? try: {self.program} info",
            ) from error


class _Lines:
    """Where a container's output goes."""

    def __init__(self, *, log: Path | None, on_line: Callable[[str], None] | None, capture: bool) -> None:
        self.tail: deque[str] = deque(maxlen=process.TAIL_LINES * 5)
        self.whole: list[str] = []
        self._capture = capture
        self._on_line = on_line
        self._log = log
        self._stack = contextlib.ExitStack()
        self._sink: Any = None

    def __enter__(self) -> None:
        if self._log is not None:
            self._log.parent.mkdir(parents=True, exist_ok=True)
            self._sink = self._stack.enter_context(self._log.open("a", encoding="utf-8"))

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def take(self, stream: str, content: str) -> None:
        if self._sink is not None:
            self._sink.write(content)
        if self._capture and stream == "stdout":
            self.whole.append(content)
        for line in content.splitlines():
            self.tail.append(line)
            if self._on_line is not None:
                self._on_line(line)


def _mount(mount: Mount) -> list[str]:
    """A bind mount as docker and podman read it: a CSV record, its fields quoted."""
    source = os.fspath(mount.source.absolute()).replace('"', '""')
    target = mount.target.replace('"', '""')
    fields = ["type=bind", f'"source={source}"', f'"target={target}"']
    return [*fields, "readonly"] if mount.read_only else fields
