"""One shard on one machine, from the plan to its reports: what `parity ci run` does.

who        does                                        when it can't
history    is opened, so that a dead one costs nothing the shard runs nothing, and fails
devices    are leased, probed, measured                the shard runs nothing, and fails
tests      run one after the other (`shard.py`)        each has its own result
reports    results.json, junit.xml, summary.md         always written
history    gets the values, where this run may write   the shard fails
"""

import os
import platform as host
import signal
from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from types import FrameType
from typing import TextIO

from parity.ci.config import Config, Suite
from parity.ci.gates.gate import GateSettings
from parity.ci.gates.history import Run
from parity.ci.gates.judge import Judge
from parity.ci.gates.stores import open_history
from parity.ci.run.attempt import Lane
from parity.ci.run.baselines import store, unstored
from parity.ci.run.leases import Owner, lease, new_marker, registered
from parity.ci.run.output import Live, Shows
from parity.ci.run.processes import adopting_orphans
from parity.ci.run.readiness import Baseline, Need, Probe, candidates, wait_ready
from parity.ci.run.report import junit, results, summary
from parity.ci.run.result import FileResult, Outcome, ShardResult
from parity.ci.run.settings import RunSettings
from parity.ci.run.shard import Rules, run_tests
from parity.ci.run.telemetry import probe_of
from parity.ci.run.work import Options, Work
from parity.config import environment
from parity.errors import ConfigError, ParityError

RESULTS_FILE, JUNIT_FILE, SUMMARY_FILE = "results.json", "junit.xml", "summary.md"
SUITE_VARIABLE = "PARITY_CI_SUITE"
NO_HISTORY = "no history store was given, so only the hard bounds of gates were judged"


class ReportError(ParityError):
    """What became of the tests can't be kept."""


@dataclass(frozen=True, slots=True)
class Devices:
    """The leased devices of a shard; none on a CPU suite."""

    indices: tuple[int, ...] = ()
    variables: Mapping[str, str] | None = None
    baseline: Baseline | None = None
    notes: tuple[str, ...] = ()


def run_job(config: Config, work: Work, options: Options, live: TextIO) -> ShardResult:
    """Run the shard and write its reports; the exit code is in the result."""
    started_at = datetime.now(UTC)
    empty = ShardResult(
        backend=work.suite.backend,
        suite=work.suite.name,
        shard=work.shard,
        num_shards=work.num_shards,
        files=(),
        skipped=tuple(work.skipped),
        allow_empty=work.allow_empty,
    )
    output_dir = options.output_dir.resolve()
    try:
        output_dir.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigError(f"--output {output_dir} can't be made ({error.strerror}).") from error
    lane = _lane(config, work, replace(options, output_dir=output_dir), Live(live))
    with adopting_orphans(), _stops_once():
        shard = _run(config, work, options, lane, empty)
        _ignore_stops()
        shard = _stored(config, work, options, shard, started_at)
        try:
            _report(shard, output_dir)
        except OSError as error:
            raise ReportError(
                f"the results can't be written to {output_dir} ({error.strerror}); free its disk,"
                " or give another folder with --output."
            ) from error
    return shard


def _run(
    config: Config, work: Work, options: Options, lane: Lane, empty: ShardResult
) -> ShardResult:
    if not work.tests:
        return empty
    try:
        history = open_history(options.history_url) if options.history_url else None
        lane = replace(lane, judge=replace(lane.judge, history=history))
        with (
            registered(lane.marker, lane.settings.lease_dir) as ended,
            _devices(config, work, lane) as devices,
        ):
            variables = {**lane.variables, **(devices.variables or {})}
            files, trouble = run_tests(
                work.tests,
                replace(lane, variables=variables),
                Rules(options.continue_on_error, options.shard_timeout_s),
                baseline=devices.baseline,
            )
        unjudged = (NO_HISTORY,) if history is None and _has_gates(work) else ()
        notes = (*ended, *devices.notes, *unjudged)
        return replace(
            empty, files=tuple(files), trouble=trouble, devices=devices.indices, notes=notes
        )
    except KeyboardInterrupt:
        return _nothing(work, empty, Outcome.CANCELLED, "we were told to stop")
    except (ParityError, OSError) as error:  # OSError: the output folder, a disk that is full
        return _nothing(work, empty, Outcome.NOT_RUN, str(error))


