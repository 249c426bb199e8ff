"""`audit` and `kernels try`: the kernels of a place, missing and damaged kernels, and recompiled kernels."""

from __future__ import annotations

import gzip
import io
import json
import re
import shutil
import sys
import tarfile
import zipfile
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from lab.tests.emulated_objects import KERNELS, compile_all, rule
from lab.tests.json_runs import answer
from tests.evidence_fixtures import Stand, ed25519_signer, small_image
from tests.kernel_fixtures import aks2, stored
from toolchain.cli.app import app
from toolchain.core.errors import (
    ConfigError,
    KernelError,
    RegressionError,
    SourceError,
    ToolchainError,
    UntrustedError,
)
from toolchain.oci import descriptor as media
from toolchain.oci.descriptor import LAYER
from toolchain.oci.image import ImageSpec, add_layer, write_image, write_index
from toolchain.oci.layer import compress, write_layer
from toolchain.oci.layout import Layout
from toolchain.trust import dsse
from toolchain.trust.keys import load_public, new_key
from toolchain_lab.cli.audit_cmd import screen
from toolchain_lab.examine import audit
from toolchain_lab.examine.facts import Facts
from toolchain_lab.examine.kernels import Kernel, kernels_of

GPUS = ("gfx942", "gfx1100")
PACKS = {"gfx942": "amd-gfx942", "gfx1100": "amd-gfx110x"}


@pytest.fixture(scope="module")
def campaign(tmp_path_factory: pytest.TempPathFactory) -> Path:
    top = tmp_path_factory.mktemp("campaign")
    compile_all([rule(top, name, gpu) for name in ("add", "attention") for gpu in GPUS])
    return top


