"""Sentences that are too long for a first reading: over 30 words, in docs, docstrings, help and messages.

    python scripts/prose.py [FILE...]      # exit code 1 where one is found

Also words of the codebase's own making (`DIALECT`) and archaic turns of phrase (`TURNS`), those in comments as well.

A sentence ends at a full stop, a colon, a semicolon, a question mark, or with its paragraph, list item or table cell.
Code, addresses and figures in Markdown count as one word each.
"""

from __future__ import annotations

import argparse
import ast
import io
import re
import subprocess
import sys
import tokenize
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

TOP = Path(__file__).resolve().parents[1]
LONGEST = 30  # words
# Dated figures, each with its command: read as a table is.
_RECORDS = "docs/measurements/"
# Words of the codebase's own making, and what people write instead.
DIALECT = {
    r"nobody knows|nobody has (tried|built|heard)": "unknown, untested, never built",
    r"is another (Triton|LLVM|AOTriton)": "differs",
    r"\bobey": "follows, does as told",
    r"\blied\b|\bspoil": "was wrong, damaged",
    r"can be had|cannot be had": "is available",
    r"of no use": "unused, empty",
    r"Error: (it|one of them) is none\b": "is invalid",
    r"had nowhere": "not available from any source",
}
# Archaic or inverted turns of phrase, and what people write instead.
TURNS = {
    r"signature counts|\bcounts? too\b": "is accepted, is used",
    r"\b[Aa]gain for (each|one)\b": "repeatable",
    r"[Tt]ake(s|n)? in nothing": "refuse, accept only",
    r"with commas between": "comma-separated",
    r"\bgo(es)? on\b": "continues",
    r"\banew\b": "again, from the start",
    r"came out the same": "is reproducible, is equal",
    r"\bthat very\b": "exactly that",
    r"\boverrul": "override",
    r"\bwhat it is at\b|\bhow far they are\b": "progress",
    r"\b(is|are) told\b(?! to\b| apart\b)|\btells of\b|\bno text tells\b": "is reported, is shown",
    r"\bwhat (?!it\b).{1,20} has not\b": "missing",
    r"\bfor people\b": "human-readable, for display",
    r"\b(what|how) .{1,25} (is|are) called\b": "the name",
    r"\b([Nn]one|empty|nothing) where\b|\bwhere there (is|are) (none|no)\b": "if there is none",
    r"\blies?\b": "is",
    r"\bstands? (there|where|behind)\b|\b(it|they|what|they mean|it means) stands? in\b": "is in",
    r"(?<!here )\b(is|are) no (?!longer\b|more\b|other\b)": "is not a",
    r"\b([Nn]obody|[Ss]omebody)\b": "no one, another process, users",
    r"\b(was|were|is) asked for\b|\bthan asked for\b": "requested",
    r"\blet in\b": "accepted",
    r"\bas (\S+ ){1,3}ha(s|ve) it\b": "as in",
    r"\b[Ss]ays? whether\b|\b[Tt]ells? whether\b": "checks whether, returns",
}
_QUOTES_DATA = ("docs/registries.md",)
# Where turns are looked for besides the documentation.
_CODE_FILES = ("toolchain/*.py", "scripts/*.py", "tests/*.py", "toolchain/data/*.toml")
_RECIPES = tuple(
    f"{folder}/*{kind}"
    for folder in ("containerfiles", "llvm-config", "aotriton")
    for kind in (".py", ".sh", ".cmake", ".txt", ".toml")
)
# They hold the words themselves.
_UNCHANGED = ("scripts/prose.py", "tests/unit/test_words.py")
_END = re.compile(r"(?<=[.?!:;])\s+")
_CODE = re.compile(r"``.+?``|`[^`]*`|\[([^\]]*)\]\([^)]*\)")
_WORD = re.compile(r"[A-Za-z0-9][\w'./+-]*")


class Sentence(NamedTuple):
    """One sentence: where it begins and its words."""

    path: str
    line: int
    words: int
    text: str


def sentences(text: str) -> Iterator[tuple[str, int]]:
    """Every sentence of a paragraph with its number of words."""
    plain = _CODE.sub(lambda found: found[1] or "CODE", " ".join(text.split()))
    for sentence in _END.split(plain):
        yield sentence, len(_WORD.findall(sentence))


def paragraphs_of_markdown(text: str) -> Iterator[tuple[int, str]]:
    """Paragraphs, list items and table cells with their line, without code blocks."""
    start, held, fenced = 0, list[str](), False
    for number, line in enumerate([*text.splitlines(), ""], 1):
        if line.lstrip().startswith("```"):
            fenced = not fenced
            line = ""  # noqa: PLW2901 - a fence ends a paragraph
        elif fenced:
            continue
        fresh = re.match(r"\s*(?:[-*|#>]|\d+\.)\s?", line)
        if held and (not line.strip() or fresh):
            yield start, " ".join(held)
            held = []
        if line.lstrip().startswith("|"):
            yield from ((number, cell) for cell in re.split(r"(?<!\\)\|", line))
        elif line.strip():
            start = start if held else number
            held.append(line[fresh.end() :] if fresh else line)


