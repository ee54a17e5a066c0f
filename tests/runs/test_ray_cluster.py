"""Whose a cluster is: one that was joined is left as it was, one of our own leaves nothing.

Also with the driver killed by -9, after which only the kernel and Ray can clean up.
"""

import asyncio
import dataclasses
import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Generator
from pathlib import Path

import psutil
import pytest

pytest.importorskip("ray")

from runs.clusters import (
    RayCluster,
    end,
    free_ports,
    one_host,
    parity,
    processes_of,
    short_folder,
    variables,
    wait_until,
)
from runs.mortal import assert_clean

from parity.config.saved import save
from parity.config.schema import TrainConfig
from parity.errors import UnsupportedError
from parity.folder import RunFolder
from parity.observe.summary import Summary
from parity.runtime.config import PlacementConfig
from parity.runtime.placement import table
from parity.runtime.ray.calls import short
from parity.runtime.ray.cluster import Cluster, reach
from parity.weights.host.endpoints import RunDirectory

ConfigOf = Callable[..., TrainConfig]
ON_RAY = "runtime=ray"
RUN_S = 600
GONE_S = 120  # an upper bound: not measured more closely
STARTS = 20
ANOTHER_VERSION = """
import json, ray
ray.init(log_to_driver=False, configure_logging=False)
store = ray._private.worker.global_worker.gcs_client
named = (b"CLUSTER_METADATA", b"cluster")
found = json.loads(store.internal_kv_get(*named, timeout=30))
store.internal_kv_put(
    named[0], json.dumps(found | {"ray_version": "1.0.0"}).encode(), True, named[1], timeout=30
)
"""


def test_an_address_where_nothing_answers_is_refused_at_once() -> None:
    (port,) = free_ports(1)
    with pytest.raises(UnsupportedError, match=rf"answers at 127\.0\.0\.1:{port}.*refused"):
        reach(f"127.0.0.1:{port}")
    with pytest.raises(UnsupportedError, match="has to be on a host of the cluster itself"):
        reach(f"ray://127.0.0.1:{port}")
    reach("auto")


def test_what_listens_and_isnt_ray_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("parity.runtime.ray.cluster._REACH_S", 0.3)
    with socket.create_server(("127.0.0.1", 0)) as mute:
        address = f"127.0.0.1:{mute.getsockname()[1]}"
        with pytest.raises(UnsupportedError, match=f"{address}: timed out"):
            reach(address)
        thread = threading.Thread(target=lambda: mute.accept()[0].sendall(b"HTTP/1.1 400 Bad\r\n"))
        mute.settimeout(30)
        mute.accept()[0].close()  # of the first look
        thread.start()
        with pytest.raises(UnsupportedError, match=f"{address}: what listens there isn't Ray"):
            reach(address)
        thread.join()


def test_the_end_of_a_process_is_told_with_its_host() -> None:
    from ray.core.generated.common_pb2 import ActorDiedErrorContext
    from ray.exceptions import ActorDiedError, ActorUnavailableError

    cause = ActorDiedErrorContext(
        actor_id=bytes(16),
        class_name="EngineReplica",
        node_ip_address="198.18.7.2",
        error_message="The actor died because its node has died. Node Id: 5\n"
        "\tthe actor's node was terminated unexpectedly: missed too many heartbeats",
    )
    said = short(ActorDiedError(cause))
    assert "its node has died" in said
    assert "missed too many heartbeats" in said
    assert said.endswith("its host was 198.18.7.2")
    assert "\n" not in said
    broken = short(ActorUnavailableError("Connection reset by peer", bytes(16)))
    assert broken.startswith("the connection to its host broke:")


@pytest.fixture(scope="module")
def joined() -> Generator[RayCluster]:
    """A cluster of six CPUs that is there before the runs and after them."""
    with one_host(cpus=6) as cluster:
        yield cluster


