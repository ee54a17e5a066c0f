"""The jobs of a lane: planning, approval, and one job per suite and shard.

Used by `lanes.py`. Invariant: each job that runs has a time limit and names its permissions, and
a job on our own machines needs the approval unless the run is of the default branch.
"""

import re
from dataclasses import dataclass

from parity.ci.config import Config, Suite
from parity.ci.workflow import commands, expressions, steps
from parity.ci.workflow.containers import VENDORS
from parity.ci.workflow.document import Node
from parity.ci.workflow.expressions import value
from parity.ci.workflow.references import check_image_tag
from parity.ci.workflow.settings import Dependency, Lane, Settings, Slot
from parity.errors import ConfigError

Job = dict[str, Node]
IMAGE_NAME = re.compile(r"[a-z0-9][a-z0-9._/:-]*")  # with a registry and its port, or without
PLAN, APPROVE, RUNS = "plan", "approve", "runs"
READ: dict[str, Node] = {"contents": "read"}
READ_PULLS: dict[str, Node] = {"contents": "read", "pull-requests": "read"}
# What planning says, and by which of its steps; all of it is text.
FACTS = {
    "cadence": "plan",
    "labels": "plan",
    "suites": "plan",
    "fail_fast": "plan",
    "image_tag": "references",
    "references": "references",
}


@dataclass(frozen=True, slots=True)
class Context:
    """What rendering reads."""

    config: Config
    settings: Settings
    dependencies: dict[str, Dependency]
    lease_dir: str  # of the devices of a host, the same in all its containers

    @property
    def is_about_ci(self) -> str:
        """The expression that tells whether an event matters."""
        return expressions.is_about_ci(self.config.label_prefix, list(self.config.workflow_labels))

    def lane(self, backend: str) -> Lane:
        """The set-up of a backend."""
        return self.settings.lanes[backend]

    def slots(self, suite: str) -> list[Slot]:
        """The shared runners of a suite; none where each runner has a host of its own."""
        return [slot for slot in self.settings.slots if slot.suite == suite]


def job_name(suite: str) -> str:
    """The id of a suite's job."""
    return f"tests-{re.sub(r'[^A-Za-z0-9_-]', '-', suite)}"


def needed(config: Config, suite: Suite) -> list[str]:
    """Every suite that must have passed before, in the order of ci.toml."""
    found: set[str] = set()
    waiting = list(suite.needs)
    while waiting:
        name = waiting.pop()
        if name not in found:
            found.add(name)
            waiting.extend(config.suites[name].needs)
    return [name for name in config.suites if name in found]


def plan_job(context: Context, backend: str) -> Job:
    """Decides on a machine of the service what runs; the code of a fork gets nothing but that."""
    settings = context.settings
    outputs: dict[str, Node] = {
        fact: value(f"steps.{step}.outputs.{fact}") for fact, step in FACTS.items()
    }
    return {
        "name": "Plan",
        "if": value(context.is_about_ci),
        "runs-on": settings.hosted_runner,
        "timeout-minutes": 15,
        "permissions": READ,
        "outputs": outputs,
        "steps": [
            steps.checkout(settings),
            steps.python(settings),
            steps.script("Install the planner", settings.install, minutes=10),
            commands.plan_step(context.config),
            commands.references_step(backend),
        ],
    }


def approve_job(context: Context) -> Job:
    """Waits for a maintainer, then names the one commit that was approved."""
    settings = context.settings
    trusted = expressions.is_trusted(context.config.project.default_branch)
    return {
        "name": "Approve this commit",
        "if": value(f"!({trusted})"),
        "runs-on": settings.hosted_runner,
        "timeout-minutes": 10,
        "permissions": READ_PULLS,
        "environment": {"name": settings.environment},
        "outputs": {"commit": value("steps.bind.outputs.commit")},
        "steps": [steps.bind()],
    }


def suite_job(context: Context, suite: Suite) -> Job:
    """The shards of one suite."""
    source = "inputs" if suite.is_self_hosted else "needs.plan.outputs"
    job: Job = {
        "name": f"{suite.name} ({value('matrix.shard')} of {suite.shards})",
        "needs": _needs(context, suite),
        "if": _condition(context, suite, source),
        "runs-on": list(suite.runner),
        "timeout-minutes": suite.job_timeout_minutes,
        "permissions": READ,
        "strategy": _strategy(context, suite),
    }
    if context.slots(suite.name):
        job["runs-on"] = value("matrix.runner")
    if suite.image is not None:
        job["container"] = _container(context, suite, source)
    job["defaults"] = {"run": {"shell": "bash"}}
    job["steps"] = _steps(context, suite, source)
    return job


