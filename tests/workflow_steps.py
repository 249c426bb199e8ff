"""A runner of workflows: it runs the shell steps of the YAML with the values that GitHub would give them.

A step that `uses:` an action is replaced by a function in `STAND_INS`, or refused. The runner records the result
of each step, and the replaced actions.
"""

from __future__ import annotations

import fnmatch
import itertools
import os
import re
import shutil
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from tests.workflow_expressions import ExpressionError, Scope, holds, shown, value_of
from tests.workflow_machine import HOME, TEMP, WORKSPACE, Machine
from toolchain.core.digest import sha256_file

TOP = Path(__file__).resolve().parents[1]
_SHELLS = {
    "bash": ["bash", "--noprofile", "--norc", "-e", "-o", "pipefail", "{0}"],
    "": ["bash", "-e", "{0}"],
    "sh": ["sh", "-e", "{0}"],
}


@dataclass(kw_only=True)
class Event:
    """The values that GitHub gives to a run.

    Args:
        secrets: the secrets of each environment, by the environment's name; a fork has none.
        cancels: by the name of a step, a function that returns whether to cancel the step; it is called about ten
            times a second.
    """

    name: str = "workflow_dispatch"
    ref: str = "refs/heads/main"
    repository: str = "Somebody/Toolchain"
    actor: str = "somebody"
    token: str = "the-token"
    inputs: dict[str, Any] = field(default_factory=dict)
    variables: dict[str, str] = field(default_factory=dict)
    secrets: dict[str, dict[str, str]] = field(default_factory=dict)
    private: bool = False
    fork: bool = False
    run_id: int = 1
    cancels: dict[str, Callable[[Machine], bool]] = field(default_factory=dict)

    def github(self, workflow: str, job: str) -> dict[str, Any]:
        """Return the `github` context of a job."""
        kind = "tag" if self.ref.startswith("refs/tags/") else "branch"
        repository = {"default_branch": "main", "private": self.private, "fork": self.fork}
        return {
            "event_name": self.name, "ref": self.ref, "ref_type": kind, "ref_name": self.ref.split("/", 2)[2],
            "repository": self.repository, "actor": self.actor, "token": self.token, "run_id": self.run_id,
            "run_attempt": 1, "workflow": workflow, "job": job, "sha": "5" * 40,
            "event": {"repository": repository}, "server_url": "https://github.example", "workspace": WORKSPACE,
        }  # fmt: skip


@dataclass
class Ran:
    """The record of a step: `result` is success, failure, cancelled or skipped; `stood_in` is the replaced action."""

    job: str
    step: str
    result: str
    stood_in: str = ""
    shell: bool = False
    seconds: float = 0


@dataclass(kw_only=True)
class Service:
    """The data that GitHub keeps between jobs, and the maker of the jobs' machines.

    Args:
        folder: the folder of the artifacts, the caches, and each job's home.
        machine: a function that makes the machine of a job from its name, its YAML and its home.
        environment: the `.venv` of an earlier job, which a checkout adds to the workspace.
    """

    folder: Path
    machine: Callable[[str, Mapping[str, Any], Path], Machine]
    environment: Path | None = None
    ran: list[Ran] = field(default_factory=list)
    attested: list[dict[str, str]] = field(default_factory=list)
    approvals: list[str] = field(default_factory=list)
    kept: Callable[[str, Machine], None] | None = None
    _numbers: Any = field(default_factory=itertools.count)

    def place(self, kind: str, name: str) -> Path:
        """Return the path of an artifact or a cache."""
        return self.folder / kind / name.replace("/", "%2F")

    def home(self) -> Path:
        """Return the home of the next job."""
        return self.folder / "jobs" / str(next(self._numbers))

    def log(self, job: str) -> Path:
        """Return the path of the log of a job."""
        return self.folder / f"{re.sub('[^A-Za-z0-9.]+', '-', job)}.log"

    def steps(self, job: str, result: str) -> list[str]:
        """Return the names of the steps of a job that had a result."""
        return [one.step for one in self.ran if one.job == job and one.result == result]


