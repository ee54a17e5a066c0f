"""A job with Ray itself: the sbatch script under a stand-in for Slurm, every node on loopback."""

import sys
from pathlib import Path

import pytest
from unit.cluster.conftest import PROGRAMS, Job

from parity.cluster.shape import shape_of
from parity.cluster.slurm import SlurmOptions, script
from parity.config.compose import load_train
from parity.observe.summary import Summary

SMALL = (
    "runtime=ray",
    "platform=cpu",
    "placement.nodes=2",
    "placement.cpus_per_process=1",
    "placement.start_timeout_s=400",
    "steps=1",
    "rollouts.groups_per_step=2",
    "rollouts.group_size=2",
    "eval.num_tasks=2",
    "checkpoint.export=false",
    "threads.trainer=1",
    "threads.engine=1",
)


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_the_script_trains_on_two_ray_nodes(job: Job):
    only = job.dir / "programs"  # Slurm's stand-ins, but Ray and Parity themselves
    only.mkdir()
    for name in ("srun", "scontrol", "ip"):
        (only / name).symlink_to(PROGRAMS / name)
    config = load_train("quickstart", SMALL)
    text = script(
        config,
        shape_of(config),
        recipe="quickstart",
        overrides=SMALL,
        options=SlurmOptions(
            setup=[f"export PATH={only}:{Path(sys.executable).parent}:$PATH OMP_NUM_THREADS=1"],
            interface="lo",
        ),
        work_dir=job.dir,
    )
    job.variables["SLURM_JOB_NODELIST"] = "n1,n2"
    code, said = job.run(text, timeout_s=800)
    assert code == 0, said
    summary = Summary.read(job.dir / "runs" / f"quickstart-{job.job_id}")
    assert (summary.status, summary.steps) == ("finished", 1)
    assert "node 1: engine 0" in said
    assert not Path(f"/tmp/parity-{job.job_id}").exists()
