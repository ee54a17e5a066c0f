"""`parity ci run`: runs one shard of a suite on this machine.

Invariant: the exit code is 0 only where tests ran and passed, or each that didn't run has a
stated reason. 1 a test failed, 3 nothing ran, 75 only the machine failed, 130 told to stop.
"""

import sys
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from parity.cli.ci.arguments import (
    BackendOption,
    CadenceOption,
    FileOption,
    JsonOption,
    LabelsOption,
    MatchAllOption,
    RootOption,
    ScheduleOption,
)
from parity.cli.ci.run_options import (
    AllowEmptyOption,
    BranchOption,
    CommitOption,
    ContinueOption,
    GroupsOption,
    HistoryOption,
    ListOnlyOption,
    OutputOption,
    PatchOption,
    RetriesOption,
    RunAttemptOption,
    RunEventOption,
    RunIdOption,
    ShardCountOption,
    ShardIdOption,
    ShardTimeoutOption,
    SuiteToRunOption,
    SummaryOption,
    TimeoutOption,
)

if TYPE_CHECKING:
    from parity.ci.config import Config
    from parity.ci.model import Event, Plan, PlannedTest
    from parity.ci.run.work import Options, Work

EPILOG = """\b
Examples:
  parity ci run --suite fast                        the whole suite, one file after the other
  parity ci run --suite fast --list-only --json
  parity ci run --suite fast --file tests/unit/test_folder.py
  parity ci run --suite mi300-4 --shard-id 0 --shard-count 2 --cadence nightly
"""


def run(  # noqa: PLR0913 each is an option of the command line
    suite: SuiteToRunOption,
    root: RootOption = Path(),
    backend: BackendOption = None,
    event: RunEventOption = None,
    schedule: ScheduleOption = None,
    cadence: CadenceOption = None,
    labels: LabelsOption = None,
    match_all: MatchAllOption = False,
    file: FileOption = None,
    shard_id: ShardIdOption = None,
    shard_count: ShardCountOption = None,
    list_only: ListOnlyOption = False,
    as_json: JsonOption = False,
    timeout_s: TimeoutOption = None,
    shard_timeout_s: ShardTimeoutOption = None,
    continue_on_error: ContinueOption = None,
    retries: RetriesOption = None,
    patch: PatchOption = None,
    history: HistoryOption = None,
    output: OutputOption = Path("ci-results"),
    summary: SummaryOption = None,
    groups: GroupsOption = False,
    run_id: RunIdOption = None,
    run_attempt: RunAttemptOption = None,
    commit: CommitOption = None,
    branch: BranchOption = None,
    allow_empty: AllowEmptyOption = None,
) -> int:
    """Run one shard of a suite, with logs, JUnit XML and a summary in --output."""
    from parity.ci.loading import load_config
    from parity.ci.run.work import UNLIMITED_S, Options
    from parity.cli.ci import arguments

    shard = _shard(shard_id, shard_count)
    config = load_config(root)
    found = _event(event, schedule, cadence, labels, config)
    files = [arguments.relative(each, root) for each in file] if file else None
    plan = _plan(config, found, (backend, suite, files), shard[1], match_all=match_all)
    work = _work(config, plan, suite, shard, allow_empty)
    if list_only:
        return _list(work, as_json=as_json)
    is_patient = not plan.policy.fail_fast
    options = Options(
        output_dir=output,
        continue_on_error=is_patient if continue_on_error is None else continue_on_error,
        retries=retries,
        timeout_s=timeout_s,
        shard_timeout_s=UNLIMITED_S if shard_timeout_s is None else shard_timeout_s,
        history_url=history or None,
        groups=groups,
        run_id=f"{run_id}.{run_attempt}" if run_id and run_attempt else run_id,
        commit=commit,
        branch=branch,
    )
    return _run(config, work, options, patch or [], summary)


def _event(
    event: str | None,
    schedule: str | None,
    cadence: str | None,
    labels: list[str] | None,
    config: "Config",
) -> "Event":
    from parity.ci.model import Event
    from parity.cli.ci import arguments

    return Event(
        name=event or next(iter(config.events)),
        schedule=schedule or None,
        labels=arguments.labels(labels),
        cadence=cadence or None,
    )


