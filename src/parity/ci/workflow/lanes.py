"""The workflow files of one backend, as values.

`PREFIX-BACKEND.yml` listens to events, plans, runs the suites of hosted machines, and calls
`PREFIX-BACKEND-runs.yml`, which holds the gate and everything that runs on our own machines. They
are two files so that the second can be taken from the default branch, where a pull request can't
change it, and so that a runner group can be opened to that one file only.
"""

from collections.abc import Mapping

from parity.ci.config import Config, Suite
from parity.ci.workflow import expressions
from parity.ci.workflow.containers import VENDORS
from parity.ci.workflow.document import Document, Node
from parity.ci.workflow.expressions import value
from parity.ci.workflow.jobs import (
    APPROVE,
    FACTS,
    PLAN,
    READ_PULLS,
    RUNS,
    Context,
    Job,
    approve_job,
    job_name,
    needed,
    plan_job,
    suite_job,
)
from parity.errors import ConfigError

FOLDER = ".github/workflows"
# Events whose definition comes from the pull request or the default branch, without a write token.
EVENTS = ("pull_request", "push", "merge_group", "schedule", "workflow_dispatch", "workflow_call")
TYPES = ("opened", "synchronize", "reopened", "ready_for_review", "labeled")


def lane_files(context: Context, backend: str) -> dict[str, Document]:
    """The files of a backend by path; none where no suite is of it."""
    suites = [suite for suite in context.config.suites.values() if suite.backend == backend]
    if not suites:
        return {}
    own = [suite for suite in suites if suite.is_self_hosted]
    for suite in own:
        _check_own(context, suite)
    name = f"{context.settings.prefix}-{backend}"
    listening = _listening(context, backend, suites, own)
    files: dict[str, Document] = {f"{FOLDER}/{name}.yml": listening}
    if own:
        files[f"{FOLDER}/{name}-runs.yml"] = _running(context, name, own)
    return files


def _check_own(context: Context, suite: Suite) -> None:
    lane = context.lane(suite.backend)
    if suite.image is None:
        raise ConfigError(
            f"suite {suite.name} runs on our own machines without an image; the code of a pull"
            f" request would run on the host itself. Set suites.{suite.name}.image."
        )
    if suite.devices and lane.vendor == "none":
        raise ConfigError(
            f"suite {suite.name} uses {suite.devices} devices, and its containers would have none;"
            f" set workflow.lanes.{suite.backend}.vendor to one of {', '.join(VENDORS)}."
        )


def _listening(
    context: Context, backend: str, suites: list[Suite], own: list[Suite]
) -> dict[str, Node]:
    config, settings = context.config, context.settings
    name = f"{settings.prefix}-{backend}"
    hosted = _hosted(config, suites)
    jobs: dict[str, Node] = {PLAN: plan_job(context, backend)}
    jobs |= {job_name(suite.name): suite_job(context, suite) for suite in hosted}
    if own:
        jobs[RUNS] = _call(context, own)
    return {
        "name": name,
        "on": _events(context, suites),
        "permissions": {},
        "concurrency": {
            "group": expressions.group(name, context.is_about_ci),
            "cancel-in-progress": value(expressions.IS_PULL_REQUEST),
        },
        "jobs": jobs,
    }


def _hosted(config: Config, suites: list[Suite]) -> list[Suite]:
    """The hosted suites of a lane, with those of other backends that its own need before them."""
    names = {name for suite in suites for name in (suite.name, *needed(config, suite))}
    return [
        each for each in config.suites.values() if each.name in names and not each.is_self_hosted
    ]


def _events(context: Context, suites: list[Suite]) -> dict[str, Node]:
    config = context.config
    found: dict[str, Node] = {}
    for name in config.events:
        if name not in EVENTS:
            raise ConfigError(
                f"events.{name} can't start a workflow: it runs with the rights of the default"
                f" branch while a stranger's code is near. Allowed: {', '.join(EVENTS)}."
            )
        found[name] = _event(context, name, suites)
    if "schedule" in found and not found["schedule"]:
        del found["schedule"]
    return found