class Begun:
    """A run in a process of its own."""

    def __init__(self, start: Callable[..., "subprocess.Popen[str]"], config: TrainConfig) -> None:
        folder = Path(config.output.dir)
        name = f"run-{len(list(folder.glob('*.yaml')))}"
        save(config, folder / f"{name}.yaml")
        given = parity("train", str(folder / f"{name}.yaml"), f"output.name={name}")
        self.process = start(*given)
        self.folder = RunFolder(folder / name)

    def pids(self) -> list[int]:
        """The processes of trainer and engine, once there have been two steps."""
        wait_until(self._has_two_steps, "two steps", within_s=RUN_S)
        logs = sorted((self.folder.path / "logs").glob("*-0.log"))
        assert len(logs) == 2
        return [int(log.read_text().split(" pid=")[1].split()[0]) for log in logs]

    def _has_two_steps(self) -> bool:
        assert self.process.poll() is None, self.process.communicate()[0]
        found = self.folder.metrics_path
        return found.is_file() and found.read_text().count("train/loss") >= 2


def left_in(folder: Path) -> list[str]:
    """Files of runs below a temporary folder, after what dead runs left was swept as ever."""
    time.sleep(2.1)  # `remove_leftovers` spares what may be being made
    RunDirectory.create("sweep", parent=folder).close()
    return [str(path) for path in folder.rglob("*") if f"parity-{os.getuid()}" in str(path)]


def named_shared_memory() -> set[str]:
    """Segments of this user's runs."""
    return {path.name for path in Path("/dev/shm").glob(f"parity-{os.getuid()}-*")}


@pytest.mark.slow
@pytest.mark.timeout(3 * RUN_S)
def test_runs_side_by_side_leave_a_joined_cluster_as_it_was(
    joined: RayCluster, config_of: ConfigOf
) -> None:
    before, shared = joined.state(), named_shared_memory()
    assert before == {"free": {"CPU": 6.0}, "groups": 0, "named": []}
    runs = [Begun(joined.begin, config_of(ON_RAY, "steps=3")) for _ in range(2)]  # at once
    greedy = Begun(joined.begin, config_of(ON_RAY, "placement.cpus_per_process=500"))
    said, _ = greedy.process.communicate(timeout=RUN_S)
    assert greedy.process.returncode != 0
    assert "asked is node 0: 1000 CPU, and available is 6 CPU" in " ".join(said.split())
    for run in runs:
        said, _ = run.process.communicate(timeout=RUN_S)
        assert run.process.returncode == 0, said
        assert Summary.read(run.folder.path).status == "finished"
        assert "kind=joined" in run.folder.log_path.read_text()
        assert_clean(run.folder.path)
    wait_until(lambda: joined.state() == before, "the cluster as it was", within_s=GONE_S)
    assert not left_in(joined.folder)
    assert named_shared_memory() <= shared


@pytest.mark.slow
@pytest.mark.timeout(2 * RUN_S)
def test_a_killed_driver_leaves_nothing_in_a_joined_cluster(
    joined: RayCluster, config_of: ConfigOf
) -> None:
    before, shared = joined.state(), named_shared_memory()
    run = Begun(joined.begin, config_of(ON_RAY, "steps=5000"))
    pids = run.pids()
    graders = [child.pid for child in psutil.Process(run.process.pid).children(recursive=True)]
    assert graders
    run.process.kill()
    run.process.wait()
    wait_until(
        lambda: not any(psutil.pid_exists(pid) for pid in (*pids, *graders)),
        "the end of the run's processes",
        within_s=GONE_S,
    )
    wait_until(lambda: joined.state() == before, "the cluster as it was", within_s=GONE_S)
    assert not left_in(joined.folder)
    assert named_shared_memory() <= shared