class Job:
    """The steps of one job, or of a composite action, on one machine."""

    def __init__(
        self, name: str, yaml_: Mapping[str, Any], contexts: dict[str, Any], *, event: Event, service: Service
    ) -> None:
        self.name, self._yaml, self._event, self._service = name, yaml_, event, service
        self._contexts = contexts | {"steps": {}, "runner": {"temp": TEMP, "os": "Linux", "arch": "X64"}}
        self._status = "success"
        self._env: dict[str, str] = {}
        self._path: list[str] = []
        self.machine = service.machine(name, yaml_, service.home())

    def run(self) -> tuple[str, dict[str, str]]:
        """Run the steps, and return the job's result and its outputs."""
        try:
            self._contexts["env"] = {}
            for step in self._yaml["steps"]:
                self._one(step)
            if self._status == "success" and self._service.kept is not None:
                self._service.kept(self.name, self.machine)
        finally:
            self.machine.remove()
        scope = self._scope()
        return self._status, {key: shown(value_of(text, scope)) for key, text in self._yaml.get("outputs", {}).items()}

    def _scope(self, env: Mapping[str, str] | None = None) -> Scope:
        return Scope(self._contexts | {"env": dict(env or {})}, self._status)

    def _environment(self, step: Mapping[str, Any]) -> dict[str, str]:
        env = {key: shown(value_of(text, self._scope())) for key, text in self._yaml.get("env", {}).items()} | self._env
        env |= {key: shown(value_of(text, self._scope(env))) for key, text in step.get("env", {}).items()}
        return env

    def _one(self, step: Mapping[str, Any]) -> None:
        name = str(step.get("name") or step.get("uses", "").partition("@")[0] or step["run"].splitlines()[0])
        if not holds(step.get("if"), self._scope(self._environment({}))):
            self._note(name, "skipped", step, {})
            return
        outputs: dict[str, str] = {}
        start = time.monotonic()
        if "uses" in step:
            result = self._stand_in(step)
        else:
            result, outputs = self._shell(name, step)
        self._note(name, result, step, outputs)
        self._service.ran[-1].seconds = round(time.monotonic() - start, 1)
        if result != "success" and not step.get("continue-on-error"):
            self._status = "cancelled" if "cancelled" in {result, self._status} else "failure"

    def _note(self, name: str, result: str, step: Mapping[str, Any], outputs: dict[str, str]) -> None:
        used = step.get("uses", "").partition("@")[0]
        self._service.ran.append(Ran(self.name, name, result, used if result != "skipped" else "", "run" in step))
        if "id" in step:
            self._contexts["steps"][step["id"]] = {"outputs": outputs, "outcome": result, "conclusion": result}

    def _shell(self, name: str, step: Mapping[str, Any]) -> tuple[str, dict[str, str]]:
        defaults = self._yaml.get("defaults", {}).get("run", {})
        container = "container" in self._yaml
        shell = step.get("shell", defaults.get("shell", "sh" if container else ""))
        github = self._contexts["github"]
        files = {name: f"{TEMP}/{name.lower()}" for name in ("GITHUB_ENV", "GITHUB_OUTPUT", "GITHUB_PATH")}
        for file in (*files.values(), f"{TEMP}/summary"):
            self.machine.outside(file).open("ab" if file.endswith("summary") else "wb").close()
        env = {
            "CI": "true", "GITHUB_ACTIONS": "true", "GITHUB_STEP_SUMMARY": f"{TEMP}/summary", "RUNNER_TEMP": TEMP,
            "RUNNER_OS": "Linux", "HOME": HOME,
            **{f"GITHUB_{key.upper()}": shown(value) for key, value in github.items() if key not in {"event", "token"}},
            **files, **self._environment(step),
        }  # fmt: skip
        log = self._service.log(self.name)
        with log.open("a") as sink:
            sink.write(f"== {name}\n")
        stop = self._event.cancels.get(name)
        seen: list[bool] = []

        def asked() -> bool:
            if not seen and stop is not None and stop(self.machine):
                seen.append(True)
            return bool(seen)

        if step.get("working-directory"):
            raise ExpressionError("working-directory is not known here: no workflow uses it")
        script = str(value_of(step["run"], self._scope(env)))
        code = self.machine.run(_SHELLS[shell], script, env, log=log, cancel=asked if stop is not None else None)
        read = {name: _pairs(self.machine.outside(file)) for name, file in files.items() if name != "GITHUB_PATH"}
        self._env |= read["GITHUB_ENV"]
        return ("cancelled" if seen else "success" if code == 0 else "failure"), read["GITHUB_OUTPUT"]

    def _stand_in(self, step: Mapping[str, Any]) -> str:
        used = step["uses"].partition("@")[0]
        if used not in STAND_INS:
            raise ExpressionError(f"nothing stands in for {used}")
        scope = self._scope(self._environment(step))
        given = {key: value_of(text, scope) for key, text in step.get("with", {}).items()}
        return "success" if STAND_INS[used](self._service, self.machine, given) else "failure"


