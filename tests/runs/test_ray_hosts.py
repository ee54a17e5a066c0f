"""Runs over two hosts: trained across them, with the cable between them pulled for a while, or
for good. The hosts are network namespaces of this machine, where root may make some."""

import json
from collections.abc import Callable, Generator
from pathlib import Path

import pytest

pytest.importorskip("ray")

from runs.clusters import (
    Hosts,
    RayCluster,
    parity,
    two_hosts,
    wait_until,
    why_no_hosts,
    why_no_namespaces,
)
from runs.mortal import assert_clean

from parity.config.saved import save
from parity.config.schema import TrainConfig
from parity.folder import RunFolder
from parity.observe.summary import Summary

ConfigOf = Callable[..., TrainConfig]
TwoHosts = tuple[Hosts, RayCluster]
ROLES = ("trainer-0", "engine-0")
ON_TWO = ("runtime=ray", "placement.nodes=2")
OVER_DISK = "weights.transport=disk"
RUN_S = 900


def test_where_there_can_be_no_hosts_the_reason_is_said() -> None:
    assert "needs root" in str(why_no_namespaces(is_root=False, ip="/sbin/ip"))
    assert "iproute2" in str(why_no_namespaces(is_root=True, ip=None))
    refusing = "/bin/false"
    assert "refuses network namespaces" in str(why_no_namespaces(is_root=True, ip=refusing))


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Generator[TwoHosts]:
    """A Ray cluster of two hosts, two CPUs each."""
    if (reason := why_no_hosts()) is not None:
        pytest.skip(reason)
    unshared = tmp_path_factory.mktemp("hosts") / "unshared"
    with two_hosts(cpus=2, unshared=unshared) as (hosts, joined):
        yield hosts, joined
    assert not Path(f"/run/netns/{hosts.names[0]}").exists()


def begin(joined: RayCluster, config: TrainConfig, name: str, *words: str):
    """`parity train` of a run file with a driver on the head's host; the process, the folder."""
    output = Path(config.output.dir)
    recipe = output / f"{name}.yaml"
    save(config, recipe)
    given = parity("train", str(recipe), f"output.name={name}", *words)
    return joined.begin(*given), RunFolder(output / name)


def num_steps(folder: RunFolder) -> int:
    """Steps that were reported."""
    found = folder.metrics_path
    return found.read_text().count("train/loss") if found.is_file() else 0


def after(steps: int, folder: RunFolder, process) -> None:
    """Return when the run has taken some steps."""

    def is_so() -> bool:
        assert process.poll() is None, process.communicate()[0]
        return num_steps(folder) >= steps

    wait_until(is_so, f"{steps} steps", within_s=RUN_S)


def pid_of(folder: RunFolder, role: str) -> int:
    """The process of a role, from its log."""
    text = (folder.path / "logs" / f"{role}.log").read_text()
    return int(text.split(f"name={role} pid=")[1].split()[0])


@pytest.mark.slow
@pytest.mark.timeout(RUN_S)
def test_a_folder_that_hosts_dont_share_is_refused_before_a_model_is_loaded(
    cluster: TwoHosts, config_of: ConfigOf, tmp_path_factory: pytest.TempPathFactory
) -> None:
    _, joined = cluster
    unshared = next(tmp_path_factory.getbasetemp().glob("hosts*/unshared"))
    process, _ = begin(joined, config_of(*ON_TWO, OVER_DISK), "apart", f"output.dir={unshared}")
    said, _ = process.communicate(timeout=RUN_S)
    assert process.returncode != 0
    assert "isn't shared: what" in " ".join(said.split())
    assert f"on {Hosts.addresses[1]}" in said or f"on {Hosts.addresses[0]}" in said
    assert not list(unshared.rglob(".shared-*"))


@pytest.mark.slow
@pytest.mark.timeout(RUN_S)
def test_a_run_trains_across_hosts_and_a_cable_pulled_for_seconds_delays_it(
    cluster: TwoHosts, config_of: ConfigOf
) -> None:
    hosts, joined = cluster
    process, folder = begin(joined, config_of(*ON_TWO, OVER_DISK, "steps=40"), "across")
    after(3, folder, process)
    homes = [next(n for n in (0, 1) if pid_of(folder, role) in hosts.pids(n)) for role in ROLES]
    assert sorted(homes) == [0, 1]
    hosts.cut()
    try:
        before = num_steps(folder)
        with pytest.raises(AssertionError, match="not within"):
            wait_until(lambda: num_steps(folder) > before + 2, "more steps", within_s=4)
    finally:
        hosts.mend()
    said, _ = process.communicate(timeout=RUN_S)
    assert process.returncode == 0, said
    rows = [json.loads(line) for line in folder.metrics_path.read_text().splitlines()]
    assert [row["step"] for row in rows if "train/loss" in row] == list(range(1, 41))
    assert "transport=disk" in folder.log_path.read_text()
    assert_clean(folder.path)


@pytest.mark.slow
@pytest.mark.timeout(2 * RUN_S)
def test_a_host_that_stays_cut_off_ends_the_run_by_name_and_the_run_resumes(
    cluster: TwoHosts, config_of: ConfigOf
) -> None:
    hosts, joined = cluster
    words = ("placement.trainer_ranks=3", "placement.collective_timeout_s=20", "steps=2000")
    config = config_of(*ON_TWO, *words, "checkpoint.every_steps=2")
    process, folder = begin(joined, config, "cut")
    after(5, folder, process)
    theirs = {pid_of(folder, role) for role in ("trainer-0", "trainer-1", "trainer-2", "engine-0")}
    assert all(theirs & hosts.pids(number) for number in (0, 1)), "gloo speaks between two hosts"
    hosts.cut()
    said, _ = process.communicate(timeout=400)  # 20 s of gloo or 60 s of Ray, and a slow machine
    assert process.returncode == 1, said
    assert "transport=collective" in folder.log_path.read_text()
    reason = str(Summary.read(folder.path).reason)
    assert "trainer-" in reason or "engine-0" in reason
    assert reason in " ".join(said.split())
    wait_until(
        lambda: not theirs & (hosts.pids(0) | hosts.pids(1)), "the end of both halves", within_s=300
    )
    step = max(int(path.name.split("_")[1]) for path in folder.checkpoints_dir.glob("step_*"))
    alone = ["runtime=inline", *(f"placement.{key}" for key in ("trainer_ranks=1", "nodes=1"))]
    alone.append("placement.collective_timeout_s=300")  # the default, as one process wants it
    resumed = joined.run(*parity("resume", str(folder.path), *alone, f"steps={step + 3}"))
    assert resumed.returncode == 0, resumed.stderr
    assert Summary.read(folder.path).steps == step + 3
    assert_clean(folder.path)