@pytest.mark.slow
@pytest.mark.timeout(2 * RUN_S)
def test_a_killed_driver_takes_its_own_cluster_with_it(config_of: ConfigOf) -> None:
    shared = named_shared_memory()
    with short_folder() as folder:
        env = {k: v for k, v in variables(folder).items() if not k.startswith("RAY_")}
        alone = RayCluster("", env, folder)
        run = Begun(alone.begin, config_of(ON_RAY, "steps=5000"))
        try:
            pids = run.pids()
            below = psutil.Process(run.process.pid).children(recursive=True)
            assert {process.pid for process in below} >= set(pids)
            assert len(below) > 5, "gcs, raylet, agents, two actors"
            run.process.kill()
            run.process.wait()
            wait_until(
                lambda: not any(process.is_running() for process in below),
                "the end of the run and its cluster",
                within_s=GONE_S,
            )
            assert not processes_of(folder)
            assert not left_in(folder)
            assert named_shared_memory() <= shared
        finally:
            run.process.kill()
            end(processes_of(folder))


@pytest.mark.slow
@pytest.mark.timeout(2 * RUN_S)
def test_a_cluster_with_another_token_or_version_is_refused_with_a_sentence(
    joined: RayCluster, config_of: ConfigOf
) -> None:
    alien = {**joined.variables, "RAY_AUTH_TOKEN": "0" * 32}
    run = Begun(dataclasses.replace(joined, variables=alien).begin, config_of(ON_RAY))
    said, _ = run.process.communicate(timeout=300)
    assert run.process.returncode not in (0, None)
    assert "no Ray cluster could be joined" in " ".join(said.split())
    patched = joined.run(sys.executable, "-c", ANOTHER_VERSION)
    assert patched.returncode == 0, patched.stderr
    run = Begun(joined.begin, config_of(ON_RAY))
    said, _ = run.process.communicate(timeout=300)
    assert run.process.returncode not in (0, None)
    assert "no Ray cluster could be joined (Version mismatch" in " ".join(said.split())


@pytest.mark.slow
@pytest.mark.timeout(2 * RUN_S)
def test_a_node_that_comes_up_too_late_for_ray_is_started_again(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    from ray._private import services

    find, began = services.get_node, time.monotonic()

    def found_late(*given: object) -> object:
        if time.monotonic() < began + 45:  # Ray waits for 30 s, and no setting changes that
            raise RuntimeError("not there yet")
        return find(*given)

    monkeypatch.setattr(services, "get_node", found_late)
    with short_folder() as folder:

        async def once() -> None:
            cluster = Cluster("late", address=None, private_dir=folder, cores=1)
            await cluster.open(deadline_s=RUN_S)
            assert len(cluster.nodes()) == 1
            await cluster.close()

        with caplog.at_level("WARNING", logger="parity"):
            asyncio.run(once())
        assert "event=cluster_start_again" in caplog.text
        assert not processes_of(folder)
        assert not list(folder.iterdir())


def open_files() -> int:
    """Descriptors of this process."""
    return len(list(Path("/proc/self/fd").iterdir()))


@pytest.mark.slow
@pytest.mark.timeout(6 * RUN_S)
def test_twenty_starts_and_stops_leave_nothing() -> None:
    counted: list[tuple[int, int]] = []
    before = {process.pid for process in psutil.Process().children(recursive=True)}
    with short_folder() as folder:

        async def once(number: int) -> None:
            directory = RunDirectory.create(f"start-{number}", parent=folder)
            cluster = Cluster(f"n{number}", address=None, private_dir=directory.path, cores=2)
            try:
                await cluster.open(deadline_s=RUN_S)
                await cluster.reserve(table(PlacementConfig(), cores=2), deadline_s=RUN_S)
            finally:
                await cluster.close()
                directory.close()

        for number in range(STARTS):
            asyncio.run(once(number))
            counted.append((open_files(), psutil.Process().num_threads()))
            assert not processes_of(folder)
            assert not list(folder.iterdir())
    after = {process.pid for process in psutil.Process().children(recursive=True)}
    assert after <= before
    # What libraries open once is open after the second start; a leak would come with each.
    files, threads = ([each[column] for each in counted] for column in (0, 1))
    assert files[-1] - files[1] < STARTS / 2, counted
    assert threads[-1] - threads[1] < STARTS / 2, counted
