"""A signed archive of source packages in a folder, which the system's apt reads."""

from __future__ import annotations

import hashlib
import io
import shutil
import subprocess
import tarfile
from dataclasses import dataclass
from pathlib import Path

import pytest

from toolchain.sources import distro
from toolchain.sources.mirrors import Mirror


@dataclass
class Archive:
    """A signed archive in a folder, with a suite for each call of `suite`."""

    root: Path
    key: Path

    def suite(self, name: str, packages: dict[str, str], until: str = "") -> None:
        """Write and sign a suite that lists these packages, each with one version."""
        text = ""
        for package, version in packages.items():
            data = f"{package} {version}".encode()
            file = f"{package}_{version}.orig.tar.xz"
            (self.root / "pool").mkdir(parents=True, exist_ok=True)
            content = io.BytesIO()
            with tarfile.open(fileobj=content, mode="w:xz") as tar:
                member = tarfile.TarInfo(f"{package}/llvm/CMakeLists.txt")
                member.size = len(data)
                tar.addfile(member, io.BytesIO(data))
            (self.root / "pool" / file).write_bytes(content.getvalue())
            sums = f"{hashlib.sha256(content.getvalue()).hexdigest()} {len(content.getvalue())} {file}"
            text += f"Package: {package}\nFormat: 3.0 (quilt)\nBinary: {package}\nArchitecture: all\n"
            text += (
                f"Version: {version}-1\nDirectory: pool\nFiles:\n {'0' * 32} 1 {package}.dsc\n {'0' * 32} 1 {file}\n"
            )
            text += f"Checksums-Sha256:\n {'0' * 64} 1 {package}.dsc\n {sums}\n\n"
        folder = self.root / "dists" / name
        (folder / "main/source").mkdir(parents=True, exist_ok=True)
        (folder / "main/source/Sources").write_text(text)
        row = f" {hashlib.sha256(text.encode()).hexdigest()} {len(text)} main/source/Sources"
        release = f"Origin: Debian\nSuite: {name}\nCodename: {name}\nComponents: main\n"
        release += "Date: Mon, 02 Feb 2026 10:00:00 UTC\n" + (f"Valid-Until: {until}\n" if until else "")
        (folder / "Release").write_text(release + f"SHA256:\n{row}\n")
        (folder / "InRelease").unlink(missing_ok=True)
        gpg = ["gpg", "--homedir", str(self.root / "gnupg"), "--batch"]
        signed = ["--clearsign", "--output", str(folder / "InRelease"), str(folder / "Release")]
        subprocess.run([*gpg, *signed], check=True, capture_output=True)

    def lose(self, file: str) -> None:
        """Remove a file from the pool."""
        (self.root / "pool" / file).unlink()

    def mirror(self, suite: str) -> Mirror:
        return Mirror(site=f"copy:{self.root}", suite=suite, components=("main",), keyring=str(self.key))


@pytest.fixture(scope="module")
def signed(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    for program in ("apt-get", "gpg", "dpkg"):
        if shutil.which(program) is None:
            pytest.skip(f"{program} is not installed: suites as sources are NOT tested")
    top = tmp_path_factory.mktemp("keys")
    home, key = top / "gnupg", top / "archive.gpg"
    home.mkdir(mode=0o700)
    gpg = ["gpg", "--homedir", str(home), "--batch", "--passphrase", "", "--yes"]
    subprocess.run([*gpg, "--quick-gen-key", "test", "ed25519"], check=True, capture_output=True)
    subprocess.run([*gpg, "--output", str(key), "--export"], check=True, capture_output=True)
    return home, key


@pytest.fixture
def archive(signed: tuple[Path, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Archive:
    home, key = signed
    made = Archive(tmp_path / "archive", key)
    made.root.mkdir()
    (made.root / "gnupg").symlink_to(home)
    monkeypatch.setattr(distro, "apt_mirrors", lambda: [made.mirror("bookworm")])
    return made
