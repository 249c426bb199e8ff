"""Tests of the workflows by actionlint with shellcheck, by zizmor, and by rules of this project."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

TOP = Path(__file__).resolve().parents[2]
FOLDER = TOP / ".github" / "workflows"
WORKFLOWS = sorted(FOLDER.glob("*.yml"))
_PINNED = re.compile(r"[\w.-]+(?:/[\w.-]+)+@[0-9a-f]{40}")

GOOD = """\
name: good
on:
  push:
    branches: [main]
permissions: {}
concurrency:
  group: good
  cancel-in-progress: false
jobs:
  one:
    name: One
    runs-on: ubuntu-24.04
    timeout-minutes: 5
    permissions:
      contents: read # to check out
    steps:
      - uses: actions/checkout@3d3c42e5aac5ba805825da76410c181273ba90b1 # v7.0.1
        with:
          persist-credentials: false
      - name: Say so
        env:
          TITLE: ${{ github.ref }}
        run: echo "$TITLE"
"""


def program(name: str) -> str:
    """Return the path of a linter, or skip the test if the linter is not installed."""
    found = shutil.which(name, path=str(Path(sys.executable).parent)) or shutil.which(name)
    if found is None:
        pytest.skip(f"{name.upper()} IS NOT INSTALLED: no workflow is checked (pip install '.[test]')")
    return found


def actionlint(*files: Path) -> subprocess.CompletedProcess[str]:
    shellcheck = shutil.which("shellcheck")
    if shellcheck is None:
        pytest.skip("SHELLCHECK IS NOT INSTALLED: no shell in workflows is checked (apt-get install shellcheck)")
    words = [program("actionlint"), "-no-color", "-oneline", "-shellcheck", shellcheck, *map(str, files)]
    return subprocess.run(words, cwd=TOP, capture_output=True, text=True, check=False)


def zizmor(*places: Path) -> subprocess.CompletedProcess[str]:
    words = [program("zizmor"), "--offline", "--quiet", "--no-progress", "--persona", "pedantic", "--strict-collection"]
    return subprocess.run(
        [*words, "--format", "plain", *map(str, places)], cwd=TOP, capture_output=True, text=True, check=False
    )


def test_actionlint_finds_nothing() -> None:
    assert len(WORKFLOWS) >= 6
    done = actionlint(*WORKFLOWS)
    assert (done.returncode, done.stdout) == (0, ""), done.stdout + done.stderr


def test_zizmor_finds_nothing() -> None:
    done = zizmor(TOP / ".github", TOP / "action.yml")
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.fixture
def workflow(tmp_path: Path) -> Path:
    path = tmp_path / ".github" / "workflows" / "some.yml"
    path.parent.mkdir(parents=True)
    path.write_text(GOOD)
    return path


def changed(path: Path, old: str, new: str) -> Path:
    text = path.read_text()
    assert text.count(old) == 1
    path.write_text(text.replace(old, new))
    return path


@pytest.mark.parametrize(
    ("old", "new", "told"),
    [
        ("github.ref }}", "github.reff }}", "reff"),
        ('echo "$TITLE"', "echo $TITLE", "SC2086"),
    ],
)
def test_actionlint_reports_faults(workflow: Path, old: str, new: str, told: str) -> None:
    done = actionlint(changed(workflow, old, new))
    assert done.returncode == 1
    assert told in done.stdout


@pytest.mark.parametrize(
    ("old", "new", "told"),
    [
        ('echo "$TITLE"', 'echo "${{ github.head_ref }}"', "template-injection"),
        ("@3d3c42e5aac5ba805825da76410c181273ba90b1 # v7.0.1", "@v7", "unpinned-uses"),
        ("permissions: {}", "permissions: write-all", "excessive-permissions"),
    ],
)
def test_zizmor_reports_faults(workflow: Path, old: str, new: str, told: str) -> None:
    done = zizmor(changed(workflow, old, new))
    assert done.returncode not in {0, 1}, "1 would be zizmor's own failure"
    assert told in done.stdout


# Rules of this project


def jobs() -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield the name `file:job` and the content of each job of each workflow."""
    for path in WORKFLOWS:
        for name, job in yaml.safe_load(path.read_text())["jobs"].items():
            yield f"{path.stem}:{name}", job


def test_each_action_is_pinned_to_one_commit() -> None:
    seen: dict[str, set[str]] = {}
    for path in WORKFLOWS:
        for line in path.read_text().splitlines():
            if found := re.search(r"uses: (\S+)(.*)", line):
                used, comment = found.groups()
                if used.startswith("$/"):
                    assert (TOP / used.removeprefix("$/")).is_file(), used
                    continue
                assert _PINNED.fullmatch(used), f"{path.name}: {used}"
                assert re.fullmatch(r" # v\d+\.\d+\.\d+", comment), f"{path.name}: {line}"
                action = "/".join(used.partition("@")[0].split("/")[:2])
                seen.setdefault(action, set()).add(used.partition("@")[2] + comment)
    assert len(seen) >= 6
    assert {action for action, pins in seen.items() if len(pins) != 1} == set()


def test_only_listed_jobs_have_write_permissions_and_environments() -> None:
    """The workflows have no permissions at the top level, so that each job must request its own."""
    writes: dict[str, set[str]] = {}
    for path in WORKFLOWS:
        assert yaml.safe_load(path.read_text())["permissions"] == {}, path.name
    for name, job in jobs():
        given = job.get("permissions", {})
        assert isinstance(given, dict), name
        if words := {word for word, level in given.items() if level == "write"}:
            writes[name] = words
    assert writes == {
        "publish:publish": {"packages", "id-token", "attestations"},
        "pins:open": {"issues", "actions"},
        "site:deploy": {"pages", "id-token"},
        "tool:release": {"contents", "id-token", "attestations"},
    }
    environments = {name: job["environment"] for name, job in jobs() if "environment" in job}
    pages = {"name": "github-pages", "url": "${{ steps.deploy.outputs.page_url }}"}
    assert environments == {"publish:publish": "ghcr", "publish:keys": "ghcr", "site:deploy": pages}
    for path in WORKFLOWS:
        said = set(re.findall(r"secrets\.(\w+)", path.read_text()))
        assert said == ({"TOOLCHAIN_SIGNING_KEY"} if path.stem == "publish" else set())


def test_jobs_have_timeouts_and_only_tests_run_on_pull_requests() -> None:
    for name, job in jobs():
        assert "uses" in job or 0 < job["timeout-minutes"] < 360, f"{name}: hosted runners end jobs after six hours"
    for path in WORKFLOWS:
        on = yaml.safe_load(path.read_text())[True]  # YAML 1.1 reads the key `on` as true
        assert "pull_request_target" not in on
        assert "workflow_run" not in on
        assert ("pull_request" in on) == (path.stem == "test")


def test_cancelled_run_saves_no_cache_or_artifact() -> None:
    """The processes of a cancelled run continue in the container, and may still write to the files."""
    for name, job in jobs():
        for step in job.get("steps", []):
            if step.get("uses", "").startswith(("actions/cache/save@", "actions/upload-artifact@")):
                condition = str(step.get("if", ""))
                assert "always()" not in condition, f"{name}: {step.get('name')}"


def test_jobs_that_build_and_publish_use_the_same_image() -> None:
    images = {name: job["container"]["image"] for name, job in jobs() if "container" in job}
    assert set(images) == {"test:test", "stage:build", "publish:publish"}
    assert len(set(images.values())) == 1
    assert "@sha256:" in images["stage:build"]