def paragraphs_of_python(text: str) -> Iterator[tuple[int, str]]:
    """Docstrings by paragraph, and what `help=`, `what`, `why=` and `fix=` say."""
    tree = ast.parse(text)
    for node in ast.walk(tree):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            for part in re.split(r"\n\s*\n|\n(?=\s+\w+(?:, \w+)*: )|\n(?=    )", ast.get_docstring(node) or ""):
                yield getattr(node, "lineno", 1), part
        elif isinstance(node, ast.Call):
            said = [keyword.value for keyword in node.keywords if keyword.arg in {"help", "why", "fix"}]
            if getattr(node.func, "id", "").endswith("Error"):
                said += node.args[:1]
            yield from ((node.lineno, _literal(value)) for value in said)


def _literal(value: ast.expr) -> str:
    if isinstance(value, ast.Constant) and isinstance(value.value, str):
        return value.value
    if isinstance(value, ast.JoinedStr):
        return "".join(_literal(part) if isinstance(part, ast.Constant) else "CODE" for part in value.values)
    return ""


def comments(path: Path) -> Iterator[tuple[int, str]]:
    """Runs of comment lines as one text each, with the line of the first; for Python and TOML."""
    text, found = path.read_text(encoding="utf-8"), dict[int, str]()
    if path.suffix == ".py":
        for token in tokenize.generate_tokens(io.StringIO(text).readline):
            if token.type == tokenize.COMMENT:
                found[token.start[0]] = token.string
    else:
        found = {number: line for number, line in enumerate(text.splitlines(), 1) if line.startswith("#")}
    start, held = 0, list[str]()
    for number in sorted(found):
        if held and number != start + len(held):
            yield start, " ".join(held)
            held = []
        start = start if held else number
        held.append(found[number].lstrip("# "))
    if held:
        yield start, " ".join(held)


def too_long(path: Path, name: str) -> Iterator[Sentence]:
    """The sentences of a file that are too long."""
    text = path.read_text(encoding="utf-8")
    parts = paragraphs_of_markdown(text) if path.suffix == ".md" else paragraphs_of_python(text)
    for line, part in parts:
        for sentence, words in sentences(part):
            if words > LONGEST:
                yield Sentence(name, line, words, sentence)


def in_dialect(path: Path, name: str) -> Iterator[Sentence]:
    """The sentences of a file with a pattern of `DIALECT` or `TURNS`, in comments too."""
    where = path.as_posix()
    patterns = [*DIALECT, *(() if where.endswith(_QUOTES_DATA) else TURNS)]
    if path.suffix == ".md":
        parts = list(paragraphs_of_markdown(path.read_text(encoding="utf-8")))
    else:
        python = path.suffix == ".py"
        parts = [*(paragraphs_of_python(path.read_text(encoding="utf-8")) if python else ()), *comments(path)]
    for line, part in parts:
        for sentence, words in sentences(part):
            if any(re.search(pattern, sentence) for pattern in patterns):
                yield Sentence(name, line, words, sentence)


def own_files() -> list[Path]:
    """The files of the rule about long sentences: the documentation and the tool."""
    return [TOP / name for name in _listed("*.md", "toolchain/*.py", ":!*.LICENSE.md") if not name.startswith(_RECORDS)]


def files_of_words() -> list[Path]:
    """The files of the rule about words: also scripts, tests and data."""
    names = _listed("*.md", *_CODE_FILES, *_RECIPES, ":!*.LICENSE.md")
    return [TOP / name for name in names if name not in _UNCHANGED and not name.startswith(_RECORDS)]


def _listed(*patterns: str) -> list[str]:
    done = subprocess.run(["git", "ls-files", *patterns], cwd=TOP, capture_output=True, text=True, check=True)
    return [name for name in done.stdout.splitlines() if (TOP / name).is_file()]


def main() -> int:
    """Print every sentence that is too long."""
    parser = argparse.ArgumentParser(description="Sentences of over 30 words.")
    parser.add_argument("files", type=Path, nargs="*", help="Markdown or Python; by default docs and tool")
    asked = parser.parse_args()
    found = [
        row
        for path in asked.files or own_files()
        for row in too_long(path, str(path.relative_to(TOP) if path.is_relative_to(TOP) else path))
    ]
    for row in found:
        print(f"{row.path}:{row.line}: {row.words} words: {row.text}")
    odd = [row for path in asked.files or files_of_words() for row in in_dialect(path, str(path))]
    for row in odd:
        print(f"{row.path}:{row.line}: use other words: {row.text}")
    return 1 if found or odd else 0


if __name__ == "__main__":
    sys.exit(main())