def _plan(
    config: "Config",
    event: "Event",
    asked: tuple[str | None, str, list[str] | None],
    shard_count: int,
    *,
    match_all: bool,
) -> "Plan":
    from parity.ci.plan.planning import Request, make_plan
    from parity.ci.policy.select import Asked
    from parity.ci.registry.discovery import collect
    from parity.cli.ci import arguments

    request = Request(
        event=event, match_all=match_all, asked=Asked(*asked), shard_count=shard_count
    )
    return make_plan(request, config, collect(config, arguments.day(None)))


def _shard(shard_id: int | None, shard_count: int | None) -> tuple[int, int]:
    """Which shard of how many; the whole suite where neither is given."""
    from parity.errors import ConfigError

    if shard_id is None and shard_count is None:
        return 0, 1
    if shard_id is None or shard_count is None:
        given = "--shard-id" if shard_count is None else "--shard-count"
        raise ConfigError(f"{given} is given alone; give --shard-id and --shard-count, or neither.")
    if shard_id >= shard_count:
        raise ConfigError(
            f"--shard-id {shard_id} of --shard-count {shard_count}; it must be 0 to"
            f" {shard_count - 1}."
        )
    return shard_id, shard_count


def _work(
    config: "Config", plan: "Plan", suite: str, shard: tuple[int, int], allow_empty: str | None
) -> "Work":
    from parity.ci.run.work import Work

    found = plan.suite(suite)
    tests = found.shards[shard[0]].tests if found is not None else ()
    if not tests and found is not None and allow_empty is None:
        allow_empty = f"the suite's {len(found.tests)} tests are in other shards of {shard[1]}"
    return Work(
        suite=config.suites[suite],
        shard=shard[0],
        num_shards=shard[1],
        tests=tests,
        skipped=[each for each in plan.skipped if each.registration.suite == suite],
        cadence=plan.policy.cadence,
        writes_history=plan.policy.writes_history,
        allow_empty=allow_empty,
    )


def _list(work: "Work", *, as_json: bool) -> int:
    import json

    run = [
        {"path": t.path, "est_time_s": t.registration.est_time_s, "timeout_s": t.timeout_s}
        for t in work.tests
    ]
    skipped = [
        {"path": s.registration.path, "kind": s.reason.kind.value, "reason": s.reason.text}
        for s in work.skipped
    ]
    if as_json:
        head = {"suite": work.suite.name, "shard": work.shard, "num_shards": work.num_shards}
        typer.echo(json.dumps({**head, "cadence": work.cadence, "run": run, "skipped": skipped}))
        return 0
    for row in run:
        typer.echo(
            f"run   {row['path']}  ({row['est_time_s']:.4g} s, at most {row['timeout_s']:.4g} s)"
        )
    for row in skipped:
        typer.echo(f"skip  {row['path']}  ({row['kind']}: {row['reason']})")
    if not run and not skipped:
        typer.echo(f"{work.suite.name} has no registered test.")
    return 0


def _run(
    config: "Config",
    work: "Work",
    options: "Options",
    patches: list[str],
    summary_path: Path | None,
) -> int:
    from collections.abc import Sequence
    from dataclasses import replace

    from parity.ci.patches.declared import chosen
    from parity.ci.patches.wrapper import wrapped
    from parity.ci.run.job import JUNIT_FILE, SUMMARY_FILE, run_job
    from parity.ci.run.output import Live, fenced

    if patches:
        found = chosen(config, patches, work.suite.backend)

        def wrap(argv: Sequence[str], _: "PlannedTest") -> Sequence[str]:
            return wrapped(argv, found, root=config.root, backend=work.suite.backend)

        options = replace(options, wrap=wrap)
    shard = run_job(config, work, options, sys.stdout)
    text = (options.output_dir / SUMMARY_FILE).read_text(encoding="utf-8")
    if summary_path is not None:
        with summary_path.open("a", encoding="utf-8") as file:
            file.write(text)
    shown = f"\n{text}\n{options.output_dir / JUNIT_FILE}"
    Live(sys.stdout).write(fenced(shown, groups=options.groups))
    return shard.exit_code
