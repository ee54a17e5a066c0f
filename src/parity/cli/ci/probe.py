"""`parity ci probe`: whether this machine is fit for a suite; changes nothing."""

from pathlib import Path
from typing import Annotated

import typer

from parity.cli.ci.arguments import RootOption

EPILOG = """\b
Examples:
  parity ci probe --suite mi300-4         device count, free memory, others' use
"""


def probe(
    suite: Annotated[str, typer.Option(help="The suite whose needs count.")],
    root: RootOption = Path(),
) -> int:
    """Check device count, free memory and foreign use; exit code 1 where the machine is unfit."""
    from parity.ci.loading import load_config
    from parity.ci.run.job import need_of
    from parity.ci.run.leases import holder
    from parity.ci.run.readiness import candidates, problem
    from parity.ci.run.settings import RunSettings
    from parity.ci.run.telemetry import probe_of
    from parity.config import environment
    from parity.errors import ConfigError
    from parity.registry import known

    config = load_config(root)
    if suite not in config.suites:
        raise ConfigError(f"--suite {suite}: {known(suite, config.suites)}")
    found = config.suites[suite]
    if not found.devices:
        typer.echo(f"{suite} needs no device.")
        return 0
    settings = RunSettings.of(config.section("run"))
    need = need_of(found, settings)
    platform = config.backends[found.backend].platform
    devices = candidates(probe_of(platform, environment.inherited({})), need)
    num_good = 0
    for device in sorted(devices, key=lambda each: each.index):
        why = problem(device, need)
        owner = holder(device.key, settings.lease_dir)
        num_good += why is None
        lease = "" if owner is None else f"; last leased to {owner.job}, pid {owner.pid}"
        typer.echo(f"device {device.index} ({device.key}): {why or 'good'}{lease}")
    typer.echo(f"{num_good} of {found.devices} needed devices can be used now.")
    return 0 if num_good >= found.devices else 1
