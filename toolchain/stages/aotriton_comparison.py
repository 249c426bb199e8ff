"""Compare the kernels of a campaign with those that AOTriton's own compile script makes from the same rules."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from toolchain.core import strict_json
from toolchain.core.errors import ContractError
from toolchain.core.typed import TypedError, typed
from toolchain.kernels.campaign import KNOWN_BAD
from toolchain.kernels.ledger import TIMEOUT, Entry


@dataclass(frozen=True, kw_only=True)
class Answer:
    """The line that `aotriton/upstream.py` prints about one rule after running upstream's compile script.

    Args:
        code: the exit code of upstream's script; negative for a signal.
        status: `compile_status` in the JSON that the script wrote; empty if it wrote none.
        sha256: the SHA-256 of the object as 64 hex digits; empty if there is no object.
        error: the first line of the last exception in the script's output; empty if there was none.
    """

    id: str
    code: int
    status: str
    sha256: str
    size: int
    error: str
    reason: str


def read_answers(printed: str) -> dict[str, Answer]:
    """Parse the output of `aotriton/upstream.py`, and return the answers by the id of their rule.

    ContractError is raised for a malformed line. The form of the lines is checked, because the script runs code from a
    tree that may be hostile.
    """
    try:
        answers = [typed(Answer, strict_json.read(line)) for line in printed.strip().splitlines()]
    except (TypedError, ValueError, RecursionError) as error:
        raise _malformed("the script printed a line that is not a valid answer") from error
    return {answer.id: answer for answer in answers}


def _malformed(why: str) -> ContractError:
    return ContractError(
        "comparison-failed",
        "the comparison with AOTriton's own compile script gave no result",
        why=why,
        fix="see the log; with --no-contract the build skips the comparison",
    )


def compare(chosen: Sequence[Entry], bad: Sequence[Entry], answers: Mapping[str, Answer]) -> dict[str, Any]:
    """Compare entries of the campaign with the answers about the same rules.

    Args:
        chosen: entries of rules that compiled. Their objects are compared.
        bad: entries of rules that did not compile. Their failures are compared.

    Returns:
        `{"sampled", "equal", "failures", "alike"}`: the number of entries in `chosen` and of those whose objects equal
        upstream's, and the number of entries in `bad` and of those that failed in the same way in upstream's script.

    Raises:
        ContractError: an object differs from upstream's, a rule failed here but not in the same way in upstream's
            script, or there is no answer about a rule.
    """
    if missing := [entry.out for entry in (*chosen, *bad) if entry.id not in answers]:
        raise _malformed(f"the script printed no answer about {missing[0]}")
    differing = [
        f"{entry.out}: {entry.sha256[:16]} here, {answers[entry.id].sha256[:16] or 'nothing'} there"
        for entry in chosen
        if answers[entry.id].sha256 != entry.sha256
    ]
    unlike = [
        f"{entry.out} {entry.status} here ({_first(entry.reason) or 'no reason'}), {_there(answers[entry.id])} there"
        for entry in bad
        if not _same_failure(entry, answers[entry.id])
    ]
    if differing or unlike:
        raise ContractError(
            "comparison-differs",
            f"AOTriton's own compile script gives another result for {len(differing)} of {len(chosen)} sampled kernels "
            f"and for {len(unlike)} of {len(bad)} failures",
            why="\n".join([*differing, *unlike][:20]),
            fix="report this with the log; with --no-contract the build skips the comparison",
        )
    return {"sampled": len(chosen), "equal": len(chosen), "failures": len(bad), "alike": len(bad)}


def _first(reason: str) -> str:
    return (reason.splitlines() or [""])[0][:200]


def _there(answer: Answer) -> str:
    return "an object" if answer.size else f"{answer.error or _first(answer.reason)} (code {answer.code})"


def _same_failure(entry: Entry, answer: Answer) -> bool:
    if answer.size:
        return False
    if entry.status == TIMEOUT:
        return answer.status == KNOWN_BAD[TIMEOUT]
    if entry.exit_code is not None:
        return answer.code == entry.exit_code
    if kind := re.match(r"[A-Za-z_][\w.]*(?=:|$)", _first(entry.reason)):
        return answer.code != 0 and answer.error.partition(":")[0] == kind[0]
    # An entry with neither an exit code nor an exception usually means that the campaign's own check refused the
    # compiled object. Upstream's script then exits with 0.
    return answer.code == 0
