"""Run commands and workers in docker containers; `docker_probe` checks the daemon first."""

from __future__ import annotations

import contextlib
import itertools
import logging
import os
import shutil
import subprocess
import tempfile
import time
import weakref
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, Unpack

from python_on_whales import DockerClient
from python_on_whales.exceptions import DockerException, NoSuchImage

from toolchain.core import process, strict_json
from toolchain.core.environment import clean_environment, inherited
from toolchain.core.errors import EngineError
from toolchain.core.process import CommandError, Result, RunOptions
from toolchain.core.recipe import Mount, plain_files
from toolchain.engine import container_limits, view
from toolchain.engine.attended import attended
from toolchain.engine.docker_watch import Watched, watched
from toolchain.engine.isolation import DROPPED
from toolchain.engine.limit_watch import Limits
from toolchain.engine.single import layers_of, single_layout
from toolchain.engine.storage import process_identity

LOG = logging.getLogger(__name__)

PROGRAM = "docker"
# The names of this tool's images in the daemon begin with this prefix.
IMAGES = "localhost/toolchain"
_NUMBER = itertools.count()
_LABEL = "toolchain.process"
# `docker run` exits with this code if docker itself fails, rather than the command in the container.
_ENGINE_FAILED = 125
_PATIENCE = 30.0  # seconds to wait for the docker client to answer
_INFO = 120.0  # seconds to wait for `docker info`, for which the daemon may measure its storage
_CREATION = 10.0  # seconds to wait for a container that the daemon may still be creating
_AGAIN = 0.25  # seconds between two tries to remove such a container
VARIABLES = {
    "DOCKER_HOST": "the daemon",
    "DOCKER_CONTEXT": "the daemon, by a name of the client's configuration",
    "DOCKER_TLS": "whether the daemon is reached by TLS",
    "DOCKER_TLS_VERIFY": "whether the daemon's certificate is checked",
    "DOCKER_API_VERSION": "the version of the API, for a daemon that is older than the client",
}
FILES = {
    "DOCKER_CONFIG": "the client's configuration",
    "DOCKER_CERT_PATH": "the certificates for the daemon",
    "SSH_AUTH_SOCK": "the socket of the ssh agent, for a daemon that is reached by ssh",
}
"""The environment variables that docker's client inherits, with their meanings. The variables in `FILES` hold paths."""
# The first process of a PID namespace ignores signals from its own namespace for which it has no handler. So a shell is
# the first process, and a signal ends the command as it would outside of a container.
_SHELL = ("-c", '"$@"; exit $?', "sh")


def _error_output(error: DockerException) -> str:
    return (error.stderr or "").strip() or f"it exited with {error.return_code} and printed no error"