def _pairs(path: Path) -> dict[str, str]:
    """Parse a file with lines NAME=VALUE, or NAME<<END and lines up to END."""
    found: dict[str, str] = {}
    lines = iter(path.read_text().splitlines())
    for line in lines:
        if match := re.fullmatch(r"([^=<]+)<<(.+)", line):
            found[match[1]] = "\n".join(itertools.takewhile(lambda one, end=match[2]: one != end, lines))  # type: ignore[misc]
        elif line:
            name, _, found_value = line.partition("=")
            found[name] = found_value
    return found


# The functions that replace actions. Each returns whether it succeeded.


def _checkout(service: Service, machine: Machine, given: Mapping[str, Any]) -> bool:
    assert given.get("persist-credentials") is False
    names = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=TOP,
        capture_output=True,
        check=True,
    ).stdout.decode()
    for name in filter(None, names.split("\0")):
        if (TOP / name).is_file():
            target = machine.outside(name)
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(TOP / name, target)
    if service.environment is not None:
        # Hard links suffice, because no job writes to an existing file of the environment.
        shutil.copytree(service.environment, machine.outside(".venv"), symlinks=True, copy_function=os.link)
    return True


def _python(service: Service, machine: Machine, given: Mapping[str, Any]) -> bool:
    return True  # the container has a Python


def _restore(service: Service, machine: Machine, given: Mapping[str, Any]) -> bool:
    wanted = [given["key"], *str(given.get("restore-keys", "")).split()]
    there = sorted((service.folder / "caches").glob("*"), key=lambda path: path.stat().st_mtime, reverse=True)
    for prefix in wanted:
        for path in there:
            if path.name.startswith(prefix.replace("/", "%2F")):
                shutil.copytree(path, machine.outside(given["path"]), dirs_exist_ok=True)
                return True
    return True


def _save(service: Service, machine: Machine, given: Mapping[str, Any]) -> bool:
    place = service.place("caches", given["key"])
    if machine.outside(given["path"]).is_dir() and not place.exists():
        shutil.copytree(machine.outside(given["path"]), place)
    return True


def _upload(service: Service, machine: Machine, given: Mapping[str, Any]) -> bool:
    source, place = machine.outside(given["path"]), service.place("artifacts", given["name"])
    if not source.exists() or (source.is_dir() and not any(source.iterdir())):
        return given.get("if-no-files-found") != "error"
    if place.exists():
        assert given.get("overwrite"), f"there is an artifact {given['name']} already"
        shutil.rmtree(place)
    place.mkdir(parents=True)
    if source.is_dir():
        shutil.copytree(source, place, dirs_exist_ok=True)
    else:
        shutil.copy2(source, place)
    return True


def _download(service: Service, machine: Machine, given: Mapping[str, Any]) -> bool:
    target = machine.outside(given["path"])
    if "pattern" not in given:
        place = service.place("artifacts", given["name"])
        return place.is_dir() and bool(shutil.copytree(place, target, dirs_exist_ok=True))
    for place in sorted((service.folder / "artifacts").glob("*")):
        if fnmatch.fnmatchcase(place.name, given["pattern"]):
            shutil.copytree(place, target / place.name, dirs_exist_ok=True)
    return True  # no artifact is not an error


def _attest(service: Service, machine: Machine, given: Mapping[str, Any]) -> bool:
    if "subject-path" in given:
        paths = sorted(machine.outside(".").glob(given["subject-path"]))
        service.attested += [{"name": path.name, "digest": sha256_file(path)} for path in paths]
        return bool(paths)
    service.attested.append({"name": given["subject-name"], "digest": given["subject-digest"]})
    return bool(given["subject-name"]) and str(given["subject-digest"]).startswith("sha256:")


def _pages(service: Service, machine: Machine, given: Mapping[str, Any]) -> bool:
    return _upload(service, machine, {"name": "github-pages", "if-no-files-found": "error", **given})


def _deploy(service: Service, machine: Machine, given: Mapping[str, Any]) -> bool:
    return (service.place("artifacts", "github-pages") / "index.html").is_file()


