"""The allocator of compile processes: who asks for it has it, and nothing that they make depends on it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from subprocess import Popen
from types import SimpleNamespace
from typing import Any, cast

import pytest

from tests.request_fixtures import request_of, specs, with_base
from toolchain.build.plan import plan
from toolchain.build.targets import stages_of
from toolchain.errors import ContractError
from toolchain.process import Result
from toolchain.publish.attestations import collect
from toolchain.record import Record
from toolchain.request import Request
from toolchain.stages import allocator, kernels
from toolchain.stages.stage import Built, Workspace

WITH = {"mimalloc": "distro:mimalloc"}


@pytest.fixture
def request_(tmp_path: Path) -> Request:
    cache = with_base(tmp_path / "cache")
    wheel = {"triton": "pypi:3.7.1"}
    return request_of(cache=cache, base="debian13", sources=wheel, allow_binary=("triton-wheel",))


def asking(request: Request, **sources: str) -> Request:
    return replace(request, sources={**request.sources, **specs(sources or WITH)})


def built(tmp_path: Path, request: Request) -> Built:
    (planned,) = [row.planned for row in plan(asking(request), "allocator")][-1:]
    place = tmp_path / "tree" / allocator.PREFIX.lstrip("/")
    place.mkdir(parents=True)
    (place / allocator.LIBRARY).write_bytes(b"a library")
    return Built(planned=planned, input_digest=str(planned.input_digest), manifest="sha256:" + "0" * 64, layers=())


def test_who_names_its_source_has_it_under_the_kernels(request_: Request) -> None:
    for target in ("kernels", "all"):
        assert "allocator" not in [one.name for one in stages_of(target, request_)]
        assert [one.name for one in stages_of(target, asking(request_))][-2:] == ["allocator", "kernels"]
    aotriton = asking(request_, **WITH, aotriton="https://example.org/a@" + "1" * 40)
    assert [one.name for one in stages_of("aotriton", aotriton)][-2:] == ["allocator", "aotriton"]
    assert [one.name for one in stages_of("allocator", request_)] == ["base", "allocator"]


def test_what_is_made_does_not_depend_on_it(request_: Request) -> None:
    without, with_ = (plan(one, "kernels")[-1].planned for one in (request_, asking(request_)))
    assert without.input_digest == with_.input_digest
    assert without.input_digest is not None


def test_its_source_and_base_count(request_: Request, tmp_path: Path) -> None:
    first = plan(request_, "allocator")[-1].planned
    assert (first.image, first.sources[0].version) == ("mimalloc-2.0.9-ds-debian13", "2.0.9+ds")
    assert first.sources[0].digest is not None
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "CMakeLists.txt").write_text("")
    other = plan(asking(request_, mimalloc=str(tmp_path / "other")), "allocator")[-1].planned
    assert other.input_digest not in {None, first.input_digest}


def test_a_compile_process_gets_the_library_and_the_variable(
    request_: Request, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kernels, "layer_digests", lambda *_: ["sha256:" + "1" * 64])
    seen: dict[str, Any] = {}

    @contextmanager
    def worker(_image: str, _argv: Any, **given: Any) -> Iterator[Popen[str]]:
        seen.update(given)
        yield cast("Popen[str]", None)

    made = built(tmp_path, request_)
    workspace = cast(
        "Workspace",
        SimpleNamespace(
            unpack=lambda _: tmp_path / "tree", image_to_run=lambda _: "image", worker=worker, cache=request_.cache
        ),
    )
    given = allocator.preload({"allocator": made}, workspace)
    with kernels.bench(tmp_path, made, tmp_path, workspace, preload=given).start():
        pass
    place = f"{allocator.PREFIX}/{allocator.LIBRARY}"
    assert seen["env"] == {**kernels.GROUND.variables, "LD_PRELOAD": place}
    (mount,) = [one for one in seen["mounts"] if one.target == place]
    assert mount.read_only
    assert mount.source.read_bytes() == b"a library"
    with kernels.bench(tmp_path, made, tmp_path, workspace, preload=allocator.preload({}, workspace)).start():
        pass
    assert seen["env"] == kernels.GROUND.variables
    assert place not in {one.target for one in seen["mounts"]}


def test_the_record_names_it_and_provenance_takes_its_source(request_: Request, tmp_path: Path) -> None:
    """It is among what a kernel image was made with, though no input of it."""
    made = built(tmp_path, request_)
    facts = allocator.facts({"allocator": made})
    assert facts == {"allocator": {"version": "mimalloc 2.0.9+ds", "input_digest": made.input_digest}}
    assert allocator.facts({}) == {}
    planned = plan(request_, "kernels")[-1].planned
    own = Record(
        stage="kernels",
        image=planned.image,
        input_digest=str(planned.input_digest),
        manifest="",
        facts=facts,
        inputs={},
    )
    beside = Record(stage="allocator", image="mimalloc", input_digest=made.input_digest, manifest="", inputs={})
    for record in (own, beside):
        path = request_.cache.record(record.input_digest)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(record.as_bytes())
    assert [one.stage for one in collect(request_.cache, own, [planned]).dependencies] == ["allocator"]
    request_.cache.record(made.input_digest).unlink()
    assert collect(request_.cache, own, [planned]).dependencies == ()


@pytest.mark.parametrize(
    ("code", "said", "fine"), [(0, "allocator 209", True), (0, "allocator is not used", False), (1, "", False)]
)
def test_a_library_that_nobody_takes_memory_from_is_refused(tmp_path: Path, code: int, said: str, fine: bool) -> None:
    class Runner:
        def run(self, _image: str, _argv: Any, **given: Any) -> Result:
            assert given["env"] == {"LD_PRELOAD": f"{allocator.PREFIX}/{allocator.LIBRARY}"}
            return Result(code, said, ("the end of its log",))

    workspace = cast("Workspace", SimpleNamespace(runner=Runner(), step=lambda _: None, log=tmp_path / "log"))
    check = allocator._check(workspace, tmp_path)
    if fine:
        assert json.loads(json.dumps(check("image"))) == {"contract": {"version": "209"}}
        return
    with pytest.raises(ContractError, match="cannot take its memory from this mimalloc") as caught:
        check("image")
    assert "leave --source mimalloc out" in caught.value.fix