def _needs(context: Context, suite: Suite) -> list[str]:
    first = APPROVE if suite.is_self_hosted else PLAN
    kept = [
        name
        for name in needed(context.config, suite)
        if context.config.suites[name].is_self_hosted == suite.is_self_hosted
    ]
    for name in kept:
        if suite.is_self_hosted and context.config.suites[name].backend != suite.backend:
            raise ConfigError(
                f"suite {suite.name} needs {name}, which waits for another lane's approval; a"
                " suite on our own machines can need suites of its own backend and hosted ones."
            )
    return [first, *(job_name(name) for name in kept)]


def _condition(context: Context, suite: Suite, source: str) -> str:
    parts = ["!cancelled()"]
    if suite.is_self_hosted:
        trusted = expressions.is_trusted(context.config.project.default_branch)
        parts.append(f"({trusted} || needs.{APPROVE}.result == 'success')")
    else:
        parts.append(f"needs.{PLAN}.result == 'success'")
    parts.append(expressions.is_planned(suite.name, source))
    before = _needs(context, suite)[1:]
    if before:
        parts.append(expressions.passed(before, source))
    return value(" && ".join(parts))


def _strategy(context: Context, suite: Suite) -> dict[str, Node]:
    matrix: dict[str, Node] = {"shard": list(range(suite.shards))}
    slots = context.slots(suite.name)
    if slots:
        options = VENDORS[context.lane(suite.backend).vendor]
        chosen = [slots[shard % len(slots)] for shard in range(suite.shards)]
        matrix = {
            "include": [
                {
                    "shard": shard,
                    "runner": list(slot.runner),
                    "devices": " ".join(options(suite.devices, slot.devices)),
                }
                for shard, slot in enumerate(chosen)
            ]
        }
    strategy: dict[str, Node] = {"fail-fast": False, "matrix": matrix}
    if suite.max_parallel is not None:
        strategy["max-parallel"] = suite.max_parallel
    return strategy


def image(suite: Suite, source: str) -> str:
    """The image of a suite's container; on our own machines its tag can be chosen per run."""
    name, tag = split_image(suite.image or "")
    if not suite.is_self_hosted:
        return f"{name}:{tag}"
    return value(f"format('{name}:{{0}}', {source}.image_tag || '{tag}')")


def _container(context: Context, suite: Suite, source: str) -> dict[str, Node]:
    lane = context.lane(suite.backend)
    devices: tuple[str, ...] = ()
    if suite.devices:
        is_shared = bool(context.slots(suite.name))
        whole = VENDORS[lane.vendor](suite.devices, None)
        devices = (value("matrix.devices"),) if is_shared else whole
    options = (*devices, f"--shm-size={lane.shared_memory_gib}g", *lane.options)
    container: dict[str, Node] = {"image": image(suite, source), "options": " ".join(options)}
    mounts = list(lane.mounts)
    if suite.devices:
        # Leases are lock files; jobs of one host see each other's through this folder only.
        mounts.append(f"{context.lease_dir}:{context.lease_dir}")
    if mounts:
        container["volumes"] = mounts
    return container


def split_image(image: str) -> tuple[str, str]:
    """Name and tag of an image; the tag is checked, and `latest` is never guessed."""
    name, _, tag = image.rpartition(":")
    if not name or "/" in tag:
        raise ConfigError(
            f"the image {image!r} has no tag; write NAME:TAG, so that a run can be repeated."
        )
    if not IMAGE_NAME.fullmatch(name):
        raise ConfigError(
            f"the image {image[:200]!r} has a name that no registry has;"
            f" it must match {IMAGE_NAME.pattern}."
        )
    return name, check_image_tag(tag, place=f"the image {image!r}")


def _steps(context: Context, suite: Suite, source: str) -> list[Node]:
    settings = context.settings
    lane = context.lane(suite.backend)
    commit = value(f"needs.{APPROVE}.outputs.commit || github.sha")
    found: list[Node] = [steps.checkout(settings, ref=commit if suite.is_self_hosted else None)]
    if suite.is_self_hosted:
        found.append(steps.same_commit(commit))
    if suite.image is None:
        found.append(steps.python(settings))
    if lane.install:
        found.append(steps.script("Install", lane.install, minutes=30))
    if context.dependencies and suite.is_self_hosted:
        found.append(commands.dependencies_step(source))
    found.extend(commands.run_steps(context.config, settings, suite, source))
    name = f"{settings.prefix}-{suite.name}-{value('matrix.shard')}-{value('github.run_attempt')}"
    found.append(steps.upload(settings, name))
    if suite.is_self_hosted:
        found.append(commands.clean_step(settings))
    return found
