"""The steps that call `parity ci`: the one place where its command lines are written.

A test holds each of them against the real command line, so that neither can drift.
"""

from parity.ci.config import Config, Suite
from parity.ci.patches.declared import active
from parity.ci.workflow import expressions, steps
from parity.ci.workflow.expressions import value
from parity.ci.workflow.settings import Settings
from parity.ci.workflow.steps import Step

PLAN = """\
git diff --name-status -z -M HEAD^1 HEAD > "$RUNNER_TEMP/changes" || rm -f "$RUNNER_TEMP/changes"
parity ci plan --event "$EVENT" --schedule "$SCHEDULE" --cadence "$CADENCE" \\
  --labels "$LABELS" ${FILE:+--file "$FILE"} \\
  --changed "$RUNNER_TEMP/changes" --output "$GITHUB_OUTPUT"
"""
ENDING_MINUTES = 15  # of a job's time, for its preparation and its reports


def plan_step(config: Config) -> Step:
    """Decides cadence, labels and suites from the event."""
    env = {
        "EVENT": expressions.EVENT,
        "SCHEDULE": expressions.SCHEDULE,
        "LABELS": expressions.LABELS,
        "CADENCE": expressions.given(config, "cadence"),
        "FILE": expressions.given(config, "file"),
    }
    return {"id": "plan", **steps.script("Plan", PLAN, env=env, minutes=5)}


def references_step(backend: str) -> Step:
    """Decides image tag and dependency commits from inputs, body and lock file."""
    env = {"CI_INPUTS": value("toJSON(inputs)"), "CI_BODY": expressions.BODY}
    line = f'parity ci references --backend {backend} --output "$GITHUB_OUTPUT"'
    return {"id": "references", **steps.script("Find references", line, env=env, minutes=5)}


def dependencies_step(source: str) -> Step:
    """Moves the image's checkouts to the pinned commits and applies the declared patches."""
    env = {"REFERENCES": value(f"{source}.references")}
    return steps.script(
        "Apply dependencies", 'parity ci dependencies "$REFERENCES"', env=env, minutes=60
    )


def run_steps(config: Config, settings: Settings, suite: Suite, source: str) -> list[Step]:
    """Removes what an earlier job left, probes the devices, and runs one shard."""
    found = [steps.script("Remove old results", f"rm -rf -- {settings.results_dir}", minutes=5)]
    if suite.devices:
        probe = f"parity ci probe --suite {suite.name}"
        found.append(steps.script("Probe the devices", probe, minutes=10))
    env = {
        "EVENT": expressions.EVENT,
        "CADENCE": value(f"{source}.cadence"),
        "LABELS": value(f"{source}.labels"),
        "FILE": value("inputs.file") if suite.is_self_hosted else expressions.given(config, "file"),
        "SHARD": value("matrix.shard"),
    }
    if suite.is_self_hosted:
        env |= {
            variable: value(f"github.event_name == 'schedule' && secrets.{secret} || ''")
            for variable, secret in settings.secrets.items()
        }
    minutes = _minutes(suite)
    patches = "".join(f" --patch {name}" for name in active(config, suite.backend))
    run = (
        f"parity ci run --backend {suite.backend} --suite {suite.name}"
        f' --shard-id "$SHARD" --shard-count {suite.shards} --shard-timeout {minutes * 60} \\\n'
        '  --event "$EVENT" --cadence "$CADENCE" --labels "$LABELS" ${FILE:+--file "$FILE"} \\\n'
        f"  --output {settings.results_dir}{patches}\n"
    )
    found.append(steps.script("Run", run, env=env, minutes=minutes + 5))
    return found


def _minutes(suite: Suite) -> int:
    """For the tests of a shard: what the job has, less its preparation and its reports."""
    whole = suite.job_timeout_minutes
    return max(1, whole - ENDING_MINUTES, whole // 2)


def clean_step(settings: Settings) -> Step:
    """Leaves nothing in the workspace that the next job, of another user, couldn't remove."""
    line = "git -c safe.directory='*' clean -ffdxq || true"
    return {"if": "${{ always() }}", **steps.script("Clean the workspace", line, minutes=5)}
