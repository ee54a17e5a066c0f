"""The options of `parity ci run`. What a CI service knows comes from its own variables."""

from pathlib import Path
from typing import Annotated

import typer

SuiteToRunOption = Annotated[str, typer.Option("--suite", help="The suite to run.")]
RunEventOption = Annotated[
    str | None,
    typer.Option(
        "--event",
        envvar="GITHUB_EVENT_NAME",
        help="What started CI [default: the first event of ci.toml].",
    ),
]
ShardIdOption = Annotated[
    int | None, typer.Option("--shard-id", help="Which shard, from 0.", min=0)
]
ShardCountOption = Annotated[int | None, typer.Option("--shard-count", help="Of how many.", min=1)]
ListOnlyOption = Annotated[bool, typer.Option("--list-only", help="Say what would run.")]
TimeoutOption = Annotated[
    float | None,
    typer.Option("--timeout", min=1, help="Seconds per file; at least 1.25 estimates hold."),
]
ShardTimeoutOption = Annotated[
    float | None, typer.Option("--shard-timeout", min=1, help="Seconds for the whole shard.")
]
ContinueOption = Annotated[
    bool | None,
    typer.Option(
        "--continue-on-error/--stop-on-error",
        help="Whether to go on after a failure [default: the cadence's].",
        show_default=False,
    ),
]
RetriesOption = Annotated[
    int | None,
    typer.Option("--retries", min=0, help="Further attempts, after infrastructure failures alone."),
]
PatchOption = Annotated[
    list[str] | None,
    typer.Option("--patch", help="A declared compatibility patch; repeat."),
]
HistoryOption = Annotated[
    str | None,
    typer.Option(
        "--history",
        envvar="PARITY_CI_HISTORY",
        help="Where trusted metrics are: sqlite:///PATH or postgresql://... (from the variable,"
        " for it may hold a password).",
    ),
]
OutputOption = Annotated[Path, typer.Option("--output", help="Where logs and reports go.")]
SummaryOption = Annotated[
    Path | None,
    typer.Option(
        "--summary", envvar="GITHUB_STEP_SUMMARY", help="Append the summary to this file too."
    ),
]
GroupsOption = Annotated[
    bool,
    typer.Option("--groups/--no-groups", envvar="GITHUB_ACTIONS", help="Fold tests in the log."),
]
RunIdOption = Annotated[
    str | None,
    typer.Option("--run-id", envvar="GITHUB_RUN_ID", help="Names this run in the history."),
]
RunAttemptOption = Annotated[
    str | None,
    typer.Option("--run-attempt", envvar="GITHUB_RUN_ATTEMPT", help="Tells reruns of it apart."),
]
CommitOption = Annotated[
    str | None, typer.Option("--commit", envvar="GITHUB_SHA", help="The commit that is tested.")
]
BranchOption = Annotated[
    str | None, typer.Option("--branch", envvar="GITHUB_REF_NAME", help="The branch it lies on.")
]
AllowEmptyOption = Annotated[
    str | None,
    typer.Option("--allow-empty", metavar="REASON", help="Why it is right that nothing runs."),
]
