"""The files that a kernel's module reaches: an extra file costs a compile, a missing one selects a wrong object."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.refusals import refused
from toolchain.kernels.reached import Reach
from toolchain.kernels.rules import parsed


def tree(root: Path, **files: str) -> Path:
    for name, text in files.items():
        path = root / f"{name.replace('__', '/')}.py"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return root


def reached(root: Path, source: str, *, base: str = "", search: tuple[str, ...] = ()) -> set[str]:
    return set(Reach(root, search).digests(base, source))


@pytest.mark.parametrize(
    "line",
    [
        "import b",
        "import b as other",
        "from b import x",
        "from b import *",
        "from . import b",
        "from .b import x",
        "def f():\n    import b",
        "try:\n    import b\nexcept ImportError:\n    pass",
        "if False:\n    from b import x",
    ],
)
def test_import_in_any_form_is_followed(tmp_path: Path, line: str) -> None:
    tree(tmp_path, a=line, b="import c", c="", d="")
    assert reached(tmp_path, "a.py") == {"a.py", "b.py", "c.py"}


def test_init_files_of_packages_are_reached(tmp_path: Path) -> None:
    tree(tmp_path, src__pack__k="from .low import one\nimport pack2.deep.x", src__pack__low__one="", src__other="")
    for folder in ("src/pack", "src/pack/low"):
        (tmp_path / folder / "__init__.py").write_text("")
    tree(tmp_path, src__pack2__deep__x="")
    (tmp_path / "src/pack2/__init__.py").write_text("from . import late")
    tree(tmp_path, src__pack2__late="")
    assert reached(tmp_path, "src/pack/k.py", base="src") == {
        "src/pack/k.py", "src/pack/__init__.py", "src/pack/low/__init__.py", "src/pack/low/one.py",
        "src/pack2/__init__.py", "src/pack2/late.py", "src/pack2/deep/x.py",
    }  # fmt: skip


def test_module_outside_the_tree_is_not_reached(tmp_path: Path) -> None:
    tree(tmp_path, a="import triton, torch\nimport triton.language as tl")
    assert reached(tmp_path, "a.py") == {"a.py"}


def test_import_is_searched_in_further_folders_of_the_module_path(tmp_path: Path) -> None:
    tree(tmp_path, src__a="import lib.b", lib__b="")
    assert reached(tmp_path, "src/a.py", base="src") == {"src/a.py"}
    assert reached(tmp_path, "src/a.py", base="src", search=("",)) == {"src/a.py", "lib/b.py"}


def test_extension_module_is_reached(tmp_path: Path) -> None:
    tree(tmp_path, a="import fast")
    (tmp_path / "fast.cpython-312-x86_64-linux-gnu.so").write_bytes(b"\x7fELF")
    assert "fast.cpython-312-x86_64-linux-gnu.so" in reached(tmp_path, "a.py")


@pytest.mark.parametrize(
    "line",
    [
        "open('table.json')",
        "x = __import__('d')",
        "import importlib\nimportlib.import_module('d')",
        "from pathlib import Path\nPath('d').read_text()",
        "import sys\nsys.path.append('d')",
        "@decorated\ndef f():\n    open('x')",
        "def f():\n    open('x')\nf()",
        "def f():\n    open('x')\ndef g(a=f()):\n    pass",
        "def f():\n    open('x')\ndef g():\n    return f()\ng()",
        "def f():\n    open('x')\ngetattr(me, 'f')()",
        "class C:\n    def f(self):\n        open('x')",
        "def broken(:",
    ],
)
def test_module_that_may_read_other_files_reaches_the_whole_tree(tmp_path: Path, line: str) -> None:
    tree(tmp_path, a=line, d="")
    (tmp_path / "table.json").write_text("{}")
    assert reached(tmp_path, "a.py") == {"a.py", "d.py", "table.json"}


def test_uncalled_function_reaches_nothing(tmp_path: Path) -> None:
    """Host code around the kernels writes tables and opens files, but a compile does not run it."""
    tree(tmp_path, a="from b import use", b="def use():\n    pass\ndef report():\n    open('x')", d="")
    assert reached(tmp_path, "a.py") == {"a.py", "b.py"}
    tree(tmp_path, a="from b import report as told\ntold()")
    assert "d.py" in reached(tmp_path, "a.py")


def test_import_cycle_ends(tmp_path: Path) -> None:
    tree(tmp_path, a="import b", b="import a")
    assert reached(tmp_path, "a.py") == {"a.py", "b.py"}


def test_link_and_file_have_distinct_digests(tmp_path: Path) -> None:
    """A module can tell a link from a file, so their results must not share a name."""
    (tmp_path / "link").symlink_to("data")
    (tmp_path / "file").write_text("link data")
    (tmp_path / "other").write_text("data")
    assert len(set(Reach(tmp_path).whole.values())) == 3
    assert not Reach(tmp_path).whole["link"].startswith("sha256:")


@pytest.mark.parametrize("line", ["not " * 100_000 + "1", "1" + "+1" * 100_000])
def test_module_that_nests_too_deeply_for_the_parser_reaches_the_whole_tree(tmp_path: Path, line: str) -> None:
    tree(tmp_path, a=line, b="")
    assert reached(tmp_path, "a.py") == {"a.py", "b.py"}
    with refused("kernel-source-unreadable", "a.py"):
        parsed(tmp_path / "a.py")