def _nothing(work: Work, empty: ShardResult, outcome: Outcome, why: str) -> ShardResult:
    files = [
        FileResult(t.path, t.registration.est_time_s, t.timeout_s, outcome, why) for t in work.tests
    ]
    return replace(empty, files=tuple(files), trouble=why)


def _lane(config: Config, work: Work, options: Options, live: Shows) -> Lane:
    """Reads every setting, so that a wrong one is an error before anything runs."""
    settings = RunSettings.of(config.section("run"))
    gates = GateSettings.of(config.section("gates"))
    for test in work.tests:
        for registration in test.gates:
            gates.gate(registration)
    backend = config.backends[work.suite.backend]
    return Lane(
        root=config.root,
        output_dir=options.output_dir,
        command=backend.command,
        variables={**backend.env, **work.suite.env, SUITE_VARIABLE: work.suite.name},
        marker=new_marker(),
        settings=settings,
        gates=gates,
        judge=Judge(None, limit=gates.history_limit, least=gates.min_history),
        live=live,
        groups=options.groups,
        timeout_s=options.timeout_s,
        retries=settings.retries if options.retries is None else options.retries,
        wrap=options.wrap,
    )


@contextmanager
def _devices(config: Config, work: Work, lane: Lane) -> Generator[Devices]:
    suite, settings = work.suite, lane.settings
    if not suite.devices:
        yield Devices()
        return
    probe = probe_of(config.backends[suite.backend].platform, environment.inherited({}))
    need = need_of(suite, settings)
    keys = [device.key for device in candidates(probe, need)]
    owner = Owner(
        job=f"{suite.name} {work.shard + 1}/{work.num_shards}",
        pid=os.getpid(),
        host=host.node(),
        marker=lane.marker,
        since=datetime.now(UTC).isoformat(timespec="seconds"),
    )
    with lease(
        keys,
        suite.devices,
        owner,
        folder=settings.lease_dir,
        timeout_s=settings.lease_timeout_s,
    ) as held:
        yield _leased(probe, held.keys, need, settings, held.ended)


def _leased(
    probe: Probe, keys: Sequence[str], need: Need, settings: RunSettings, notes: Sequence[str]
) -> Devices:
    devices = wait_ready(probe, keys, need, timeout_s=settings.ready_timeout_s)
    indices = tuple(sorted(device.index for device in devices))
    baseline = Baseline(probe, devices, tolerance_mib=settings.memory_tolerance_mib)
    return Devices(indices, probe.variables(indices), baseline, tuple(notes))


def need_of(suite: Suite, settings: RunSettings) -> Need:
    """What a suite asks of a machine."""
    return Need(suite.devices, suite.min_free_memory_gib, settings.max_used_mib)


def _stored(
    config: Config,
    work: Work,
    options: Options,
    shard: ShardResult,
    started_at: datetime,
) -> ShardResult:
    """The shard with its values in the history, or with why they aren't there."""
    why = unstored(work, options, config.project.default_branch, shard)
    if why is not None:
        return replace(shard, notes=(*shard.notes, f"history isn't written: {why}"))
    run = Run(
        run_id=str(options.run_id),
        suite=work.suite.name,
        shard=work.shard,
        backend=work.suite.backend,
        commit=str(options.commit),
        branch=str(options.branch),
        cadence=work.cadence,
        started_at=started_at,
    )
    try:
        num_values = store(open_history(str(options.history_url)), run, shard)
    except ParityError as error:
        return replace(shard, trouble=shard.trouble or str(error))
    return replace(shard, notes=(*shard.notes, f"{num_values} values were added to the history"))


def _report(shard: ShardResult, output_dir: Path) -> None:
    output_dir.mkdir(parents=True, exist_ok=True)  # a test may have removed it
    results.write(shard, output_dir / RESULTS_FILE)
    junit.write(shard, output_dir / JUNIT_FILE)
    (output_dir / SUMMARY_FILE).write_text(summary.summary(shard), encoding="utf-8")


def _has_gates(work: Work) -> bool:
    return any(test.gates for test in work.tests)


@contextmanager
def _stops_once() -> Generator[None]:
    """SIGTERM and Ctrl-C stop the tests once; killing and reporting then go on undisturbed."""

    def stop(_: int, __: FrameType | None) -> None:
        _ignore_stops()
        raise KeyboardInterrupt

    before = {number: signal.signal(number, stop) for number in _STOPS}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _ignore_stops() -> None:
    for number in _STOPS:
        signal.signal(number, signal.SIG_IGN)


_STOPS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)  # SIGHUP: the terminal is gone