class DockerRunner:
    """The engine that runs commands in containers of a docker daemon, by default without a network.

    Args:
        host: the daemon's address, e.g. `unix:///run/docker.sock`; by default that in the client's settings.
        scratch: the folder for images while they are loaded; by default the system's temporary folder.
        settings: the folder for the seccomp profiles; by default a temporary folder.

    Attributes:
        user: the `UID:GID` that containers run as; if it is empty, they run as the image's user.
        facts: the result of `docker_probe`, for records of builds; empty before the probe.
    """

    def __init__(self, host: str | None = None, *, scratch: Path | None = None, settings: Path | None = None) -> None:
        self.user = ""
        self.facts: Mapping[str, Any] = {}
        self._scratch = scratch
        self._settings = settings
        self._host = host
        self._data: Path | None = None
        self._client: Any = DockerClient(host=host, client_call=_call())

    @property
    def address(self) -> str:
        """The daemon's address from the caller or the environment variable `DOCKER_HOST`; empty if neither is set."""
        return self._host or os.environ.get("DOCKER_HOST", "")

    def version(self) -> str:
        """Return the daemon's version; raise an EngineError if docker is missing or the daemon does not answer."""
        process.which(PROGRAM, fix="apt-get install docker.io")
        words = [*self._words(), "version", "--format", "{{json .}}"]
        answer = process.run(words, capture=True, check=False, timeout=_PATIENCE)
        try:
            side = strict_json.read(answer.stdout).get("Server") or {}
        except (ValueError, AttributeError):
            side = {}
        if answer.returncode != 0 or not side.get("Version"):
            raise EngineError(
                "docker-failed",
                f"docker version failed{f' at {self.address}' if self.address else ''}",
                why="\n".join(line for line in answer.tail[-3:] if not line.startswith("{")),
                fix="check that its daemon is running: docker info",
            )
        return str(side["Version"])

    def cleanup(self) -> None:
        """Remove the containers of killed invocations that ran in this PID namespace since the last boot.

        A container continues to run when docker's client is killed. Containers that
        other machines or other PID namespaces started are kept.
        """
        with self._errors("ps"):
            listed = self._client.container.list(all=True, filters=[("label", _LABEL)])
        for container in listed:
            with contextlib.suppress(DockerException):  # another invocation may remove it first
                machine, _, identity = str(container.config.labels.get(_LABEL, "")).rpartition("/")
                pid = identity.partition("-")[0]
                if machine == _machine() and pid.isdigit() and process_identity(int(pid)) != identity:
                    container.remove(force=True, volumes=True)

    def ensure_image(self, key: str, layout: Path, digest: str) -> str:
        """Load an image from an OCI layout, unless it is already in the daemon, and return a reference to it.

        For the arguments, see `Buildah.ensure_image`.

        The digests of the layers in the daemon and in the layout are compared, because the daemon may have another
        image under the same name.
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
            # skopeo writes an archive that docker then loads, because skopeo's own docker client is too old for current
            # daemons. The machine's signature policy is not applied, because the image comes from our own layout.
            argv = ["skopeo", "--insecure-policy", "copy", "--quiet", f"oci:{single.name}:image"]
            argv += [f"docker-archive:image.tar:{reference}"]
            try:
                process.run(argv, cwd=folder)
            except CommandError as error:
                raise EngineError(
                    "image-not-converted",
                    f"cannot convert {digest} for docker",
                    why=error.why,
                    fix="check that skopeo works and that the disk of the temporary folder is not full",
                ) from error
            with self._errors("load"):
                self._client.image.load(folder / "image.tar", quiet=True)
        if self._layers(reference) != layers:
            raise EngineError(
                "docker-other-layers",
                f"docker's image {reference} does not have the expected layers",
                why=f"expected: {', '.join(layers)}; found: {', '.join(self._layers(reference)) or 'none'}",
                fix=f"remove the image: docker image rm {reference}",
            )
        return reference

    def forget_image(self, reference: str) -> None:
        """Remove an image from the daemon's storage, but not from its OCI layout."""
        with contextlib.suppress(DockerException):
            self._client.image.remove(reference, force=True)

    def take_tree(self, archive: Path, name: str) -> str:
        """Import a tar archive of a root folder as an image, and return a reference to the image."""
        reference = f"{IMAGES}/{name}"
        with self._errors("import"):
            self._client.image.import_(archive, tag=reference)
        return reference

    def _layers(self, reference: str) -> list[str]:
        """Return the digests of an image's uncompressed layers, lowest first; an empty list if the image is missing."""
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
        network: bool = False,
        **how: Unpack[RunOptions],
    ) -> Result:
        """Run a command in a fresh container, as `Buildah.run` does; raise an EngineError if docker cannot run it.

        The limit `hours` applies only if there is no `timeout`.
        """
        process.which(PROGRAM)
        check, name = how.get("check", True), self._name()
        words = [*self._words(), "container", "run", "--name", name]
        words += self._options(mounts, how.get("env"), network=network)
        limits = self._limits(mounts, log=how.get("log"), timed=how.get("timeout") is None)
        how["env"], how["check"] = None, False  # `env` is among the options; the exit code is checked after the limits
        timeout, begin, ended = how.get("timeout"), time.monotonic(), True
        with self._watched(name, limits) as watch:
            try:
                result = process.run([*words, image, *_SHELL, *argv], **how)
                ended = result.returncode < 0 or (timeout is not None and time.monotonic() - begin >= timeout)
            finally:
                self._remove(name, ended=ended)
        if watch.reached:
            raise container_limits.limit_error(watch.reached, f"{argv[0]} in a container of {image}")
        if result.returncode == _ENGINE_FAILED:
            raise EngineError(
                "docker-failed",
                "docker could not run a container",
                why="\n".join(result.tail),
                fix="read the log of docker's daemon",
            )
        if check and result.returncode != 0:
            raise CommandError([PROGRAM, "run", image, *argv], result.returncode, result.tail)
        return result

    @contextlib.contextmanager
    def worker(
        self, image: str, argv: Sequence[str], *, mounts: Sequence[Mount] = (), env: Mapping[str, str] | None = None
    ) -> Iterator[subprocess.Popen[str]]:
        """Yield a long-lived process in a container of its own without a network; see `Buildah.worker`.

        The yielded process is docker's client, whose pipes and exit code are those of the worker. The container does
        not end with the client, so this function removes the container after the block.
        """
        name = self._name()
        words = [*self._words(), "container", "create", "--interactive", "--name", name, *self._options(mounts, env)]
        with self._errors("create"):
            try:
                process.run([*words, image, *_SHELL, *argv])
            except BaseException as error:
                self._remove(name, ended=not isinstance(error, CommandError) or error.returncode < 0)
                raise
        try:
            words = [*self._words(), "container", "start", "--attach", "--interactive", name]
            limits = self._limits(mounts, timed=False)
            with (
                process.piped(words) as child,
                attended(child),
                self._watched(name, limits) as watch,
            ):
                yield child
            if watch.reached:
                LOG.warning("a container was ended at the limit %s", watch.reached)
        finally:
            self._remove(name)

    def _options(
        self, mounts: Sequence[Mount], env: Mapping[str, str] | None, *, network: bool = False
    ) -> Iterator[str]:
        """Yield the options of `docker container run` and `docker container create` for a container."""
        profile, limits = self._profile(plain=plain_files(mounts)), container_limits.ulimits()
        yield from ("--pull=never", "--rm", "--entrypoint", "/bin/sh")
        # Results must not depend on the machine's host name.
        yield from ("--hostname", "toolchain")
        yield from ("--label", f"{_LABEL}={_machine()}/{process_identity(os.getpid())}")
        yield from ("--network", "host" if network else "none")
        yield from ("--pids-limit", str(limits["nproc"]), "--ulimit", f"fsize={limits['fsize']}")
        # The daemon stores the output of containers on its disk. With this log driver, it stores at most 100 MB for
        # each container.
        yield from ("--log-driver", "local")
        # Without `label=disable`, SELinux would deny containers access to the user's folders.
        for option in ("label=disable", "no-new-privileges", f"seccomp={profile}"):
            yield from ("--security-opt", option)
        for name in DROPPED:
            yield from ("--cap-drop", name)
        for variable in (env or {}).items():
            yield from ("--env", "=".join(variable))
        for mount in mounts:
            yield from ("--mount", ",".join(_mount(mount)))
        if self.user:
            yield from ("--user", self.user)

    def _profile(self, *, plain: bool) -> Path:
        if self._settings is None:
            self._settings = Path(tempfile.mkdtemp(prefix="toolchain-"))
            weakref.finalize(self, shutil.rmtree, self._settings, ignore_errors=True)
        return view.profile(self._settings, plain=plain)

    def _limits(self, mounts: Sequence[Mount], *, log: Path | None = None, timed: bool) -> Limits:
        """Return the limits for a container.

        The container's own files are in the daemon's folder, which is counted only if this process can access it. An
        EngineError is raised if the daemon does not name its folder, because a container could then fill its disk.
        """
        if self._data is None:
            with self._errors("info"):
                words = [*self._words(), "info", "--format", "{{.DockerRootDir}}"]
                self._data = Path("/", process.run(words, capture=True, timeout=_INFO).stdout.strip())
        places = [mount.source for mount in mounts if not mount.read_only]
        if self._data != Path("/") and os.path.isdir(self._data):  # noqa: PTH112 - Path.is_dir may raise an error
            places.append(self._data)
        return container_limits.limits_for(Path(), places, log=log, timed=timed)

    def _watched(self, name: str, limits: Limits) -> AbstractContextManager[Watched]:
        return watched(limits, processes=lambda: self._processes(name), kill=lambda: self._kill(name))

    def _processes(self, name: str) -> int:
        words = [*self._words(), "container", "stats", "--no-stream", "--format", "{{.PIDs}}", name]
        answer = process.run(words, capture=True, check=False, timeout=_PATIENCE).stdout.strip()
        return int(answer) if answer.isdigit() else 0

    def _name(self) -> str:
        return f"toolchain-{process_identity(os.getpid())}-{next(_NUMBER)}"

    def _words(self) -> list[str]:
        return [os.fspath(word) for word in self._client.client_config.docker_cmd]

    def _remove(self, name: str, *, ended: bool = False) -> None:
        """Remove a container, unless it is gone.

        Args:
            ended: whether a signal ended docker's client, so that the daemon may still be creating the container.
        """
        end = time.monotonic() + (_CREATION if ended else 0)
        words = [*self._words(), "container", "rm", "--force", "--volumes", name]
        # docker prints the name of a container that it removed.
        while name not in process.run(words, capture=True, check=False, timeout=_PATIENCE).stdout.split():
            if time.monotonic() >= end:
                return
            time.sleep(_AGAIN)

    def _kill(self, name: str) -> None:
        with contextlib.suppress(DockerException):
            self._client.container.kill(name)

    @contextlib.contextmanager
    def _errors(self, what: str) -> Iterator[None]:
        process.which(PROGRAM)
        try:
            yield
        except (DockerException, CommandError) as error:
            raise EngineError(
                "docker-failed",
                f"docker {what} failed",
                why=error.why if isinstance(error, CommandError) else _error_output(error),
                fix="check that its daemon is running: docker info",
            ) from error


def _call() -> list[str]:
    """Return the words that run docker in a clean environment, to which `VARIABLES` and `FILES` are added.

    They begin with `env -i`, because python-on-whales passes all of the caller's environment variables to the command.
    """
    variables = clean_environment(inherited(VARIABLES, files=FILES))
    named = [f"{name}={value}" for name, value in variables.items()]
    return [process.find("env") or "/usr/bin/env", "-i", "--chdir=/", *named, process.find(PROGRAM) or PROGRAM]


def _machine() -> str:
    """Return an id for this boot of the machine and this process's PID namespace."""
    boot = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
    return f"{boot}/{Path('/proc/self/ns/pid').readlink()}"


def _mount(mount: Mount) -> list[str]:
    """Return the fields of the CSV record that describes a bind mount in docker's option `--mount`."""
    fields = ["type=bind", _field(f"source={mount.source.absolute()}"), _field(f"target={mount.target}")]
    return [*fields, "readonly"] if mount.read_only else fields


def _field(text: str) -> str:
    return '"' + text.replace('"', '""') + '"' if {",", '"'} & set(text) else text
