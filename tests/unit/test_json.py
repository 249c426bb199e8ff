"""Tests that the output of every verb with `--json`, and every error, conforms to the documented schema."""

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
# These verbs do not print their result as JSON.
WITHOUT = {"keygen", "kernels worker", "shell", "report"}
SAME = {"kernels run": "build", "kernels merge": "build"}
Said = list[tuple[str, str, int, Any]]


def problems(shape: str, value: Any) -> list[str]:
    """Return all differences between a value and a shape of the schema."""
    validator = Draft202012Validator({**SCHEMA, "$ref": f"#/$defs/{quote(shape)}"})
    return [f"{one.json_path}: {one.message[:300]}" for one in validator.iter_errors(value)]


@pytest.fixture(scope="module")
def said(tmp_path_factory: pytest.TempPathFactory) -> Said:
    """Make many calls in a separate process, and return the verb, purpose, exit code and document of each."""
    done = subprocess.run(
        [sys.executable, "-m", "tests.json_outputs", str(tmp_path_factory.mktemp("json"))],
        cwd=TOP, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return [tuple(one) for one in json.loads(done.stdout)]


def test_schema_is_a_valid_json_schema() -> None:
    Draft202012Validator.check_schema(SCHEMA)


def test_every_output_conforms_to_the_schema(said: Said) -> None:
    for verb, about, code, value in said:
        shape = "error" if "error" in value else SAME.get(verb, verb)
        assert problems(shape, value) == [], f"{verb} ({about})"
        assert (shape == "error") <= (code != 0), f"{verb} ({about})"


def test_every_verb_is_tried_and_documented(said: Said) -> None:
    verbs = {verb.name for verb in all_verbs()}
    assert len([verb for verb, _, code, _ in said if code == 2]) == 6, "command lines that cannot be read"
    tried = {verb for verb, _, _, value in said if "error" not in value}
    # Campaigns need the engine and an hour, and print with the same function as `build`.
    assert tried == verbs - WITHOUT - SAME.keys()
    shown = inspect.getsource(build_cmd._campaign)
    assert "_show(request, " in shown
    assert verbs - WITHOUT - SAME.keys() <= SCHEMA["$defs"].keys()


def test_every_documented_key_is_printed(said: Said) -> None:
    """Otherwise the documentation could promise keys that no verb prints."""
    seen = set().union(*(_keys(value) for *_, value in said))
    # Other tests cover unfinished builds, differences between two builds, and content that was made elsewhere.
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


def test_schema_refuses_changed_output(said: Said) -> None:
    found = next(value for verb, _, _, value in said if verb == "plan")
    row = found["stages"][0]
    for changed in ({**row, "more": 1}, {**row, "reused": "yes"}, {key: row[key] for key in row if key != "image"}):
        assert problems("plan", {"stages": [changed]})


@pytest.mark.parametrize(
    "kind",
    [one for one in vars(errors).values() if isinstance(one, type) and issubclass(one, ToolchainError)],
    ids=lambda kind: kind.__name__,
)
def test_every_error_conforms_to_the_schema(kind: type[ToolchainError]) -> None:
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
