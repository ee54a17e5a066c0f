"""Where processes are placed: the table, what it asks, and what a cluster can hold."""

import itertools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from parity.errors import ConfigError
from parity.runtime.config import PlacementConfig
from parity.runtime.placement import processes_per_node, table, unmet


def placed(nodes: int, ranks: int, replicas: int, **more) -> PlacementConfig:
    return PlacementConfig(nodes=nodes, trainer_ranks=ranks, engine_replicas=replicas, **more)


@pytest.mark.parametrize(
    ("nodes", "ranks", "replicas", "lines"),
    [
        (1, 1, 1, ["node 0: trainer 0 + engine 0; 2 CPU, 2 GPU"]),
        (1, 2, 2, ["node 0: trainer 0, 1 + engine 0, 1; 4 CPU, 4 GPU"]),
        (2, 2, 2, ["node 0: trainer 0, 1; 2 CPU, 2 GPU", "node 1: engine 0, 1; 2 CPU, 2 GPU"]),
        (
            2,
            3,
            1,
            ["node 0: trainer 0, 1; 2 CPU, 2 GPU", "node 1: trainer 2 + engine 0; 2 CPU, 2 GPU"],
        ),
    ],
)
def test_the_table_is_as_drawn(nodes: int, ranks: int, replicas: int, lines: list[str]):
    assert table(placed(nodes, ranks, replicas), cores=64, device="GPU").lines() == lines


@settings(deadline=None)  # a loaded machine proves nothing
@given(st.integers(1, 6), st.integers(1, 20), st.integers(1, 20), st.floats(0.1, 64))
def test_every_process_has_one_seat_and_nodes_differ_by_one_at_most(
    nodes: int, ranks: int, replicas: int, cores: float
):
    config = placed(nodes, ranks, replicas)
    if nodes > ranks + replicas:
        with pytest.raises(ConfigError, match=r"placement\.nodes"):
            table(config, cores=cores)
        return
    made = table(config, cores=cores)
    assert [seat.index for seat in made.of("trainer")] == list(range(ranks))
    assert [seat.index for seat in made.of("engine")] == list(range(replicas))
    sizes = [len(made.on(node)) for node in range(nodes)]
    assert sum(sizes) == ranks + replicas
    assert max(sizes) - min(sizes) <= 1
    assert all(bundle["CPU"] <= cores + 1e-3 for bundle in made.bundles)
    most_ranks, most_replicas = processes_per_node(config)
    assert 1 <= most_ranks <= ranks
    assert 1 <= most_replicas <= replicas


def test_memory_and_cpus_are_asked_as_the_run_file_says():
    made = table(placed(1, 1, 1, cpus_per_process=3.0, memory_gib_per_process=2.0), cores=2)
    assert made.bundles == [{"CPU": 6.0, "memory": 4.0 * 2**30}]
    assert made.lines() == ["node 0: trainer 0 + engine 0; 6 CPU, 4 GiB memory"]


@pytest.mark.parametrize(
    ("kind", "nodes", "ranks", "replicas", "lines"),
    [
        ("colocated", 1, 1, 1, ["node 0: trainer 0 with engine 0; 1 CPU, 1 GPU"]),
        (
            "colocated",
            2,
            3,
            3,
            [
                "node 0: trainer 0, 1 with engine 0, 1; 2 CPU, 2 GPU",
                "node 1: trainer 2 with engine 2; 1 CPU, 1 GPU",
            ],
        ),
        ("mixed", 1, 1, 3, ["node 0: trainer 0 with engine 0 + engine 1, 2; 3 CPU, 3 GPU"]),
        (
            "mixed",
            2,
            3,
            1,
            [
                "node 0: trainer 0 with engine 0 + trainer 1; 2 CPU, 2 GPU",
                "node 1: trainer 2; 1 CPU, 1 GPU",
            ],
        ),
    ],
)
def test_pairs_are_placed_as_drawn(
    kind: str, nodes: int, ranks: int, replicas: int, lines: list[str]
):
    assert table(placed(nodes, ranks, replicas, kind=kind), cores=64, device="GPU").lines() == lines


@settings(deadline=None)  # a loaded machine proves nothing
@given(
    st.integers(1, 4),
    st.integers(1, 9),
    st.integers(1, 9),
    st.floats(0.1, 64),
    st.floats(0.01, 9) | st.none(),
)
def test_a_pair_is_on_one_node_and_asks_for_one_device_together(
    nodes: int, ranks: int, replicas: int, cores: float, cpus: float | None
):
    kind = "colocated" if ranks == replicas else "mixed"
    config = placed(nodes, ranks, replicas, kind=kind, cpus_per_process=cpus)
    if nodes > max(ranks, replicas):
        with pytest.raises(ConfigError, match=r"placement\.nodes"):
            table(config, cores=cores, device="GPU")
        return
    made = table(config, cores=cores, device="GPU")
    for engine in made.of("engine"):
        assert engine.is_guest == (engine.index < ranks)
        if engine.is_guest:
            host = made.host_of(engine)
            assert (host.role, host.index, host.node) == ("trainer", engine.index, engine.node)
    for node, bundle in enumerate(made.bundles):
        places = {seat.place for seat in made.on(node)}
        assert bundle["GPU"] == len(places)
        asked = [made.asked_by(seat).resources() for seat in made.on(node)]
        # Ray counts in ten-thousandths and places only what fits: no more may be asked.
        assert sum(round(10_000 * each["CPU"]) for each in asked) == round(10_000 * bundle["CPU"])
        assert bundle["CPU"] <= len(places) * made.demand.cpus + 1e-4
        assert ["GPU" in each for each in asked] == [not seat.is_guest for seat in made.on(node)]


def test_counts_that_do_not_fit_the_kind_are_refused_with_what_fits():
    with pytest.raises(ConfigError, match=r"2 trainer ranks and 3 .*engine_replicas=2, or .*mixed"):
        table(placed(1, 2, 3, kind="colocated"), cores=2)
    with pytest.raises(ConfigError, match=r"'mixed' with 2 trainer ranks and as many .*colocated"):
        table(placed(1, 2, 2, kind="mixed"), cores=2)


def test_what_no_choice_of_nodes_can_hold_is_said_with_what_there_is():
    small, large = {"CPU": 2.0}, {"CPU": 8.0, "GPU": 4.0}
    assert unmet([{"CPU": 2.0}, {"CPU": 4.0, "GPU": 2.0}], [large, small]) is None
    assert unmet([large, large], [large, small]) == (
        "asked is node 0: 8 CPU, 4 GPU; node 1: 8 CPU, 4 GPU, and available is"
        " 8 CPU, 4 GPU; 2 CPU, 0 GPU"
    )
    assert unmet([small] * 3, [large, small]) == "3 nodes are asked for, and the cluster has 2"


@settings(deadline=None)  # a loaded machine proves nothing
@given(
    st.lists(st.integers(1, 5), min_size=1, max_size=4),
    st.lists(st.integers(0, 5), min_size=1, max_size=4),
)
def test_a_fit_is_found_exactly_where_some_assignment_fits(asked: list[int], there: list[int]):
    bundles, nodes = [{"CPU": float(n)} for n in asked], [{"CPU": float(n)} for n in there]
    fits = any(
        all(need <= have for need, have in zip(asked, choice, strict=True))
        for choice in itertools.permutations(there, len(asked))
    )
    assert (unmet(bundles, nodes) is None) == fits
