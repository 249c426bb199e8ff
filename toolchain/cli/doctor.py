"""Check whether this machine has the programs and resources that builds need."""

from __future__ import annotations

import os
import re
import socket
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal
from urllib.parse import urlsplit

from toolchain.catalog.architectures import MACHINES, emulator_name, this_machine
from toolchain.core import console, process
from toolchain.core.cache import Cache
from toolchain.core.errors import EngineError, ResourceError, ToolchainError
from toolchain.engine import attack, namespace, resources, view
from toolchain.engine.probe import probe
from toolchain.engine.storage import Storage
from toolchain.stages.llvm_subset import FULL_DISK

Status = Literal["ok", "warn", "fail"]

_OLDEST_BUILDAH = (1, 24)  # older versions do not support cache mounts in RUN
_PATIENCE = 3.0
_GIT_HOST = "github.com"
_KEYRING = Path("/usr/share/keyrings/debian-archive-keyring.gpg")


@dataclass(frozen=True)
class Check:
    """The result of a check.

    Args:
        status: `ok`; `warn` if builds may work nevertheless; `fail` if `doctor` must exit with an error.
        fix: what the user can do; an empty string if the status is `ok`.
        code: the exit code of `doctor` if this is the first check that failed.
    """

    name: str
    status: Status
    detail: str
    fix: str = ""
    code: int = EngineError.code


def examine(cache: Cache, *, runner: str = "buildah", runner_why: str = "the default") -> Iterator[Check]:
    """Yield the result of every check; a check fails if it raises a ToolchainError or an OSError.

    Args:
        runner: the program that runs contract checks and kernel workers, `buildah` or `docker`.
        runner_why: where the choice of the runner comes from, for display.
    """
    checks: tuple[tuple[str, Callable[[Cache], Check]], ...] = (
        ("cache", _cache),
        ("user", _user),
        ("buildah", _buildah),
        ("namespaces", _namespaces),
        ("storage", _storage),
        ("isolation", _isolation),
        ("mmdebstrap", lambda _: _program("mmdebstrap", "it builds the base image")),
        ("skopeo", lambda _: _program("skopeo", "it loads images into docker", needed=False)),
        ("keyring", _keyring),
        ("disk", _disk),
        ("memory", _memory),
        ("runner", lambda cache: _runner(cache, runner, runner_why)),
        ("docker", _docker),
        ("emulators", _emulators),
        ("mirrors", _mirrors),
        ("git-host", _git_host),
    )
    for name, check in checks:
        try:
            yield check(cache)
        except ToolchainError as error:
            why = f" ({_first(error.why)})" if error.why else ""
            yield Check(name, "fail", f"{error.what}{why}", error.fix, error.code)
        except OSError as error:
            named = f"{error.filename}: " if error.filename else ""
            yield Check(name, "fail", f"{named}{error.strerror}", "check that folder, or choose another with --cache")


def exit_code(checks: list[Check]) -> int:
    """Return the exit code of the first failed check, or 0 if none failed."""
    return next((check.code for check in checks if check.status == "fail"), 0)


def _first(text: str) -> str:
    return text.strip().splitlines()[0] if text.strip() else ""


def _run(*argv: str, timeout: float = 20.0) -> process.Result:
    return process.run(list(argv), capture=True, check=False, timeout=timeout)


def _missing(name: str, why: str, *, needed: bool = True, package: str = "") -> Check:
    status: Status = "fail" if needed else "warn"
    return Check(name, status, f"not installed; {why}", f"apt-get install {package or name}")


def _program(name: str, why: str, *, needed: bool = True) -> Check:
    if process.find(name) is None:
        return _missing(name, why, needed=needed)
    version = _first(_run(name, "--version").stdout)
    match = re.search(r"\d+(\.\d+)+", version)
    return Check(name, "ok", match.group(0) if match else version)


def _cache(cache: Cache) -> Check:
    cache.check()
    cache.make()  # mark a new or empty folder as a cache, before later checks write files to it
    return Check("cache", "ok", str(cache.root))


def _user(_: Cache) -> Check:
    if outside := os.environ.get(namespace.INSIDE):
        return Check("user", "ok", f"user {outside}, as root of a namespace with subordinate ids")
    if os.geteuid() != 0:
        namespace.require()
    return Check("user", "ok", "root")


def _buildah(_: Cache) -> Check:
    if process.find("buildah") is None:
        return _missing("buildah", "it builds all layers")
    program = _program("buildah", "")
    numbers = tuple(int(part) for part in re.findall(r"\d+", program.detail)[:2])
    if numbers < _OLDEST_BUILDAH:
        oldest = ".".join(map(str, _OLDEST_BUILDAH))
        return Check("buildah", "fail", f"{program.detail} is too old", f"install buildah {oldest} or newer")
    return program


def _namespaces(cache: Cache) -> Check:
    tried = process.run(view.command(["/bin/sh", "-c", ":"], cache.engine / "settings"), check=False, timeout=20)
    if tried.returncode == 0:
        return Check("namespaces", "ok", "a process can have its own user, mount, PID and network namespaces")
    sysctl = Path("/proc/sys/kernel/apparmor_restrict_unprivileged_userns")
    restricted = sysctl.is_file() and sysctl.read_text(encoding="ascii").strip() == "1"
    fix = "sysctl kernel.apparmor_restrict_unprivileged_userns=0" if restricted else "run as root"
    return Check("namespaces", "fail", next(iter(tried.tail), ""), fix)


