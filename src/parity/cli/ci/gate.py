"""`parity ci gate`: what metric gates say, and why; and the upkeep of their history."""

import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from parity.cli.ci.arguments import BackendOption, RootOption, SuiteOption
from parity.cli.ci.run_options import HistoryOption

if TYPE_CHECKING:
    from parity.ci.gates.review import Reviewed
    from parity.ci.gates.sql import SqlHistory

EPILOG = """\b
Examples:
  parity ci gate --history sqlite:///history.db            verdicts on the newest stored values
  parity ci gate --explain --file tests/hardware/test_step.py --history sqlite:///history.db
  parity ci gate --file tests/hardware/test_step.py --record metrics.jsonl
  parity ci gate --mark-untrusted --run 123.1 --reason "wrong driver" --history ...
  parity ci gate --mark-untrusted --file tests/hardware/test_step.py --reason "new data" ...
  parity ci gate --flakes --history sqlite:///history.db
"""
FAILED = 1


def gate(  # noqa: PLR0913 each is an option of the command line
    root: RootOption = Path(),
    file: Annotated[str | None, typer.Option(help="Only the gates of this test file.")] = None,
    backend: BackendOption = None,
    suite: SuiteOption = None,
    record: Annotated[
        Path | None, typer.Option(help="Judge this metrics.jsonl instead of stored values.")
    ] = None,
    history: HistoryOption = None,
    explain: Annotated[
        bool, typer.Option("--explain", help="Value, band, history and verdict, with a plot.")
    ] = False,
    init: Annotated[bool, typer.Option("--init", help="Make the tables of the history.")] = False,
    mark_untrusted: Annotated[
        bool, typer.Option("--mark-untrusted", help="Take values out of the reference.")
    ] = False,
    mark_trusted: Annotated[
        bool, typer.Option("--mark-trusted", help="Take values into the reference.")
    ] = False,
    run_id: Annotated[str | None, typer.Option("--run", help="The run to mark.")] = None,
    commit: Annotated[str | None, typer.Option(help="The commit to mark.")] = None,
    reason: Annotated[str | None, typer.Option(help="Why; kept with the mark.")] = None,
    flakes: Annotated[bool, typer.Option("--flakes", help="How often tests were retried.")] = False,
) -> int:
    """Judge, explain and keep metric gates; exit code 1 where an enforced one fails."""
    from parity.errors import ConfigError

    actions = [init, mark_untrusted, mark_trusted, flakes]
    if sum(actions) > 1 or (any(actions) and (record is not None or explain)):
        raise ConfigError(
            "--init, --mark-untrusted, --mark-trusted, --flakes and judging exclude each other;"
            " give one of them."
        )
    store = _open(history, create=init)
    if init:
        typer.echo("The history has its tables.")
        return 0
    if mark_untrusted or mark_trusted:
        return _mark(store, (run_id, commit, file), reason, is_trusted=mark_trusted)
    if flakes:
        return _flakes(store)
    found = _reviewed(root, (file, backend, suite), record, store)
    _show(found, explain=explain)
    return FAILED if any(each.judgement.blocks for each in found) else 0


def _open(url: str | None, *, create: bool) -> "SqlHistory | None":
    from parity.ci.gates.stores import open_history

    return open_history(url, create=create) if url else None


def _required(store: "SqlHistory | None") -> "SqlHistory":
    from parity.errors import ConfigError

    if store is None:
        raise ConfigError("no history store is given; give --history or set PARITY_CI_HISTORY.")
    return store


def _mark(
    store: "SqlHistory | None",
    what: tuple[str | None, str | None, str | None],
    reason: str | None,
    *,
    is_trusted: bool,
) -> int:
    from parity.ci.gates.history import Selection
    from parity.errors import ConfigError

    if not reason:
        raise ConfigError("a mark needs a reason that others can read; give --reason.")
    count = _required(store).mark(Selection(*what), is_trusted=is_trusted, reason=reason)
    typer.echo(f"{count} values are {'trusted' if is_trusted else 'untrusted'} now.")
    return 0


def _flakes(store: "SqlHistory | None") -> int:
    found = _required(store).flakes()
    for each in found:
        share = each.num_flaky / each.num_passes
        typer.echo(
            f"{share:7.1%}  {each.num_flaky} of {each.num_passes}  {each.test} ({each.suite})"
        )
    if not found:
        typer.echo("No pass is stored yet.")
    return 0


def _reviewed(
    root: Path,
    asked: tuple[str | None, str | None, str | None],
    record: Path | None,
    store: "SqlHistory | None",
) -> list["Reviewed"]:
    from parity.ci.gates.gate import GateSettings
    from parity.ci.gates.judge import Judge
    from parity.ci.gates.record import read_record
    from parity.ci.gates.review import gated, of_history, of_record
    from parity.ci.loading import load_config
    from parity.ci.registry.discovery import collect
    from parity.cli.ci import arguments
    from parity.errors import ConfigError

    config = load_config(root)
    settings = GateSettings.of(config.section("gates"))
    file = arguments.relative(asked[0], root) if asked[0] else None
    places = gated(
        collect(config, arguments.day(None)), settings, path=file, backend=asked[1], suite=asked[2]
    )
    judge = Judge(store, limit=settings.history_limit, least=settings.min_history)
    if record is None:
        _required(store)
        return [each for place, gates in places for each in of_history(place, gates, judge)]
    if not record.is_file():
        raise ConfigError(f"--record {record} isn't a file; a test writes it with record_metric.")
    if len(places) > 1:
        names = ", ".join(f"{p.test} on {p.backend}/{p.suite}" for p, _ in places)
        raise ConfigError(
            f"--record is of one test on one suite, and {names} have gates; narrow it with --file,"
            " --backend and --suite."
        )
    place, gates = places[0]
    return list(of_record(place, gates, read_record(record), judge))


def _show(found: list["Reviewed"], *, explain: bool) -> None:
    from parity.ci.gates.explain import explain as explained

    width = min(100, shutil.get_terminal_size().columns)
    for each in found:
        judged = each.judgement
        if explain:
            lines = explained(each.place, judged, each.recent, width=width)
            typer.echo("\n".join([*lines, ""]))
            continue
        value = "no value" if judged.value is None else f"{judged.value:.6g}"
        why = f": {judged.reason}" if judged.reason else ""
        typer.echo(
            f"{judged.verdict.value} ({judged.mode})  {judged.metric_key} at {judged.at} ="
            f" {value}  {each.place.test} ({each.place.backend}, {each.place.suite}){why}"
        )
    if not found:
        typer.echo("No value of these gates is stored yet.")
