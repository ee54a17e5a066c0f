"""`parity launch`: what a batch system needs to start a run; nothing is started here."""

import typer

from parity.cli.failures import tells_interrupts
from parity.cli.launch import kuberay, slurm, wait

EPILOG = """\b
Examples:
  parity launch slurm quickstart runtime=ray platform=cpu
  parity launch kuberay quickstart runtime=ray platform=cpu --image my/parity:1 --claim data

\b
docs/how-to/launch-on-a-cluster.md explains both.
"""
SETTINGS = {"help_option_names": ["-h", "--help"], "max_content_width": 100}

app = typer.Typer(rich_markup_mode=None, no_args_is_help=True, context_settings=SETTINGS)
app.command("slurm", epilog=slurm.EPILOG)(tells_interrupts(slurm.slurm))
app.command("kuberay", epilog=kuberay.EPILOG)(tells_interrupts(kuberay.kuberay))
app.command("wait", epilog=wait.EPILOG)(tells_interrupts(wait.wait))


@app.callback(epilog=EPILOG)
def launch() -> None:
    """Print what starts a run on a cluster: an sbatch script, or a manifest for KubeRay."""