def _event(context: Context, name: str, suites: list[Suite]) -> Node:
    config = context.config
    branches: dict[str, Node] = {"branches": [config.project.default_branch]}
    if name == "pull_request":
        return {**branches, "types": list(TYPES)}
    if name in ("push", "merge_group"):
        return branches
    if name == "schedule":
        cadences = {cadence for suite in suites for cadence in suite.cadences}
        return [
            {"cron": line}
            for cadence in config.cadences.values()
            if cadence.name in cadences
            for line in cadence.cron
        ]
    return {"inputs": _inputs(context, is_form=name == "workflow_dispatch")}


def _inputs(context: Context, *, is_form: bool) -> dict[str, Node]:
    """What a person or a calling workflow may say; every one may stay empty."""
    cadence: dict[str, Node] = {"description": "Cadence; empty: the event's", "default": ""}
    if is_form:
        cadence |= {"type": "choice", "options": ["", *context.config.cadences]}
    else:
        cadence |= {"type": "string"}
    keys = {"file": "Run this test only", context.settings.image_key: "Tag of the container image"}
    keys |= {
        each.body_key: f"Commit, #123, branch or tag of {each.name}"
        for each in context.dependencies.values()
    }
    found: dict[str, Node] = {"cadence": cadence}
    for key, text in keys.items():
        found[key] = {"description": text, "type": "string", "default": ""}
    return found


def own_place(context: Context, backend: str) -> str:
    """Where the file of our own machines is taken from: the default branch, if ci.toml says whose.

    The local form takes it from the commit of the event, so from the pull request itself.
    """
    settings = context.settings
    file = f"{FOLDER}/{settings.prefix}-{backend}-runs.yml"
    if settings.repository is None:
        return f"./{file}"
    return f"{settings.repository}/{file}@{context.config.project.default_branch}"


def _call(context: Context, own: list[Suite]) -> Job:
    config, settings = context.config, context.settings
    before = [
        job_name(suite.name)
        for suite in _hosted(config, own)
        if any(suite.name in needed(config, each) for each in own)
    ]
    parts = ["!cancelled()", f"needs.{PLAN}.result == 'success'"]
    parts.append(_wants_any(own))
    if before:
        parts.append(expressions.passed(before, f"needs.{PLAN}.outputs"))
    job: Job = {
        "name": "Own machines",
        "needs": [PLAN, *before],
        "if": value(" && ".join(parts)),
        "permissions": READ_PULLS,
        "uses": own_place(context, own[0].backend),
        "with": {
            **{fact: value(f"needs.{PLAN}.outputs.{fact}") for fact in FACTS},
            "file": expressions.given(config, "file"),
        },
    }
    if settings.secrets:
        names = sorted(set(settings.secrets.values()))
        job["secrets"] = {
            each: value(f"github.event_name == 'schedule' && secrets.{each} || ''")
            for each in names
        }
    return job


def _wants_any(own: list[Suite]) -> str:
    """Whether the plan has a suite of ours; without one nobody is asked for an approval."""
    wanted = [expressions.is_planned(suite.name, f"needs.{PLAN}.outputs") for suite in own]
    return f"({' || '.join(wanted)})"


def _running(context: Context, name: str, own: list[Suite]) -> dict[str, Node]:
    text: Mapping[str, Node] = {"type": "string", "required": True}
    facts: Mapping[str, Node] = dict.fromkeys((*FACTS, "file"), text)
    call: dict[str, Node] = {"inputs": facts}
    if context.settings.secrets:
        names = sorted(set(context.settings.secrets.values()))
        call["secrets"] = {each: {"required": False} for each in names}
    jobs: dict[str, Node] = {APPROVE: approve_job(context)}
    jobs |= {job_name(suite.name): suite_job(context, suite) for suite in own}
    return {
        "name": f"{name}-runs",
        "on": {"workflow_call": call},
        "permissions": {},
        "jobs": jobs,
    }
