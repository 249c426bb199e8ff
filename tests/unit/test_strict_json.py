"""Tests of the strict JSON reader, which refuses text that two programs could read differently."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.refusals import refused
from toolchain.core import strict_json
from toolchain.core.errors import DocumentError
from toolchain.core.strict_json import DEEPEST, Keys
from toolchain.oci.manifest import CONFIG_KEYS, MANIFEST_KEYS
from toolchain.trust import attest

DIGEST = "sha256:" + "0" * 64


@pytest.mark.parametrize("value", [{}, [], "x", 1, 1.5, None, True, {"a": [{"b": "\u00e9\U0001f600"}]}])
def test_plain_json_is_read(value: Any) -> None:
    for ascii_only in (True, False):
        text = json.dumps(value, ensure_ascii=ascii_only)
        assert strict_json.read(text) == strict_json.read(text.encode()) == value


@pytest.mark.parametrize(
    "text",
    [
        '{"a": 1, "a": 1}',
        '{"a": 1, "\\u0061": 2}',
        "NaN",
        "[Infinity]",
        "1e999",
        '"\\ud800"',
        '{"\\udc00": 1}',
        "[" * (DEEPEST + 1) + "]" * (DEEPEST + 1),
        '{"a":' * (DEEPEST + 1) + "1" + "}" * (DEEPEST + 1),
        "[" * 100_000,
    ],
    ids=lambda text: text[:20],
)
def test_ambiguous_json_is_refused(text: str) -> None:
    with pytest.raises(DocumentError, match="FILE: "):
        strict_json.read(text, "FILE")


@pytest.mark.parametrize(
    "content", [b"", b"{", b"{} {}", b"\xef\xbb\xbf{}", '{"a": 1}'.encode("utf-16"), b'"\xff"', b"9" * 5000]
)
def test_invalid_json_or_utf_8_raises_a_value_error(content: bytes) -> None:
    with pytest.raises(ValueError) as error:  # noqa: PT011 - callers catch every ValueError
        strict_json.read(content)
    assert not isinstance(error.value, DocumentError)


def test_document_above_the_limit_is_refused() -> None:
    assert strict_json.read("[1, 2]", limit=6) == [1, 2]
    with refused("json-too-large"):
        strict_json.read(b"[1, 2]", limit=5)


@pytest.mark.parametrize(
    ("keys", "value"),
    [
        (MANIFEST_KEYS, {"manifests": [], "Manifests": []}),
        (MANIFEST_KEYS, {"manife\u017fts": []}),  # Go also folds the long s
        (MANIFEST_KEYS, {"mani": 1, "MANI": 1}),
        (MANIFEST_KEYS, {"manifests": [{"digest": DIGEST, "Digest": DIGEST}]}),
        (MANIFEST_KEYS, {"manifests": [{"platform": {"OS": "linux"}}]}),
        (MANIFEST_KEYS, {"config": {"mediatype": "x"}}),
        (CONFIG_KEYS, {"rootfs": {"Diff_IDs": []}}),
        (attest.KEYS, {"predicate": {"runDetails": {"metadata": {"finishedon": ""}}}}),
        (attest.KEYS, {"predicate": {"files": [{"checksums": [{"Algorithm": ""}]}]}}),
    ],
    ids=str,
)
def test_a_key_in_another_case_is_refused(keys: Keys, value: Any) -> None:
    assert strict_json.read(json.dumps(value)) == value
    with refused("json-key-case"):
        strict_json.read(json.dumps(value), keys=keys)


@pytest.mark.parametrize(
    "value",
    [
        {"annotations": {"a": "1", "A": "2", "Digest": "3"}},  # the keys of annotations are arbitrary
        {"manifests": [{"annotations": {"Size": "1"}, "platform": {"os": "linux", "os.version": "1"}}]},
        {"x-of-others": {"Size": 1, "size": 2}},
    ],
    ids=str,
)
def test_a_key_that_no_program_folds_is_read(value: Any) -> None:
    assert strict_json.read(json.dumps(value), keys=MANIFEST_KEYS) == value


def test_a_document_of_millions_of_empty_values_is_refused() -> None:
    """An empty array is two bytes of text, but takes more than fifty bytes of memory."""
    with refused("json-too-many-values"):
        strict_json.read(b"[" + b"[]," * 3_000_000 + b"1]")
