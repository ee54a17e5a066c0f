"""A small model of the CI service: which jobs of a workflow would start, and with what.

It evaluates the expressions of rendered workflows as the service documents them, so that tests
ask what happens instead of comparing text. Only what our workflows use is understood; anything
else is an error.
"""

import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

TOKEN = re.compile(
    r"\s*(?:(?P<text>'(?:[^']|'')*')|(?P<number>\d+)|(?P<name>[A-Za-z_][A-Za-z0-9_.*-]*)"
    r"|(?P<sign>&&|\|\||==|!=|!|\(|\)|,))"
)
INSIDE = re.compile(r"\$\{\{(.*?)\}\}", re.DOTALL)


def load_workflow(path: Path) -> dict[str, Any]:
    return yaml.safe_load(path.read_text(encoding="utf-8"))


def look_up(context: object, dotted: str) -> object:
    """The value of `a.b.*.c` in a context; a missing one is the empty string."""
    found = context
    parts = dotted.split(".")
    for at, part in enumerate(parts):
        if part == "*":
            items = found if isinstance(found, list) else []
            return [look_up(item, ".".join(parts[at + 1 :])) for item in items]
        found = found.get(part, "") if isinstance(found, Mapping) else ""
    return "" if found is None else found


class Expression:
    """One expression, evaluated while it is parsed (both sides of an operator are harmless)."""

    def __init__(self, text: str, context: Mapping[str, object]) -> None:
        self.tokens: list[tuple[str, str]] = []
        at = 0
        while at < len(text.rstrip()):
            found = TOKEN.match(text, at)
            assert found is not None, f"not understood: {text[at:]!r}"
            kind = str(found.lastgroup)
            self.tokens.append((kind, found[kind]))
            at = found.end()
        self.context = context

    def value(self) -> object:
        found = self._or()
        assert not self.tokens, f"left over: {self.tokens}"
        return found

    def _next(self, sign: str) -> bool:
        if self.tokens and self.tokens[0] == ("sign", sign):
            self.tokens.pop(0)
            return True
        return False

    def _or(self) -> object:
        found = self._and()
        while self._next("||"):
            other = self._and()
            found = found or other
        return found

    def _and(self) -> object:
        found = self._compare()
        while self._next("&&"):
            other = self._compare()
            found = other if found else found
        return found

    def _compare(self) -> object:
        found = self._unary()
        for sign, is_equal in (("==", True), ("!=", False)):
            if self._next(sign):
                return (str(found).lower() == str(self._unary()).lower()) is is_equal
        return found

    def _unary(self) -> object:
        if self._next("!"):
            return not self._unary()
        if self._next("("):
            found = self._or()
            assert self._next(")")
            return found
        kind, text = self.tokens.pop(0)
        if kind == "text":
            return text[1:-1].replace("''", "'")
        if kind == "number":
            return int(text)
        assert kind == "name", text
        return self._call(text) if self._next("(") else look_up(self.context, text)

    def _call(self, name: str) -> object:
        arguments: list[Any] = []
        while not self._next(")"):
            arguments.append(self._or())
            self._next(",")
        functions: dict[str, Callable[..., object]] = {
            "contains": lambda where, what: what in where,
            "startsWith": lambda text, start: str(text).lower().startswith(start.lower()),
            "fromJSON": json.loads,
            "toJSON": json.dumps,
            "format": lambda text, *values: text.format(*values),
            "always": lambda: True,
            "cancelled": lambda: False,
        }
        return functions[name](*arguments)


def evaluate(text: str, context: Mapping[str, object]) -> object:
    """A value of a workflow with every `${{ }}` in it replaced."""
    whole = INSIDE.fullmatch(text.strip())
    if whole:
        return Expression(whole[1], context).value()
    return INSIDE.sub(lambda found: str(Expression(found[1], context).value()), text)


@dataclass
class Scenario:
    """An event, and how its jobs would end."""

    github: dict[str, Any]
    plan: dict[str, str]  # outputs of planning
    approved: bool = False
    failing: frozenset[str] = frozenset()
    inputs: dict[str, str] = field(default_factory=dict)
    started: list[str] = field(default_factory=list)
    contexts: dict[str, dict[str, Any]] = field(default_factory=dict)


def play(folder: Path, name: str, scenario: Scenario) -> Scenario:
    """Start the jobs of a workflow file in order of their needs, called workflows included."""
    _play_jobs(folder, load_workflow(folder / name), scenario, scenario.inputs)
    return scenario


def _play_jobs(
    folder: Path, workflow: Mapping[str, Any], scenario: Scenario, inputs: Mapping[str, object]
) -> str:
    needs: dict[str, dict[str, Any]] = {}
    for name, job in _in_order(workflow["jobs"]):
        own = {need: needs[need] for need in job.get("needs", ())}
        context = {"github": scenario.github, "needs": own, "inputs": inputs, "secrets": Secrets()}
        if not _starts(job, context, own):
            needs[name] = {"result": "skipped", "outputs": {}}
            continue
        scenario.started.append(name)
        scenario.contexts[name] = {**context, "job": job}
        result, outputs = "success", dict[str, Any]()
        if "uses" in job:
            called = load_workflow(folder / str(job["uses"]).partition("@")[0].split("/")[-1])
            given = {key: evaluate(str(text), context) for key, text in job["with"].items()}
            result = _play_jobs(folder, called, scenario, given)
        elif "environment" in job:
            result = "success" if scenario.approved else "failure"
            outputs = {"commit": scenario.github["sha"]} if scenario.approved else {}
        elif name == "plan":
            outputs = scenario.plan
        if name in scenario.failing:
            result = "failure"
        needs[name] = {"result": result, "outputs": outputs}
    return "failure" if any(each["result"] == "failure" for each in needs.values()) else "success"


def _starts(job: Mapping[str, Any], context: Mapping[str, object], needs: dict[str, Any]) -> bool:
    condition = str(job.get("if", ""))
    all_passed = all(each["result"] == "success" for each in needs.values())
    if not condition:
        return all_passed
    has_status = re.search(r"\b(always|cancelled|success|failure)\(", condition)
    return bool(evaluate(condition, context)) and (all_passed or has_status is not None)


def _in_order(jobs: Mapping[str, Any]) -> Sequence[tuple[str, Any]]:
    done: list[tuple[str, Any]] = []
    while len(done) < len(jobs):
        known = {name for name, _ in done}
        ready = [n for n in jobs if n not in known and set(jobs[n].get("needs", ())) <= known]
        assert ready, "jobs need each other in a circle, or one that doesn't exist"
        done.extend((name, jobs[name]) for name in ready)
    return done


class Secrets(dict[str, str]):
    """Every secret, by a value that names it."""

    def get(self, key: str, default: str = "") -> str:  # type: ignore[override]
        return f"secret:{key}"


def environments(job: Mapping[str, Any]) -> list[Mapping[str, str]]:
    """The variables of every step of a job."""
    return [step.get("env", {}) for step in job.get("steps", ())]