def prefix(campaign: Path, folder: Path, *, empty: str = "", without: str = "", flip: str = "") -> dict[str, bytes]:
    """Write AOTriton's packs, one for each GPU and kernel, to a folder, and return their contents by path."""
    files = {}
    for gpu in GPUS:
        for name in ("add", "attention"):
            label = f"{gpu}/{name}"
            content = b"" if label == empty else (campaign / gpu / f"{name}-fp16.hsaco").read_bytes()
            inner = bytearray(aks2((f"{name}-1", content), launch=(64, 256)))
            if label == flip:
                inner[len(inner) // 2] ^= 1
            stream = io.BytesIO()
            with zipfile.ZipFile(stream, "w") as archive:
                archive.writestr("Q='fp16'", bytes(inner))
            if label != without:
                files[f"lib/aotriton.images/{PACKS[gpu]}/flash/{name}.zip"] = stream.getvalue()
    for path, content in files.items():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_bytes(content)
    return files


def plan(folder: Path) -> Path:
    """Write a plan for the packs of `prefix` to a folder, as AOTriton's generator writes it, and return the folder."""
    clusters, archives = [], []
    for gpu in GPUS:
        for name in ("add", "attention"):
            at = f"{PACKS[gpu]}/flash/{name}"
            member, kernel = f"/b/aks2/{at}/c.aks2", f"/b/flash/{gpu}-{name}.hsaco"
            clusters.append(f"{PACKS[gpu]};flash;{name};c;{kernel}")
            archives.append(f"{PACKS[gpu]};flash;{name};{member}")
            for manifest, row in (
                (folder / f"aks2/{at}/c.nsv", f"{kernel}\0{name}-1\0"),
                (folder / f"aotriton.images/{at}.nsv", f"{member}\0Q='fp16'\0"),
            ):
                manifest.parent.mkdir(parents=True, exist_ok=True)
                manifest.write_text(row + "\n")
    (folder / "Bare.cluster").write_text("\n".join(clusters) + "\n")
    (folder / "Bare.flatzip").write_text("\n".join(archives) + "\n")
    return folder


run = partial(answer, "audit")


def test_complete_prefix_passes(campaign: Path, tmp_path: Path) -> None:
    prefix(campaign, tmp_path / "p")
    result = run(tmp_path / "p", "--gpu", "gfx942,gfx1100", "--plan", plan(tmp_path / "plan"))
    assert result["ok"]
    assert result["planned"] == 4
    assert result["gpus"] == {gpu: {"add": 1, "attention": 1} for gpu in sorted(GPUS)}
    assert run(tmp_path / "p", "--gpu", "gfx942,gfx1100")["ok"]
    assert result["partial"] == []


def test_partial_pack_is_reported(campaign: Path, tmp_path: Path) -> None:
    prefix(campaign, tmp_path / "p")
    pack = next(path for path in (tmp_path / "p").rglob("amd-*") if path.is_dir())
    (pack / "__partial__").write_text("{}")
    result = run(tmp_path / "p")
    assert (result["ok"], result["partial"]) == (True, [str(pack.relative_to(tmp_path / "p"))])


@pytest.mark.parametrize(
    ("damaged", "field"),
    [
        ({"without": "gfx942/attention"}, "missing"),
        ({"empty": "gfx942/attention"}, "empty"),
        ({"flip": "gfx942/attention"}, "damaged"),
    ],
)
def test_missing_empty_or_damaged_pack_is_reported(
    campaign: Path, tmp_path: Path, damaged: dict[str, str], field: str
) -> None:
    prefix(campaign, tmp_path / "p", **damaged)
    result = run(tmp_path / "p", "--gpu", "gfx942", "--plan", plan(tmp_path / "plan"), code=KernelError.code)
    assert "attention" in result[field][0]
    assert run(tmp_path / "p", "--gpu", "gfx90a", code=KernelError.code)["absent"] == ["gfx90a"]
    # Without a plan, the packs of another GPU of the same release tell which packs are expected.
    if field == "missing":
        assert run(tmp_path / "p", "--gpu", "gfx942", code=KernelError.code)["uneven"] == ["gfx942 lacks attention"]
    if field == "empty":
        result = run(tmp_path / "p", "--allow-empty", "--plan", tmp_path / "plan")
        assert (result["ok"], len(result["empty"])) == (True, 1)


def test_damaged_file_does_not_hide_other_files_of_its_archive(campaign: Path) -> None:
    code = (campaign / "gfx942" / "add-fp16.hsaco").read_bytes()
    cut = bytearray(aks2(("add-2", code)))
    cut[len(cut) // 2] ^= 1
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w") as archive:
        archive.writestr("Q='fp16'", aks2(("add-1", code[:100]), ("add-3", code)))
        archive.writestr("Q='bf16'", bytes(cut))
        archive.writestr("Q='fp32'", aks2(("add-4", code)))
    faults: list[ToolchainError] = []
    files = [stored("aotriton.images/amd-gfx942/flash/add.zip", stream.getvalue())]
    kernels = list(kernels_of(files, faults.append))
    assert [kernel.key.rpartition("/")[2] for kernel in kernels] == ["add-3", "add-4"]
    assert [name in fault.what for name, fault in zip(("add-1", "bf16"), faults, strict=True)] == [True, True]


def test_audit_of_image_is_attached_to_it(campaign: Path, tmp_path: Path) -> None:
    layout = Layout(tmp_path / "lay").ensure()
    files = {f"usr/lib64/thing/{path}": content for path, content in prefix(campaign, tmp_path / "p").items()}
    image = small_image(layout, tmp_path / "work", files=files)
    layout.tag(write_index(layout, [image]), "aotriton")
    layout.tag(layout.put_artifact("application/vnd.toolchain.bundle.v1", [layout.put_bytes(b"{}", LAYER)]), "bundle")
    assert run(f"oci:{layout.root}", "--gpu", "gfx942")["ok"]
    new_key(tmp_path / "key")
    result = run(f"oci:{layout.root}:aotriton", "--gpu", "gfx942", "--key", tmp_path / "key")
    assert (result["ok"], result["attested"]["kinds"]) == (True, ["audit"])
    assert result["attested"]["pushed_bytes"] > 0


def test_attestation_of_buildx_in_an_index_is_not_read(campaign: Path, tmp_path: Path) -> None:
    """`docker buildx` lists its attestations next to the images, with layers that are no archives."""
    layout = Layout(tmp_path / "lay").ensure()
    files = {f"usr/lib64/thing/{path}": content for path, content in prefix(campaign, tmp_path / "p").items()}
    image = small_image(layout, tmp_path / "work", files=files)
    platform = {"os": "unknown", "architecture": "unknown"}
    layer = layout.put_bytes(b'{"_type":"https://in-toto.io/Statement/v0.1"}', media.IN_TOTO).as_json()
    config = layout.put_json({**platform, "rootfs": {"type": "layers", "diff_ids": [layer["digest"]]}}, media.CONFIG)
    value = {"schemaVersion": 2, "mediaType": media.MANIFEST, "config": config.as_json(), "layers": [layer]}
    listed = [image.as_json(), {**layout.put_json(value, media.MANIFEST).as_json(), "platform": platform}]
    index = {"schemaVersion": 2, "mediaType": media.INDEX, "manifests": listed}
    layout.tag(layout.put_json(index, media.INDEX), "aotriton")
    assert run(f"oci:{layout.root}:aotriton", "--gpu", "gfx942")["ok"]


def test_files_that_an_upper_layer_deletes_or_replaces_are_not_listed(campaign: Path, tmp_path: Path) -> None:
    layout = Layout(tmp_path / "lay").ensure()
    code = {gpu: (campaign / gpu / "add-fp16.hsaco").read_bytes() for gpu in GPUS}
    below = {f"k/{name}.hsaco": code["gfx942"] for name in ("kept", "gone", "new", "folder/x", "cleared/x")}
    above = {f"k/{name}": b"" for name in (".wh.gone.hsaco", ".wh.folder", "cleared/.wh..wh..opq")}
    above |= {"k/new.hsaco": code["gfx1100"], "k/cleared/y.hsaco": code["gfx1100"]}
    layers = []
    for at, files in enumerate((below, above)):
        for path, content in files.items():
            (tmp_path / f"{at}" / path).parent.mkdir(parents=True, exist_ok=True)
            (tmp_path / f"{at}" / path).write_bytes(content)
        blob = compress(write_layer(tmp_path / f"{at}", tmp_path / f"{at}.tar", whiteouts=True), tmp_path / f"{at}.gz")
        layers.append(add_layer(layout, blob))
    layout.tag(write_image(layout, ImageSpec(arch="amd64", layers=tuple(layers))), "image")
    result = run(f"oci:{layout.root}")
    assert (result["gpus"], result["empty"]) == ({"gfx942": {"add": 1}, "gfx1100": {"add": 2}}, [])


def test_layer_with_changed_bytes_is_refused_and_nothing_is_written(campaign: Path, tmp_path: Path) -> None:
    layout = Layout(tmp_path / "lay").ensure()
    files = {f"usr/lib64/thing/{path}": content for path, content in prefix(campaign, tmp_path / "p").items()}
    image = small_image(layout, tmp_path / "work", files=files)
    layout.tag(write_index(layout, [image]), "aotriton")
    layer = layout.children(image)[1]
    path = layout.blob(layer.digest)
    content = bytearray(gzip.decompress(path.read_bytes()))
    content[-600] ^= 1  # this byte is in the padding of the last file
    path.chmod(0o644)
    path.write_bytes(gzip.compress(bytes(content)))
    new_key(tmp_path / "key")
    before = sorted(layout.root.rglob("*"))
    for words in ((), ("--key", tmp_path / "key")):
        run(f"oci:{layout.root}:aotriton", *words, code=UntrustedError.code)
    assert sorted(layout.root.rglob("*")) == before


def test_signed_statement_describes_the_file(campaign: Path, tmp_path: Path) -> None:
    new_key(tmp_path / "key")
    name = campaign / "gfx942" / "add-fp16.hsaco"
    run(name, "--key", tmp_path / "key", "--statement", tmp_path / "out.json")
    envelope = dsse.read((tmp_path / "out.json").read_bytes())
    assert envelope.signed_by(load_public(tmp_path / "key.pub"))
    statement = json.loads(envelope.payload)
    assert statement["predicate"]["audit"]["gpus"] == {"gfx942": {"add": 1}}
    assert str(campaign) not in envelope.payload.decode()
    run(name, "--key", tmp_path / "key", code=ConfigError.code)
    run(name, "--statement", tmp_path / "out.json", code=ConfigError.code)


@pytest.mark.parametrize("folder", [False, True])
def test_file_that_changes_during_the_audit_is_not_signed(
    campaign: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, folder: bool
) -> None:
    new_key(tmp_path / "key")
    file = tmp_path / "kernels" / "add.hsaco"
    file.parent.mkdir()
    shutil.copyfile(campaign / "gfx942" / "add-fp16.hsaco", file)

    def look_and_replace(*given: Any, **more: Any) -> audit.Audit:
        found = look(*given, **more)
        shutil.copyfile(campaign / "gfx1100" / "add-fp16.hsaco", file)
        return found

    look = audit.audit
    monkeypatch.setattr(audit, "audit", look_and_replace)
    words = ("--key", tmp_path / "key", "--statement", tmp_path / "out.json")
    assert run(file.parent if folder else file, *words, code=SourceError.code)["id"] == "source-changed"
    assert not (tmp_path / "out.json").exists()


@pytest.mark.parametrize("statement", ["/dev/null", "/proc/statement", "/proc/new/statement"])
def test_unwritable_statement_is_refused_before_the_audit(tmp_path: Path, statement: str) -> None:
    new_key(tmp_path / "key")
    (tmp_path / "nothing").mkdir()
    result = run(tmp_path / "nothing", "--key", tmp_path / "key", "--statement", statement, code=ConfigError.code)
    assert result["id"] == "output-unwritable"


def test_recompiled_kernels_are_compared(campaign: Path, tmp_path: Path) -> None:
    shutil.copytree(campaign, tmp_path / "c")
    words = ("--rebuild", "9", "--source", KERNELS.parent, "--with-python", sys.executable)
    result = run(tmp_path / "c", *words)
    assert sorted(result["rebuilt"].values()) == [True] * 4
    # Only another compilation can detect a changed byte of an instruction.
    damaged = tmp_path / "c" / "gfx942" / "add-fp16.hsaco"
    content = bytearray(damaged.read_bytes())
    content[content.index(b"\x00\x00\x81\xbf")] ^= 1
    damaged.write_bytes(content)
    result = run(tmp_path / "c", *words, code=KernelError.code)
    assert [key for key, equal in result["rebuilt"].items() if not equal] == ["gfx942/add-fp16"]
    run(tmp_path / "c", "--rebuild", "1", code=ConfigError.code)


def test_recompiled_source_cannot_see_files_of_the_caller(campaign: Path, tmp_path: Path) -> None:
    shutil.copytree(campaign, tmp_path / "c")
    shutil.copytree(KERNELS.parent, tmp_path / "source")
    canary = tmp_path / "canary"
    canary.touch()
    with (tmp_path / "source" / KERNELS.name).open("a") as source:
        source.write(f"\nimport os\nif os.path.exists({str(canary)!r}) or os.path.exists('/etc/shadow'): os._exit(3)\n")
    result = run(tmp_path / "c", "--rebuild", "1", "--source", tmp_path / "source", "--with-python", sys.executable)
    assert list(result["rebuilt"].values()) == [True]


def test_missing_broken_or_codeless_wheel_is_refused(tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "a-1-py3-none-any.whl", "w") as archive:
        archive.writestr("a.py", "")
    (tmp_path / "no plan").mkdir()
    run(tmp_path / "a-1-py3-none-any.whl", code=ConfigError.code)
    run(tmp_path / "nowhere.whl", code=ConfigError.code)
    (tmp_path / "broken.whl").write_bytes(b"PK")
    run(tmp_path / "broken.whl", code=SourceError.code)


def test_libraries_for_windows_are_noted(campaign: Path, tmp_path: Path) -> None:
    wheel = tmp_path / "a-1-cp311-cp311-win_amd64.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        for name in ("a/a.pyd", "a.libs/b.dll"):
            archive.writestr(name, b"MZ".ljust(100, b"\0"))
    assert "a/a.pyd, a.libs/b.dll" in run(wheel, code=ConfigError.code)["why"]
    with zipfile.ZipFile(wheel, "a") as archive:
        archive.writestr("a/gfx942/add.hsaco", (campaign / "gfx942" / "add-fp16.hsaco").read_bytes())
    (note,) = run(wheel)["notes"]
    assert "2 libraries for Windows" in note


def test_cubins_are_noted(campaign: Path, tmp_path: Path) -> None:
    (tmp_path / "a.cubin").write_bytes(b"\x7fELF")
    assert "1 cubin for NVIDIA was not read: a.cubin" in run(tmp_path, code=ConfigError.code)["why"]
    shutil.copy(campaign / "gfx942" / "add-fp16.hsaco", tmp_path)
    assert len(run(tmp_path)["notes"]) == 1


def test_long_lists_are_shortened_on_the_screen() -> None:
    functions = [
        Kernel(key=name, path=name, sha256="", facts=Facts(name=name, gpu="gfx942", code=1, digest=""))
        for name in map("f{:02}".format, range(13))
    ]
    found = audit.Audit(what="x", kernels=functions, prebuilt=[f"{at}.bc" for at in range(50)])
    text = "\n".join(screen(found))
    assert "f09 1, 3 more\n" in text
    assert "prebuilt by name: 0.bc, 1.bc, 2.bc, 3.bc, 4.bc, 45 more" in text


def test_empty_plan_or_plan_without_the_gpu_is_refused(campaign: Path, tmp_path: Path) -> None:
    prefix(campaign, tmp_path / "p")
    (tmp_path / "none").mkdir()
    run(tmp_path / "p", "--plan", tmp_path / "none", code=SourceError.code)
    run(tmp_path / "p", "--plan", plan(tmp_path / "plan"), "--gpu", "gfx90a", code=ConfigError.code)


def attempt(kernel: Path, *words: Any, code: int = 0) -> dict[str, Any]:
    words = ("kernels", "try", kernel, "--source", KERNELS.parent, *words, "--json")
    done = CliRunner().invoke(app, [str(word) for word in words])
    assert done.exit_code == code, done.output
    return dict(json.loads(done.stdout))


def test_try_recompiles_a_kernel_and_compares_it(campaign: Path, tmp_path: Path) -> None:
    kernel = campaign / "gfx942" / "attention-fp16.hsaco"
    result = attempt(kernel, "--with-python", sys.executable, "--out", tmp_path / "new")
    assert result["counts"]["same"] == 1
    assert (tmp_path / "new" / kernel.name).read_bytes() == kernel.read_bytes()
    # The JSON of the tight kernel limits registers, but the object next to it is the campaign's, which does not: the
    # recompiled object has more spills.
    tight = compile_all([{**rule(tmp_path / "tight", "attention", "gfx942"), "waves_per_eu": 8}])[0]
    shutil.copy(kernel, tight)
    attempt(tight, code=RegressionError.code)
    assert attempt(tight, "--fail-on", "")["kernels"][0]["new_spills"] > 0


def test_try_refuses_invalid_metadata_and_interpreters(campaign: Path, tmp_path: Path) -> None:
    kernel = campaign / "gfx942" / "add-fp16.hsaco"
    alone = tmp_path / "k.hsaco"
    shutil.copy(kernel, alone)
    attempt(alone, code=ConfigError.code)
    alone.with_suffix(".json").write_text("{}")
    attempt(alone, code=ConfigError.code)
    metadata = json.loads(kernel.with_suffix(".json").read_text())
    for source, code in (("../kernels.py", ConfigError.code), ("absent.py", SourceError.code)):
        alone.with_suffix(".json").write_text(json.dumps({**metadata, "source": source}))
        attempt(alone, code=code)
    attempt(kernel, "--with-python", "python", "--triton-wheel", "3.6.0", code=ConfigError.code)
    attempt(kernel, "--triton-wheel", tmp_path / "none.whl", code=SourceError.code)
    attempt(kernel, "--with-python", "/bin/false", code=KernelError.code)
    attempt(kernel, "--with-python", "/bin/true", code=KernelError.code)
    attempt(kernel, "--with-python", "", code=ConfigError.code)


def test_code_of_a_wheel_does_not_run_on_the_host(
    campaign: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither the modules that Python imports at its start nor the package itself may run."""
    ran = tmp_path / "ran"
    tag = f"cp3{sys.version_info[1]}"
    wheel = tmp_path / f"triton-9.9.0-{tag}-{tag}-linux_x86_64.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        for name in ("sitecustomize.py", "usercustomize.py", "os.py", "triton/__init__.py"):
            archive.writestr(name, f"open({str(ran)!r}, 'w').close()\n")
        archive.writestr("a.pth", f"import io; io.open({str(ran)!r}, 'w').close()\n")
    monkeypatch.setenv("TOOLCHAIN_CACHE", str(tmp_path / "cache"))
    attempt(campaign / "gfx942" / "add-fp16.hsaco", "--triton-wheel", wheel, code=KernelError.code)
    assert not ran.exists()


@pytest.mark.parametrize(
    "answer",
    ["no JSON", "[1]", '{"status": 7}', '{"id": "other", "status": "done"}', '{"id": "add-fp16", "status": "done"}'],
)
def test_wheel_that_answers_for_the_worker_is_a_compile_error(
    campaign: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, answer: str
) -> None:
    """Triton runs in the worker's process, so it can answer in the worker's place. The last answer has no object."""
    wheel = tmp_path / f"triton-9.9.0-cp3{sys.version_info[1]}-abi3-linux_x86_64.whl"
    lines = f"ready\n{answer}\n".encode()
    code = "import os\nfor at in os.listdir('/proc/self/fd'):\n"
    code += f"  try: os.write(int(at), {lines!r})\n  except OSError: pass\n"
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.writestr("triton/__init__.py", f"{code}os._exit(0)\n")
    monkeypatch.setenv("TOOLCHAIN_CACHE", str(tmp_path / "cache"))
    attempt(campaign / "gfx942" / "add-fp16.hsaco", "--triton-wheel", wheel, code=KernelError.code)
    assert (tmp_path / "cache").stat().st_mode & 0o777 == 0o700


def test_current_folder_is_not_imported_and_is_hidden_from_the_compiler(
    campaign: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The compiler sees the package alone: neither the current folder nor other packages next to it."""
    here, ran = tmp_path / "here", tmp_path / "ran"
    (here / "triton").mkdir(parents=True)
    for name in ("triton/__init__.py", "sitecustomize.py"):
        (here / name).write_text(f"open({str(ran)!r}, 'w').close()\n")
    (here / "private").write_text("secret")
    (here / "private").chmod(0o600)
    shutil.copytree(KERNELS.parent, tmp_path / "source")
    with (tmp_path / "source" / KERNELS.name).open("a") as source:
        source.write("\nimport os\nif not all(at.startswith('triton') for at in os.listdir('/modules')): os._exit(3)\n")
    monkeypatch.chdir(here)
    monkeypatch.setenv("PYTHONPATH", str(here))
    words = ("audit", campaign, "--rebuild", 1, "--source", tmp_path / "source", "--with-python", sys.executable)
    done = CliRunner().invoke(app, [*map(str, words), "--json"])
    assert done.exit_code == 0, done.output
    assert list(json.loads(done.stdout)["rebuilt"].values()) == [True]
    assert not ran.exists()


def test_image_without_code_objects_is_refused(tmp_path: Path) -> None:
    stand = Stand(Layout(tmp_path / "lay"), tmp_path / "work", signer=ed25519_signer())
    run(f"oci:{stand.layout.root}", code=ConfigError.code)


def test_image_in_a_form_that_is_not_read_is_refused_with_advice(tmp_path: Path) -> None:
    """Neither a layout folder without `oci:` nor the archive of `docker save` is read as an image."""
    layout = Layout(tmp_path / "lay").ensure()
    small_image(layout, tmp_path / "work")
    with tarfile.open(tmp_path / "saved.tar", "w") as archive:
        archive.add(layout.root, "")
    for place, said in ((layout.root, f"oci:{layout.root}"), (tmp_path / "saved.tar", "skopeo copy docker-archive:")):
        assert said in run(place, code=ConfigError.code)["fix"]


def test_kernel_that_needs_xnack_on_is_noted(campaign: Path, tmp_path: Path) -> None:
    """An object for `gfx90a:xnack+` does not load on a GPU in its default mode."""
    whole = next(campaign.rglob("*.hsaco")).read_bytes()
    target = re.search(rb"amdgcn-amd-amdhsa--gfx\w+", whole)
    assert target
    for name, features in (
        ("on", b"xnack+"),
        ("any", b"x" * 6),
    ):  # the target keeps its length, because the metadata contains lengths
        (tmp_path / name).mkdir()
        changed = whole.replace(target[0], target[0][: -len(features)] + features)
        (tmp_path / name / "k.hsaco").write_bytes(changed)
        notes = run(tmp_path / name)["notes"]
        assert any("XNACK" in note for note in notes) == (name == "on")