def _storage(cache: Cache) -> Check:
    driver = Storage(cache).driver
    if driver == "overlay":
        return Check("storage", "ok", f"overlay, in {cache.engine}")
    return Check(
        "storage",
        "warn",
        f"{driver}: every container is a full copy of its image",
        "put the cache on a file system that supports overlay mounts (ext4, xfs), with --cache",
    )


def _isolation(cache: Cache) -> Check:
    mode = probe(Storage(cache), again=True)
    first, count = view.ids()
    held = f"a program in a build could not escape by any of: {', '.join(attack.ATTEMPTS)}"
    seen = "a container without a network sees no interface except loopback"
    return Check("isolation", "ok", f"{mode} in a user namespace ({count} ids from {first} on); {held}; {seen}")


def _keyring(_: Cache) -> Check:
    if _KEYRING.is_file():
        return Check("keyring", "ok", str(_KEYRING))
    return _missing("keyring", "it verifies the packages of the base", package="debian-archive-keyring")


def _disk(cache: Cache) -> Check:
    free = resources.disk_free(cache.root)
    detail = f"{console.size(free)} free at {cache.root}; a full LLVM needs {console.size(FULL_DISK)}"
    if free >= FULL_DISK:
        return Check("disk", "ok", detail)
    return Check("disk", "fail", detail, "free disk space, or choose another folder with --cache", ResourceError.code)


def _memory(_: Cache) -> Check:
    free = resources.memory_available()
    jobs = ", ".join(f"{resources.jobs_for(kind)} {kind}" for kind in resources.MEMORY)
    detail = f"{console.size(free)} available, {resources.cores()} cores; jobs at once: {jobs}"
    if free < resources.MEMORY["compile"]:
        return Check("memory", "fail", detail, "stop other programs, or use a larger machine", ResourceError.code)
    if free < resources.MEMORY["link"]:
        return Check("memory", "warn", detail, "linking all of LLVM and MLIR may need more", ResourceError.code)
    return Check("memory", "ok", detail)


def _runner(cache: Cache, name: str, why: str) -> Check:
    """Test the isolation of docker's containers if docker is the runner; the other checks already cover buildah."""
    if name == "buildah":
        return Check("runner", "ok", f"buildah, {why}: contract checks and kernels run where the layers are built")
    from toolchain.engine.docker_probe import describe, proved  # noqa: PLC0415 - the docker client is slow to import

    try:
        return Check("runner", "ok", f"{name}, {why}: {describe(proved(cache))}")
    except EngineError as error:
        cause = f" ({_first(error.why)})" if error.why else ""
        return Check("runner", "fail", f"{name}, {why}: {error.what}{cause}", error.fix, error.code)


def _docker(_: Cache) -> Check:
    """Check whether docker's daemon responds, without starting a container."""
    if process.find("docker") is None:
        return Check("docker", "warn", "not installed; only --runner docker needs it", "apt-get install docker.io")
    from toolchain.engine.docker import DockerRunner  # noqa: PLC0415 - the docker client is slow to import

    try:
        version = DockerRunner().version()
    except EngineError as error:
        detail = f"does not answer: {_first(error.why)}; only --runner docker needs it"
        return Check("docker", "warn", detail, "start its daemon")
    return Check("docker", "ok", f"{version} answers; `toolchain doctor --runner docker` tries its containers")


def _emulators(_: Cache) -> Check:
    here = this_machine()
    names = {arch: emulator_name(arch) for arch in sorted(set(MACHINES) - {here})}
    missing = {name for name in names.values() if process.find(name) is None}
    words = [f"{arch}: {name}{' is not installed' if name in missing else ''}" for arch, name in names.items()]
    detail = f"{'; '.join(words)} (this machine: {here})"
    if not missing:
        return Check("emulators", "ok", detail)
    return Check(
        "emulators",
        "warn",
        f"{detail}; without it, a layer for that architecture needs --no-contract",
        "apt-get install qemu-user-static",
    )


def _mirrors(_: Cache) -> Check:
    if process.find("apt-get") is None:
        return Check("mirrors", "warn", "apt is not installed; debian bases need it", "use --base with a local image")
    listed = _run("apt-get", "indextargets", "--format", "$(SITE)", "Created-By: Packages").stdout.split()
    sites = list(dict.fromkeys(site for site in listed if "://" in site))
    local = [site for site in listed if site.startswith(("file:", "/"))]
    if not sites and not local:
        return Check("mirrors", "warn", "apt has no package lists", "apt-get update")
    silent = [site for site in sites if not _reachable(site)]
    if silent and len(silent) == len(sites):
        return Check("mirrors", "warn", f"{len(sites)} configured, none answers", "check the network, or use --offline")
    return Check("mirrors", "ok", f"{len(sites) - len(silent)} of {len(sites)} configured mirrors answer")


def _reachable(address: str) -> bool:
    """Return whether the host of an HTTP URL, or the proxy for it, accepts a connection; True for other URLs."""
    try:
        scheme = urlsplit(address).scheme
        parts = urlsplit(os.environ.get(f"{scheme}_proxy") or address)
        if parts.scheme not in {"http", "https"} or parts.hostname is None:
            return True
        port = parts.port or (443 if parts.scheme == "https" else 80)
        with socket.create_connection((parts.hostname, port), _PATIENCE):
            return True
    except (OSError, ValueError):  # a proxy variable may contain something other than a URL
        return False


def _git_host(_: Cache) -> Check:
    if _reachable(f"https://{_GIT_HOST}"):
        return Check("git-host", "ok", f"{_GIT_HOST} answers")
    return Check(
        "git-host",
        "warn",
        f"{_GIT_HOST} does not answer",
        "give sources as local checkouts (--source NAME=PATH) or the distribution's (--source llvm=distro:PACKAGE)",
    )
