"""Make root file systems from Debian packages with mmdebstrap."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import tempfile
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from dataclasses import replace
from pathlib import Path

from toolchain.catalog.bases import BaseRecipe
from toolchain.core import process
from toolchain.core.digest import EPOCH
from toolchain.core.environment import network_environment
from toolchain.core.errors import BuildError, SourceError, UnreachableError
from toolchain.core.filesystem import emptied
from toolchain.core.process import CommandError
from toolchain.oci.layer import Layer, normalise_tar
from toolchain.stages.stage import Workspace

# This command prints the name, version, architecture and SHA-256 of each package that is installed in the new root.
_LIST_PACKAGES = (
    "dpkg-query -W -f '${Package}:${Architecture}=${Version}\\n' | sed 's/:all=/=/'"
    " | xargs apt-cache show --no-all-versions 2>/dev/null"
    " | grep -E '^(Package|Version|Architecture|SHA256):|^$'"
)


def write_layer(recipe: BaseRecipe, packages: Path, workspace: Workspace) -> Layer:
    """Return the layer of a base; write the list of its packages to the file `packages`.

    The layer is written while mmdebstrap writes the tar, so the tar needs no disk. See `run_mmdebstrap` for the errors.
    """
    pipe = workspace.work() / "rootfs.tar"
    pipe.unlink(missing_ok=True)
    os.mkfifo(pipe)
    with ThreadPoolExecutor(1) as pool:
        reading = pool.submit(normalise_tar, pipe, workspace.work() / "layer.tar")
        try:
            # mmdebstrap opens and closes the pipe once before it writes. This process keeps the pipe open, because the
            # reader would take that for the end of the tar.
            with pipe.open("wb"):
                try:
                    _mmdebstrap(recipe, pipe, packages, workspace)
                except BuildError:
                    # A refused tar makes mmdebstrap fail, because nobody reads the rest. Then the reader ends at once.
                    if wait([reading], timeout=1).done:
                        reading.result()
                    raise
        finally:
            # An interrupt can come before the pipe is open. This ends the wait of the reader for a writer.
            os.close(os.open(pipe, os.O_RDWR))
        return reading.result()


def content_options(recipe: BaseRecipe) -> list[str]:
    """Return the options of mmdebstrap that change the content of a base, in addition to its packages."""
    # The image must not contain these files, because they name the build machine or its mirror.
    of_here = ("apt/sources.list", "apt/sources.list.d/*", "hostname", "resolv.conf")
    hooks = ["rm -f " + " ".join(f'"$1"/etc/{name}' for name in of_here), ': > "$1"/etc/machine-id']
    return [*(f"--customize-hook={hook}" for hook in hooks), *_exclusion(recipe.exclude)]


def _mmdebstrap(recipe: BaseRecipe, tar: Path, packages: Path, workspace: Workspace) -> None:
    listing = f'chroot "$1" sh -c {shlex.quote(_LIST_PACKAGES)} > {shlex.quote(str(packages))}'
    run_mmdebstrap(
        workspace,
        tar,
        suite=recipe.suite,
        variant=recipe.variant,
        packages=recipe.packages,
        what=f"base {recipe.name}",
        options=[f"--customize-hook={listing}", *content_options(recipe)],
    )


def _exclusion(patterns: Sequence[str]) -> list[str]:
    """Return the options that exclude files of packages.

    One hook makes dpkg exclude files. Another hook removes the excluded files of the essential packages, because
    mmdebstrap unpacks them without dpkg.
    """
    if not patterns:
        return []
    rules = "".join(f"path-exclude={pattern}\n" for pattern in patterns) + "path-include=/usr/share/doc/*/copyright\n"
    folder = '"$1"/etc/dpkg/dpkg.cfg.d'
    named = " -o ".join(f"-path {shlex.quote(pattern.lstrip('/'))}" for pattern in patterns)
    return [
        f"--setup-hook=mkdir -p {folder} && printf %s {shlex.quote(rules)} > {folder}/exclude",
        f"--customize-hook=cd \"$1\" && find usr ! -type d \\( {named} \\) ! -path 'usr/share/doc/*/copyright' -delete",
    ]


def run_mmdebstrap(
    workspace: Workspace,
    tar: Path,
    *,
    suite: str,
    variant: str,
    packages: Sequence[str],
    what: str,
    options: Sequence[str],
) -> None:
    """Make a tar archive of a root file system, from the first mirror of the distribution in apt's configuration.

    UnreachableError is raised if --offline is given or a host is unreachable, SourceError if no mirror is found,
    EngineError if mmdebstrap is not installed, and BuildError if mmdebstrap fails for any other reason.

    Args:
        what: a description of the root file system, for messages.
    """
    from toolchain.sources.mirrors import apt_mirrors  # noqa: PLC0415 - plans need no mirrors

    if workspace.request.offline:
        raise UnreachableError(
            "offline-missing",
            f"{what} is not in the cache, and --offline forbids the download of its packages",
            fix="run the command once without --offline, or import a bundle",
        )
    main = next((mirror for mirror in apt_mirrors() if not mirror.security), None)
    if main is None:
        raise SourceError(
            "mirrors-unknown",
            "apt has no package mirror configured",
            fix="add one to /etc/apt/sources.list, and run apt-get update",
        )
    process.which("mmdebstrap")
    # apt fails if the path of the root contains quotes, so a temporary folder is used if the path contains unusual
    # characters.
    plain = re.fullmatch(r"[A-Za-z0-9_./+-]+", str(workspace.cache.work)) is not None
    place = workspace.work() / "mmdebstrap" if plain else Path(tempfile.mkdtemp(prefix="toolchain-"))
    # A killed run may have left a root file system in this folder.
    emptied(place)
    # The mirror's address is passed in a file, because it may contain a password and the log shows commands.
    mirror = place / "mirror.sources"
    mirror.touch(mode=0o600)
    mirror.write_text(replace(main, suite=suite, components=("main",)).stanza("deb", login=True), encoding="utf-8")
    # fmt: off
    argv = [
        "mmdebstrap", "--mode=auto", f"--variant={variant}", f"--include={','.join(packages)}", *options,
        "--format=tar", suite, str(tar), str(mirror),
    ]
    # fmt: on
    try:
        process.run(
            process.contained(argv, network=True),
            env={
                **network_environment(),
                # The root file system is deleted once it is packed, so dpkg need not flush each file to disk.
                "DPKG_FORCE": "unsafe-io",
                "SOURCE_DATE_EPOCH": str(EPOCH),
                "TMPDIR": str(place),
            },
            log=workspace.log,
            on_line=workspace.on_line,
        )
    except CommandError as error:
        raise _bootstrap_error(what, error) from error
    finally:
        shutil.rmtree(place, ignore_errors=True)


def _bootstrap_error(what: str, error: CommandError) -> BuildError | UnreachableError:
    output = "\n".join(error.tail)
    if match := re.search(r"(?:Temporary failure|Could not) resolv(?:ing|e) '?([^'\s]+)'?", output):
        return UnreachableError(
            "mirror-unreachable",
            f"{what} could not be made, because the host {match[1].strip(chr(39))} could not be resolved",
            why="the packages of a base come from the distribution's mirror",
            fix="check the network, the name server, or the proxy in http_proxy",
        )
    if match := re.search(r"(?:Could not|Unable to) connect to '?([^'\s]+)", output):
        return UnreachableError(
            "mirror-unreachable",
            f"{what} could not be made, because {match[1].rstrip(':')} does not answer",
            why="the packages of a base come from the distribution's mirror",
            fix="check the network, or the proxy in http_proxy; then run the command again",
        )
    return BuildError(
        "base-not-made",
        f"mmdebstrap could not make {what}",
        why=error.why,
        fix="check that the mirror has this suite, then run the command again",
    )
