"""What `--json` prints: every verb's real output has the documented shape, and so has every error."""

from __future__ import annotations

import inspect
import json
import subprocess
import sys
from pathlib import Path
from typing import Any, get_args
from urllib.parse import quote, unquote

import pytest
from jsonschema import Draft202012Validator

from toolchain.cli import build_cmd
from toolchain.cli.verbs import all_verbs
from toolchain.core import errors
from toolchain.core.errors import ToolchainError
from toolchain.publish.consumer import Kind

TOP = Path(__file__).resolve().parents[2]
SCHEMA = json.loads((TOP / "docs" / "json.schema.json").read_text())
# These print a line of text; what they write is the result.
WITHOUT = {"keygen", "kernels worker", "shell", "report"}
SAME = {"kernels run": "build", "kernels merge": "build"}
Said = list[tuple[str, str, int, Any]]


def problems(shape: str, value: Any) -> list[str]:
    """All differences from the schema."""
    validator = Draft202012Validator({**SCHEMA, "$ref": f"#/$defs/{quote(shape)}"})
    return [f"{one.json_path}: {one.message[:300]}" for one in validator.iter_errors(value)]


@pytest.fixture(scope="module")
def said(tmp_path_factory: pytest.TempPathFactory) -> Said:
    """Verb, what for, exit code and document of many calls, made in a process of their own."""
    done = subprocess.run(
        [sys.executable, "-m", "tests.json_outputs", str(tmp_path_factory.mktemp("json"))],
        cwd=TOP, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return [tuple(one) for one in json.loads(done.stdout)]


def test_the_schema_is_one() -> None:
    Draft202012Validator.check_schema(SCHEMA)


def test_every_output_has_its_shape(said: Said) -> None:
    for verb, about, code, value in said:
        shape = "error" if "error" in value else SAME.get(verb, verb)
        assert problems(shape, value) == [], f"{verb} ({about})"
        assert (shape == "error") <= (code != 0), f"{verb} ({about})"


def test_every_verb_is_tried_and_documented(said: Said) -> None:
    verbs = {verb.name for verb in all_verbs()}
    assert len([verb for verb, _, code, _ in said if code == 2]) == 6, "command lines that cannot be read"
    tried = {verb for verb, _, _, value in said if "error" not in value}
    # Kernels need the engine and an hour; `build` and they have one function that prints.
    assert tried == verbs - WITHOUT - SAME.keys()
    shown = inspect.getsource(build_cmd._campaign)
    assert "_show(request, " in shown
    assert verbs - WITHOUT - SAME.keys() <= SCHEMA["$defs"].keys()


def test_every_key_that_is_documented_is_seen(said: Said) -> None:
    """Else the page could promise what no verb prints."""
    seen = set().union(*(_keys(value) for *_, value in said))
    # An unfinished build, differences between two builds, and what came from elsewhere have tests of their own.
    rare = {"steps", "steps_done", "offset", "first", "second", "member", "tree", "annotations", "signer"}
    documented = set().union(*(_documented(shape) for shape in SCHEMA["$defs"].values()))
    assert documented - seen == rare


def _keys(value: Any) -> set[str]:
    if isinstance(value, dict):
        return set(value).union(*(_keys(one) for one in value.values()))
    return set().union(*(_keys(one) for one in value)) if isinstance(value, list) else set()


def _documented(shape: Any) -> set[str]:
    if isinstance(shape, list):
        return set().union(*(_documented(one) for one in shape))
    if not isinstance(shape, dict):
        return set()
    if "$ref" in shape:
        return _documented(SCHEMA["$defs"][unquote(shape["$ref"]).rpartition("/")[2]])
    inner = set().union(*(_documented(one) for name, one in shape.items() if name != "properties"))
    properties = shape.get("properties", {})
    return inner | set(properties) | set().union(*(_documented(one) for one in properties.values()))


def test_a_shape_that_changes_is_noticed(said: Said) -> None:
    found = next(value for verb, _, _, value in said if verb == "plan")
    row = found["stages"][0]
    for changed in ({**row, "more": 1}, {**row, "reused": "yes"}, {key: row[key] for key in row if key != "image"}):
        assert problems("plan", {"stages": [changed]})


@pytest.mark.parametrize(
    "kind",
    [one for one in vars(errors).values() if isinstance(one, type) and issubclass(one, ToolchainError)],
    ids=lambda kind: kind.__name__,
)
def test_every_error_has_its_shape(kind: type[ToolchainError]) -> None:
    value = kind("some-id", "what", why="because", fix="this").as_json()
    assert problems("error", value) == []
    assert value == {
        "error": kind.title, "id": "some-id", "exit_code": kind.code, "what": "what", "why": "because", "fix": "this"
    }  # fmt: skip


def test_every_kind_of_image_is_in_the_schema() -> None:
    (listed,) = [
        one["properties"]["kind"]["enum"]
        for one in SCHEMA["$defs"].values()
        if "llvm-part" in one.get("properties", {}).get("kind", {}).get("enum", ())
    ]
    assert listed == list(get_args(Kind))
