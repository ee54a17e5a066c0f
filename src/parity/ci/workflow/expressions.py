"""Expressions of the CI service, as the renderer composes them.

Every value of an event reaches a step through its `env`, never through its script: an expression
in a script is pasted into shell text, and a pull request's author chooses that text.
"""

import json
from collections.abc import Sequence

from parity.ci.config import Config

LABELS = "${{ toJSON(github.event.pull_request.labels.*.name) }}"
SCHEDULE = "${{ github.event.schedule || '' }}"
BODY = "${{ github.event.pull_request.body || '' }}"
NUMBER = "${{ github.event.pull_request.number || '' }}"
HEAD = "${{ github.event.pull_request.head.sha || '' }}"
EVENT = "${{ github.event_name }}"
COMMIT = "${{ github.sha }}"
IS_PULL_REQUEST = "github.event_name == 'pull_request'"


def value(expression: str) -> str:
    """The expression as it stands in YAML."""
    return f"${{{{ {expression} }}}}"


def given(config: Config, name: str) -> str:
    """What the person or the workflow that started the run said; empty for other events."""
    has_inputs = {"workflow_dispatch", "workflow_call"} & set(config.events)
    return value(f"inputs.{name} || ''") if has_inputs else ""


def is_trusted(default_branch: str) -> str:
    """Whether the run is of the default branch, which only maintainers change."""
    return f"github.ref == 'refs/heads/{default_branch}'"


def is_about_ci(label_prefix: str, workflow_labels: Sequence[str]) -> str:
    """Whether the event matters: a label that isn't about CI must not restart anything."""
    known = json.dumps(list(workflow_labels))
    return (
        "github.event.action != 'labeled'"
        f" || startsWith(github.event.label.name, '{label_prefix}')"
        f" || contains(fromJSON('{known}'), github.event.label.name)"
    )


def group(prefix: str, is_about_ci: str) -> str:
    """A concurrency group: a literal name, then what may take the place of what.

    Never the service's own workflow name, which is the caller's inside a called workflow, so that
    two lanes of one run would cancel each other. A push to a pull request replaces its older run;
    each schedule has a group of its own; runs that someone asked for stand alone.
    """
    member = (
        f"!({is_about_ci}) && github.run_id || github.event.pull_request.number"
        " || github.event.schedule || github.run_id"
    )
    return f"{prefix}-{value('github.event_name')}-{value(member)}"


def is_planned(suite: str, source: str) -> str:
    """Whether the plan has tests of a suite; the output of a plan that didn't run is empty."""
    return f"contains(fromJSON({source}.suites || '[]'), '{suite}')"


def passed(jobs: Sequence[str], source: str) -> str:
    """Whether no needed job failed, where failures stop later suites (`fail_fast` of `source`).

    A suite that the plan left out is skipped, which isn't a failure. The list holds all suites
    that are needed in the end, so that one which was itself held back holds back the rest.
    """
    conditions = [
        f'(contains(fromJSON(\'["success","skipped"]\'), needs.{job}.result)'
        f" || {source}.fail_fast == 'false')"
        for job in jobs
    ]
    return " && ".join(conditions)