STAND_INS: dict[str, Callable[[Service, Machine, Mapping[str, Any]], bool]] = {
    "actions/checkout": _checkout,
    "actions/setup-python": _python,
    "actions/cache/restore": _restore,
    "actions/cache/save": _save,
    "actions/upload-artifact": _upload,
    "actions/download-artifact": _download,
    "actions/attest": _attest,
    "actions/upload-pages-artifact": _pages,
    "actions/deploy-pages": _deploy,
}


# Jobs of a workflow


def read(path: Path) -> dict[Any, Any]:
    """Return the content of a workflow, in which the key `on` is True, because YAML 1.1 reads it so."""
    content: dict[Any, Any] = yaml.safe_load(path.read_text())
    return content


def run_workflow(
    path: Path, event: Event, service: Service, *, inputs: Mapping[str, Any] | None = None, prefix: str = ""
) -> dict[str, str]:
    """Run the jobs of a workflow and of the workflows that it calls, and return the results of its own jobs by name.

    Args:
        inputs: the inputs from a calling workflow; the default is the inputs of the event.
    """
    workflow = read(path)
    kind = "workflow_call" if inputs is not None else event.name
    offered = (workflow[True].get(kind) or {}).get("inputs", {}) if isinstance(workflow[True], dict) else {}
    given = dict(inputs if inputs is not None else event.inputs)
    assert set(given) <= set(offered), f"{path.name} has no inputs {set(given) - set(offered)}"
    filled = {name: given.get(name, one.get("default")) for name, one in offered.items()}
    needs: dict[str, dict[str, Any]] = {}
    results: dict[str, str] = {}
    left = dict(workflow["jobs"])
    while left:
        name = next(one for one, job in left.items() if set(_needed(job)) <= set(needs))
        job = left.pop(name)
        dependencies = {one: needs[one] for one in _needed(job)}
        contexts = {"inputs": filled, "vars": event.variables, "needs": dependencies}
        contexts["github"] = event.github(str(workflow["name"]), name)
        contexts["secrets"] = event.secrets.get(str(job.get("environment", "")), {})
        status = _status(dependencies, needs, workflow["jobs"])
        if not holds(job.get("if"), Scope(contexts, status)):
            result: str = "skipped"
            outputs: dict[str, str] = {}
        else:
            result, outputs = _legs(f"{prefix}{name}", job, contexts, event, service)
        needs[name] = {"result": result, "outputs": outputs}
        results[name] = result
    return results


def _needed(job: Mapping[str, Any]) -> Sequence[str]:
    needs = job.get("needs", [])
    return [needs] if isinstance(needs, str) else needs


def _status(dependencies: Mapping[str, Any], needs: Mapping[str, Any], jobs: Mapping[str, Any]) -> str:
    """Return the status of all jobs that a job needs, directly or indirectly; `success()` checks it."""
    asked, seen = list(dependencies), set()
    while asked:
        one = asked.pop()
        if one not in seen:
            seen.add(one)
            asked += _needed(jobs[one])
    results = {needs[one]["result"] for one in seen}
    return "cancelled" if "cancelled" in results else "success" if results <= {"success"} else "failure"


def _legs(
    name: str, job: Mapping[str, Any], contexts: dict[str, Any], event: Event, service: Service
) -> tuple[str, dict[str, str]]:
    matrix = {key: value_of(text, Scope(contexts)) for key, text in job.get("strategy", {}).get("matrix", {}).items()}
    results: list[str] = []
    outputs: dict[str, str] = {}
    for values in itertools.product(*matrix.values()):
        leg = contexts | {"matrix": dict(zip(matrix, values, strict=True))}
        title = f"{name}({','.join(map(str, values))})" if values else name
        if "environment" in job:
            service.approvals.append(title)
        if "uses" in job:
            called = TOP / job["uses"].removeprefix("$/")
            given = {key: value_of(text, Scope(leg)) for key, text in job.get("with", {}).items()}
            each = set(run_workflow(called, event, service, inputs=given, prefix=f"{title}/").values()) - {"skipped"}
            results.append(next((one for one in ("cancelled", "failure") if one in each), "success"))
        else:
            done, outputs = Job(title, job, leg, event=event, service=service).run()
            results.append(done)
    return next((one for one in ("cancelled", "failure") if one in results), "success"), outputs
