"""The recipes for GitHub, Slurm and Kubernetes: linters accept them, and the tool parses the calls in them."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import yaml

from tests.unit.test_site import check_line
from tests.unit.test_workflows import TOP, actionlint, zizmor

FOLDER = TOP / "examples" / "many-machines"
PAGE = (TOP / "docs" / "tasks" / "many-machines.md").read_text(encoding="utf-8")
SLURM = sorted(FOLDER.glob("slurm-*.sh"))
KUBERNETES = sorted(FOLDER.glob("kubernetes-*.yml"))
GITHUB = FOLDER / "github-matrix.yml"
# The options that differ between the calls of one campaign.
OWN = ("--shard", "--kernel-store", "--reuse-from", "--public-key", "--key")
# The script records its arguments, each ended by a NUL, and ends the call with another NUL.
RECORDER = '#!/bin/sh\nprintf "%s\\0" "$@" >> "$RECORD.{name}"\nprintf "\\0" >> "$RECORD.{name}"\n{more}'


def loaded(path: Path) -> dict[str, Any]:
    found = yaml.safe_load(path.read_text(encoding="utf-8"))
    assert isinstance(found, dict)
    return found


class Recorders:
    """Programs that record their arguments, and a folder to run in."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        (folder / "bin").mkdir()
        for name, more in {"toolchain": ': "${TOOLCHAIN_LOCK_FILE:?}"\n', "sbatch": "echo '77;somewhere'\n"}.items():
            program = folder / "bin" / name
            program.write_text(RECORDER.format(name=name, more=more))
            program.chmod(0o755)

    def run(self, words: list[str], ends: int = 0, /, **variables: str) -> None:
        """Run the words with only the given variables, a home and the variables of the recorders."""
        known = {"PATH": f"{self.folder / 'bin'}:{os.environ['PATH']}", "HOME": str(self.folder / "home of one")}
        known["RECORD"] = str(self.folder / "record")
        done = subprocess.run(
            words, cwd=self.folder, env=known | variables, capture_output=True, text=True, timeout=300, check=False
        )
        assert (done.returncode, done.stderr) == (ends, "")

    def calls(self, name: str) -> list[list[str]]:
        """Return the arguments of each call of a program."""
        record = self.folder / f"record.{name}"
        return [one.split("\0") for one in record.read_text().removesuffix("\0\0").split("\0\0")]

    def compiled(self) -> tuple[list[list[str]], list[str], list[str]]:
        """Return the calls that compile shards, the merge, and the call that publishes its image.

        Check that each shard and the merge first import the bundle, then reuse Triton without a build.
        """
        calls = self.calls("toolchain")
        *calls, sent = calls
        brought, taken, rest = calls[::3], calls[1::3], calls[2::3]
        assert len(brought) == len(taken) == len(rest)
        for bring, take, words in zip(brought, taken, rest, strict=True):
            check_line(["toolchain", *bring])
            check_line(["toolchain", *take])
            place = take[take.index("--reuse-from") + 1]
            assert bring == ["bundle", "import", f"{place}/kernels-bundle:latest"]
            assert take[:2] == ["build", "triton"]
            assert take[-1] == "--reuse-only"
            *options, goes_on = without(words, *OWN)
            assert goes_on == "--keep-going"
            assert without(take[2:-1], *OWN) == options[-6:], "the options are alike"
        return rest[:-1], rest[-1], sent


@pytest.fixture
def recorders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Recorders:
    for name in [name for name in os.environ if name.startswith("TOOLCHAIN_")]:
        monkeypatch.delenv(name)
    monkeypatch.chdir(tmp_path)
    return Recorders(tmp_path)


def without(words: list[str], *options: str) -> list[str]:
    """Return the words without these options and their values."""
    return [one for at, one in enumerate(words) if one not in options and (at == 0 or words[at - 1] not in options)]


def check(shards: list[list[str]], count: int, merge: list[str], sent: list[str]) -> None:
    """Check that the tool parses all calls, that each shard occurs once, and that the merge has the shards' options."""
    for words in [*shards, merge, sent]:
        check_line(["toolchain", *words])
    cuts = sorted(words[words.index("--shard") + 1] for words in shards)
    assert cuts == sorted(f"{number}/{count}" for number in range(1, count + 1))
    (common,) = {tuple(without(words, *OWN)) for words in shards}
    assert common[:3] == ("kernels", "run", "aotriton")
    assert merge[:3] == ["kernels", "merge", "aotriton"]
    options = list(common[3:])
    assert without(merge, *OWN)[-len(options) :] == options, "the merge takes the options of the shards"
    assert sent[:1] == ["publish"]
    assert sent[-2] == "--key", "it is signed as what it was made of is"
    assert without(sent, *OWN)[2:] == ["aotriton"]


def test_the_page_shows_the_commands_of_a_shard() -> None:
    script = (FOLDER / "slurm-shard.sh").read_text(encoding="utf-8")
    assert f"\n{script[script.index('toolchain bundle') :]}```\n" in PAGE


def test_github_passes_the_linters_of_our_workflows() -> None:
    linted, audited = actionlint(GITHUB), zizmor(GITHUB)
    assert (linted.returncode, linted.stdout) == (0, "")
    assert audited.returncode == 0, audited.stdout


