"""`parity launch kuberay RECIPE [KEY=VALUE]...`: a RayJob for a run on Kubernetes."""

from importlib import metadata
from typing import Annotated

import typer

from parity.cli.arguments import OverridesArgument, RecipeArgument
from parity.cli.launch.writing import CpusOption, MemoryOption, OutputOption, write
from parity.errors import ConfigError

EPILOG = """\b
Examples:
  parity launch kuberay quickstart runtime=ray platform=cpu --image my/parity:1 --claim data
  parity launch kuberay quickstart runtime=ray platform=cpu --image a/b:1 --claim c -o job.yaml

\b
Nodes, processes and devices follow from `placement`; `kubectl apply -f FILE` starts the job.
Paths in the run file are those of the pods; relative ones start from the claim.
"""


def kuberay(  # noqa: PLR0913 (the options of the command)
    recipe: RecipeArgument,
    overrides: OverridesArgument = None,
    *,
    image: Annotated[str, typer.Option(help="Image with Parity and ray[default].")],
    claim: Annotated[str, typer.Option(help="PersistentVolumeClaim with data and runs.")],
    mount: Annotated[str, typer.Option(help="Where the claim is mounted.")] = "/data",
    name: Annotated[
        str | None, typer.Option(help="Name of job and run [default: the recipe's].")
    ] = None,
    cpus: CpusOption = None,
    memory_gib: MemoryOption = None,
    device_resource: Annotated[
        str | None,
        typer.Option(metavar="DOMAIN/NAME", help="What Kubernetes calls the devices."),
    ] = None,
    ray_version: Annotated[
        str | None, typer.Option(help="Ray's version in the image [default: the one here].")
    ] = None,
    start_deadline_s: Annotated[
        int, typer.Option(min=1, help="Longest wait until all pods are up.")
    ] = 1800,
    retries: Annotated[
        int, typer.Option(min=0, help="Times that a failed job goes on by itself.")
    ] = 0,
    output: OutputOption = None,
) -> int:
    """Print a RayJob and its ConfigMap for `kubectl apply`."""
    from parity.cluster.kuberay import KubeRayOptions, as_if_here, manifest
    from parity.cluster.shape import shape_of
    from parity.cluster.slurm import plain_name
    from parity.config import recipes
    from parity.config.arithmetic import check
    from parity.config.compose import load_train

    config = load_train(recipe, overrides or ())
    check(as_if_here(config))
    options = KubeRayOptions(
        image=image,
        claim=claim,
        ray_version=ray_version or _ray_version(),
        name=name or plain_name(recipes.read(recipe).name).lower().replace("_", "-"),
        mount=mount.rstrip("/") or "/",
        device_resource=device_resource,
        start_deadline_s=start_deadline_s,
        retries=retries,
    )
    write(manifest(config, shape_of(config, cpus=cpus, memory_gib=memory_gib), options), output)
    return 0


def _ray_version() -> str:
    try:
        return metadata.version("ray")
    except metadata.PackageNotFoundError:
        raise ConfigError(
            "Ray isn't installed here; say which one the image has, as in --ray-version 2.52.0."
        ) from None
