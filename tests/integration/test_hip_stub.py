"""The functions that data/hip.toml lists, compared with those of Debian's own HIP libraries."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from toolchain.catalog.rocm import Rocm, rocms, stubs_of
from toolchain.core.cache import Cache, default_cache
from toolchain.core.errors import SourceError, UnreachableError
from toolchain.sources.mirrors import apt_mirrors
from toolchain.sources.store import Store
from toolchain.sources.suites import Package, Suite
from toolchain.stages.elf import read_linked

POOL = "pool/main/r/rocm-hipamd"
LIBRARIES = {
    "5": ("5.7.1-6+deb13u1", 8923692, "a60c313b59c09d776190a6e70b13337992240227f365ce4b91bb476d47a776d7"),
    "6": ("6.4.3-5", 9385096, "0c90c3f0a1f02ab5525a11c5b1879f1cb05bee9c7a2a79aa36863f57c85f7177"),
    "7": ("7.2.4-1~exp2", 9958752, "265743c8647c0200b014062d3fdcea617c1b7c87a214f666a86dc1da8dd53192"),
}


@pytest.mark.parametrize("row", rocms(), ids=lambda row: f"rocm{row.major}")
def test_debian_library_has_each_function_with_its_version_node(row: Rocm, tmp_path: Path) -> None:
    major = row.major
    version, size, sha256 = LIBRARIES[major]
    package = Package(
        name=f"libamdhip64-{major}", version=version, file=f"libamdhip64-{major}_{version}_amd64.deb", sha256=sha256,
        size=size, pool=POOL,
    )  # fmt: skip
    if shutil.which("dpkg-deb") is None:
        pytest.skip("NO DPKG: the real libraries of HIP lie in Debian's packages")
    try:
        mirror = next(one for one in apt_mirrors() if not one.security)
        path = Suite(tmp_path / "apt", mirror).download(package, Store(Cache(default_cache()).store))
    except (SourceError, UnreachableError) as error:
        pytest.skip(f"{package.file} IS ON NO MIRROR: ROCm {major}'s rows are not held against it ({error.what})")
    subprocess.run(["dpkg-deb", "--extract", path, tmp_path / "root"], check=True)
    (stub,) = (one for one in stubs_of([major]) if one.name == f"rocm{major}")
    (library,) = (one for one in tmp_path.glob(f"root/usr/lib/*/{stub.soname}*") if not one.is_symlink())
    real = read_linked(library)
    assert real.soname == stub.soname
    assert {name: real.exports.get(name) for name in stub.symbols} == {n: (node,) for n, node in stub.symbols.items()}
    assert real.exports.get("hipMalloc"), "one that no row names is there too: the reading finds what is there"
    assert "hipNoSuchFunction" not in real.exports