def test_github_recipe_uses_the_pins_of_our_workflows() -> None:
    ours = "".join(path.read_text() for path in (TOP / ".github" / "workflows").glob("*.yml"))
    jobs = loaded(GITHUB)["jobs"].values()
    used = [step["uses"] for job in jobs for step in job["steps"] if "uses" in step]
    used += [job["container"]["image"] for job in jobs]
    assert len(used) == 7
    assert [one for one in used if one not in ours] == []


def github(recorders: Recorders, job: dict[str, Any], **variables: str) -> None:
    """Run the steps of a job that call the tool."""
    for step in job["steps"]:
        if "toolchain " in step.get("run", ""):
            recorders.run(["bash", "-eo", "pipefail", "-c", step["run"]], **loaded(GITHUB)["env"] | variables)


def test_github_calls_the_tool_with_every_shard(recorders: Recorders) -> None:
    jobs = loaded(GITHUB)["jobs"]
    numbers = jobs["shard"]["strategy"]["matrix"]["number"]
    for number in numbers:
        github(recorders, jobs["shard"], NUMBER=str(number))
        (recorders.folder / f"part-{number}").mkdir()
    github(recorders, jobs["merge"])
    shards, last, sent = recorders.compiled()
    check(shards, len(numbers), last, sent)
    assert last[3:7] == ["part-1", "part-2", "part-3", "part-4"]
    assert {words[words.index("--kernel-store") + 1] for words in shards} == {
        jobs["shard"]["steps"][-1]["with"]["path"]
    }


@pytest.mark.parametrize("path", SLURM, ids=lambda path: path.name)
def test_scripts_of_slurm_pass_the_linters(path: Path) -> None:
    assert subprocess.run(["sh", "-n", path], check=False).returncode == 0
    if (shellcheck := shutil.which("shellcheck")) is None:
        pytest.skip("SHELLCHECK IS NOT INSTALLED: no script of Slurm is checked (apt-get install shellcheck)")
    done = subprocess.run([shellcheck, "--severity=style", path], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, "")


def test_slurm_calls_the_tool_with_every_shard(recorders: Recorders) -> None:
    script = FOLDER / "slurm-shard.sh"
    (array,) = [line for line in script.read_text().splitlines() if line.startswith("#SBATCH --array=")]
    first, _, last = array.partition("=")[2].partition("-")
    for number in range(int(first), int(last) + 1):
        recorders.run(["sh", str(script)], SLURM_ARRAY_TASK_ID=str(number), SLURM_JOB_ID=str(100 + number))
    recorders.run(["sh", str(FOLDER / "slurm-merge.sh")], SLURM_JOB_ID="200")
    shards, merge, sent = recorders.compiled()
    check(shards, int(last), merge, sent)
    assert {words[words.index("--kernel-store") + 1] for words in shards} == {merge[3]}


@pytest.mark.parametrize(("code", "ends"), [(12, 0), (9, 1), (0, 0)])
def test_slurm_scripts_continue_only_after_failed_kernels(recorders: Recorders, code: int, ends: int) -> None:
    """With --keep-going, a campaign with a failed kernel exits with 12, and the merge reports what is missing."""
    program = recorders.folder / "bin" / "toolchain"
    program.write_text(f'{program.read_text()}\ncase "$*" in *--shard*|*merge*) exit {code} ;; esac\n')
    recorders.run(["sh", str(FOLDER / "slurm-shard.sh")], ends, SLURM_ARRAY_TASK_ID="1", SLURM_JOB_ID="101")
    recorders.run(["sh", str(FOLDER / "slurm-merge.sh")], ends, SLURM_JOB_ID="200")
    assert (recorders.calls("toolchain")[-1][0] == "publish") == (ends == 0)


def test_slurm_merges_after_all_shards(recorders: Recorders) -> None:
    recorders.run(["sh", str(FOLDER / "slurm-submit.sh")])
    assert recorders.calls("sbatch") == [
        ["--parsable", "slurm-shard.sh"],
        ["--dependency=afterok:77", "slurm-merge.sh"],
    ]


@pytest.mark.parametrize("path", KUBERNETES, ids=lambda path: path.name)
def test_jobs_of_kubernetes_fit_the_schema(path: Path) -> None:
    latest = kubernetes_validate.latest_version()
    kubernetes_validate.validate(loaded(path), latest, strict=True)
    wrong = loaded(path)
    wrong["spec"]["completionsMode"] = "Indexed"
    with pytest.raises(kubernetes_validate.ValidationError):
        kubernetes_validate.validate(wrong, latest, strict=True)


def test_kubernetes_calls_the_tool_with_every_shard(recorders: Recorders) -> None:
    merge, shards = (loaded(path)["spec"] for path in KUBERNETES)
    assert shards["completionMode"] == "Indexed"
    (container,) = shards["template"]["spec"]["containers"]
    given = {row["name"]: row["value"] for row in container["env"]}
    for index in range(shards["completions"]):
        recorders.run([*container["command"], *container["args"]], **given, JOB_COMPLETION_INDEX=str(index))
    (after,) = merge["template"]["spec"]["containers"]
    recorders.run([*after["command"], *after["args"]], **{row["name"]: row["value"] for row in after["env"]})
    called, last, sent = recorders.compiled()
    check(called, shards["completions"], last, sent)
    assert {words[words.index("--kernel-store") + 1] for words in called} == {last[3]}
