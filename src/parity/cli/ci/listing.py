"""`parity ci list`: every registered test, with nothing decided yet."""

import json
from dataclasses import asdict
from pathlib import Path

import typer

from parity.cli.ci.arguments import BackendOption, JsonOption, RootOption, SuiteOption, TodayOption

EPILOG = """\b
Examples:
  parity ci list --suite cpu-fast
  parity ci list --json | head            one JSON line for each registration
"""


def listing(
    root: RootOption = Path(),
    backend: BackendOption = None,
    suite: SuiteOption = None,
    today: TodayOption = None,
    as_json: JsonOption = False,
) -> int:
    """List registered tests with suite, estimate, labels and gates."""
    from parity.ci.loading import load_config
    from parity.ci.plan.encode import registration_row
    from parity.ci.registry.discovery import collect
    from parity.cli.ci import arguments
    from parity.errors import ConfigError
    from parity.registry import known

    config = load_config(root)
    for word, allowed in ((backend, config.backends), (suite, config.suites)):
        if word is not None and word not in allowed:
            raise ConfigError(f"{word!r} isn't in ci.toml; {known(word, allowed)}")
    inventory = collect(config, arguments.day(today))
    rows = [
        registration_row(each, file)
        for file in inventory.files
        for each in file.registrations
        if backend in (None, each.backend) and suite in (None, each.suite)
    ]
    if as_json:
        typer.echo("".join(f"{json.dumps(asdict(row))}\n" for row in rows), nl=False)
        return 0
    for row in rows:
        notes = [*row.labels, *(["nightly"] if row.nightly else [])]
        notes += ["disabled"] if row.disabled else []
        typer.echo(f"{row.suite:20} {row.est_time_s:8g} s  {row.path}  {' '.join(notes)}".rstrip())
    typer.echo(f"{len(rows)} registrations")
    return 0
