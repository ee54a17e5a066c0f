"""The steps of the rendered jobs.

Invariant: a script holds literal text of `ci.toml` and quoted variables only; whatever an event
or an input says arrives in `env`.
"""

from collections.abc import Mapping, Sequence

from parity.ci.workflow import expressions
from parity.ci.workflow.document import Node
from parity.ci.workflow.settings import Settings

Step = dict[str, Node]
BIND = """\
if [ -n "$NUMBER" ]; then
  current=$(gh api "repos/$REPOSITORY/pulls/$NUMBER" --jq .head.sha)
  if [ "$current" != "$HEAD" ]; then
    echo "::error::approved was $HEAD, and the pull request is now at $current; approve its run."
    exit 1
  fi
fi
echo "commit=$COMMIT" >> "$GITHUB_OUTPUT"
echo "Approved: commit $COMMIT${HEAD:+ (head $HEAD)}" >> "$GITHUB_STEP_SUMMARY"
"""
SAME_COMMIT = """\
actual=$(git -c safe.directory='*' rev-parse HEAD)
if [ "$actual" != "$COMMIT" ]; then
  echo "::error::checked out is $actual, and $COMMIT was approved; nothing runs."
  exit 1
fi
if [ -n "$HEAD" ]; then
  merged=$(git -c safe.directory='*' rev-parse HEAD^2)
  if [ "$merged" != "$HEAD" ]; then
    echo "::error::the merge holds $merged, and $HEAD was approved; nothing runs."
    exit 1
  fi
fi
"""


def script(
    name: str, lines: Sequence[str] | str, *, env: Mapping[str, Node] | None = None, minutes: int
) -> Step:
    """A step that runs shell lines and stops at the first that fails."""
    step: Step = {"name": name, "timeout-minutes": minutes}
    if env:
        step["env"] = dict(env)
    text = lines if isinstance(lines, str) else "\n".join(lines)
    step["run"] = text if text.endswith("\n") or "\n" not in text else f"{text}\n"
    return step


def checkout(settings: Settings, *, ref: str | None = None) -> Step:
    """The commit of the event: for a pull request its merge with the target branch.

    Two commits deep, so that changed paths and the merged head can be told; without credentials.
    """
    options: dict[str, Node] = {"fetch-depth": 2, "persist-credentials": False}
    if ref is not None:
        options = {"ref": ref, **options}
    return {
        "name": "Check out",
        "uses": settings.actions["checkout"].uses,
        "timeout-minutes": 10,
        "with": options,
    }


def python(settings: Settings) -> Step:
    """Python on a machine of the service."""
    return {
        "name": "Set up Python",
        "uses": settings.actions["python"].uses,
        "timeout-minutes": 5,
        "with": {"python-version": settings.python},
    }


def bind() -> Step:
    """Binds the approval that the job has just waited for to the one commit of this event."""
    env = {
        "GH_TOKEN": "${{ github.token }}",
        "REPOSITORY": "${{ github.repository }}",
        "NUMBER": expressions.NUMBER,
        "HEAD": expressions.HEAD,
        "COMMIT": expressions.COMMIT,
    }
    step = script("Bind the approval to this commit", BIND, env=env, minutes=2)
    return {"id": "bind", **step}


def same_commit(commit: str) -> Step:
    """Refuses to go on with anything but the approved commit."""
    env = {"COMMIT": commit, "HEAD": expressions.HEAD}
    return script("Check that this is the approved commit", SAME_COMMIT, env=env, minutes=2)


def upload(settings: Settings, name: str) -> Step:
    """Keeps JUnit XML, summary, logs and metric records, whatever became of the tests."""
    return {
        "name": "Upload the results",
        "if": "${{ always() }}",
        "uses": settings.actions["upload"].uses,
        "timeout-minutes": 10,
        "with": {
            "name": name,
            "path": settings.results_dir,
            "if-no-files-found": "warn",
            "retention-days": settings.artifact_days,
        },
    }
