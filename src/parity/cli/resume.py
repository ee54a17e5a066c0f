"""`parity resume RUN [KEY=VALUE]...`: go on with a run from its newest complete checkpoint."""

from parity.cli.arguments import OverridesArgument, RunArgument, RunsDirOption
from parity.cli.failures import keep_crashes_in
from parity.models import heavy

EPILOG = """\b
Examples:
  parity resume latest
  parity resume quickstart-20260101-120000 steps=200
"""


def resume(
    run: RunArgument, overrides: OverridesArgument = None, runs_dir: RunsDirOption = None
) -> int:
    """Go on with a run from its newest checkpoint."""
    from parity.cli import locate

    folder = locate.find_run(run, locate.runs_dir(runs_dir))
    keep_crashes_in(folder.path)
    with heavy.imports():
        from parity.launch import resume as go_on

    return go_on(folder.path, overrides or ())
