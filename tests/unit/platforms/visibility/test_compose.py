"""Lists compose as the runtimes read them, and a child sees exactly what it was given."""

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from parity.errors import UnsupportedError
from parity.platforms.cuda import CudaPlatform
from parity.platforms.facts import SmiDevice
from parity.platforms.npu import NpuPlatform
from parity.platforms.rocm import RocmPlatform
from parity.platforms.visibility.compose import compose, logical_index, show

NVIDIA, AMD, ASCEND = CudaPlatform.visibility, RocmPlatform.visibility, NpuPlatform.visibility
assert NVIDIA and AMD and ASCEND
COUNT = 8
MACHINE = tuple(SmiDevice(index, f"GPU-{index:04d}x") for index in range(COUNT))


def text(ids) -> str:
    return ",".join(str(each) for each in ids)


distinct = st.lists(st.integers(0, COUNT - 1), unique=True, min_size=1)


@st.composite
def parents(draw, rules):
    """A parent's variables that hold together, in any of the ways users write them."""
    environment = {}
    left = list(range(COUNT))
    if rules.outer is not None and draw(st.booleans()):
        left = draw(distinct)
        environment[rules.outer] = text(left)
    if draw(st.booleans()):
        positions = draw(st.permutations(range(len(left))))
        positions = positions[: draw(st.integers(1, len(positions)))]
        if rules.needs_ascending_ids:
            positions = sorted(positions)
        names = draw(st.lists(st.sampled_from(rules.inner), unique=True, min_size=1))
        as_uuids = rules is not ASCEND and rules.outer not in environment and draw(st.booleans())
        written = [MACHINE[p].uuid for p in positions] if as_uuids else positions
        environment.update(dict.fromkeys(names, text(written)))
        left = [left[position] for position in positions]
    return environment, tuple(left)


@pytest.mark.parametrize("rules", [NVIDIA, AMD, ASCEND])
@given(data=st.data())
def test_a_child_sees_exactly_the_devices_that_its_parent_chose(rules, data):
    environment, expected = data.draw(parents(rules))
    parent = compose(rules, environment, MACHINE)
    assert (parent.devices, parent.errors) == (expected, ())
    count = len(expected)
    chosen = data.draw(st.permutations(range(count)))[: data.draw(st.integers(0, count))]
    if rules.needs_ascending_ids:
        chosen = sorted(chosen)
    child = compose(rules, {**environment, **parent.child_variables(chosen)}, MACHINE)
    assert child.errors == ()
    assert child.devices == tuple(expected[index] for index in chosen)


@pytest.mark.parametrize("rules", [NVIDIA, AMD, ASCEND])
@given(data=st.data())
def test_the_map_and_its_inverse_agree(rules, data):
    environment, expected = data.draw(parents(rules))
    view = compose(rules, environment, MACHINE)
    for index, physical in enumerate(expected):
        assert view.logical_index(physical) == index
    hidden = set(range(COUNT)) - set(expected)
    for physical in hidden:
        with pytest.raises(UnsupportedError, match=f"device {physical} isn't visible"):
            view.logical_index(physical)


@given(outer=distinct, inner=distinct)
def test_two_masks_compose_or_are_refused_with_both_in_the_message(outer, inner):
    view = compose(
        AMD, {"ROCR_VISIBLE_DEVICES": text(outer), "HIP_VISIBLE_DEVICES": text(inner)}, MACHINE
    )
    if max(inner) < len(outer):
        assert view.devices == tuple(outer[index] for index in inner)
    else:
        (error,) = view.errors
        assert f"HIP_VISIBLE_DEVICES={text(inner)}" in error
        assert f"ROCR_VISIBLE_DEVICES={text(outer)}" in error
        assert view.devices == ()
        fixed = error.rsplit("HIP_VISIBLE_DEVICES=", 1)[1].rstrip(".")
        environment = {"ROCR_VISIBLE_DEVICES": text(outer), "HIP_VISIBLE_DEVICES": fixed}
        assert compose(AMD, environment, MACHINE).errors == ()


@given(one=distinct, two=distinct)
def test_two_inner_lists_are_accepted_exactly_where_they_name_the_same_devices(one, two):
    environment = {"HIP_VISIBLE_DEVICES": text(one), "CUDA_VISIBLE_DEVICES": text(two)}
    view = compose(AMD, environment, MACHINE)
    if set(one) == set(two):
        assert view.devices == tuple(one)
        assert len(view.warnings) == 1
    else:
        (error,) = view.errors
        for name, ids in (("HIP", one), ("CUDA", two)):
            assert f"{name}_VISIBLE_DEVICES={text(ids)}" in error


@given(ids=distinct, gap=st.integers(COUNT, 10_000))
def test_an_id_that_the_machine_lacks_is_named_wherever_it_stands(ids, gap):
    (error,) = compose(NVIDIA, {"CUDA_VISIBLE_DEVICES": text([*ids, gap])}, MACHINE).errors
    assert f"names {gap}, which" in error
    assert compose(NVIDIA, {"CUDA_VISIBLE_DEVICES": text([*ids, gap])}, None).errors == ()


@given(value=st.text(max_size=20), other=st.text(max_size=20))
def test_no_text_raises_and_none_gives_a_device_twice(value, other):
    environment = {"HIP_VISIBLE_DEVICES": value, "ROCR_VISIBLE_DEVICES": other}
    for physical in (MACHINE, None, ()):
        view = compose(AMD, environment, physical)
        devices = view.devices or ()
        assert len(set(devices)) == len(devices)
        assert not (view.errors and devices)


def test_nothing_set_means_every_device_and_an_unknown_machine_stays_unknown():
    assert compose(NVIDIA, {}, MACHINE).devices == tuple(range(COUNT))
    assert compose(NVIDIA, {}, None).devices is None
    assert compose(NVIDIA, {}, ()).devices == ()


def test_a_local_list_becomes_a_list_of_the_parents_and_not_of_the_machine():
    parent = compose(NVIDIA, {"CUDA_VISIBLE_DEVICES": "4,5,6,7"}, MACHINE)
    assert parent.child_variables([0, 1]) == {"CUDA_VISIBLE_DEVICES": "4,5"}
    assert parent.logical_index(5) == 1
    inherited = compose(AMD, {"ROCR_VISIBLE_DEVICES": "4,5,6,7"}, MACHINE)
    assert inherited.child_variables([1, 2]) == {"HIP_VISIBLE_DEVICES": "1,2"}
    assert compose(AMD, {}, MACHINE).child_variables([3]) == {"HIP_VISIBLE_DEVICES": "3"}
    assert compose(AMD, {}, None).child_variables([3]) == {"HIP_VISIBLE_DEVICES": "3"}


def test_both_of_a_redundant_pair_are_rewritten_so_that_they_do_not_contradict():
    both = {"HIP_VISIBLE_DEVICES": "2,3", "CUDA_VISIBLE_DEVICES": "2,3"}
    child = compose(AMD, both, MACHINE).child_variables([1])
    assert child == {"HIP_VISIBLE_DEVICES": "3", "CUDA_VISIBLE_DEVICES": "3"}


def test_a_child_without_devices_is_shown_none():
    for rules, value in ((NVIDIA, "-1"), (AMD, "-1"), (ASCEND, "")):
        variables = compose(rules, {}, MACHINE).child_variables([])
        assert list(variables.values()) == [value]
        assert compose(rules, variables, MACHINE).devices == ()


@pytest.mark.parametrize("logical", [[0, 0], [2], [-1]])
def test_a_child_cannot_be_given_what_its_parent_has_not(logical):
    parent = compose(NVIDIA, {"CUDA_VISIBLE_DEVICES": "4,5"}, MACHINE)
    with pytest.raises(UnsupportedError, match="a child"):
        parent.child_variables(logical)


def test_an_order_that_a_platform_cannot_express_and_a_broken_parent_are_refused():
    with pytest.raises(UnsupportedError, match=r"ascending order only: \[0, 1\]"):
        compose(ASCEND, {}, MACHINE).child_variables([1, 0])
    with pytest.raises(UnsupportedError, match="contradict"):
        environment = {"HIP_VISIBLE_DEVICES": "0", "CUDA_VISIBLE_DEVICES": "1"}
        compose(AMD, environment, MACHINE).child_variables([0])


def test_an_empty_value_is_none_and_a_warning_where_versions_differ():
    view = compose(AMD, {"HIP_VISIBLE_DEVICES": ""}, MACHINE)
    assert view.devices == ()
    assert "Set HIP_VISIBLE_DEVICES=-1" in view.warnings[0]
    assert compose(NVIDIA, {"CUDA_VISIBLE_DEVICES": ""}, MACHINE).warnings == ()


def test_the_map_is_printed_with_the_error():
    assert show((4, 5)) == "the devices (logical -> physical) 0 -> 4, 1 -> 5"
    with pytest.raises(UnsupportedError, match=r"device 3 isn't visible.*0 -> 4, 1 -> 5"):
        logical_index((4, 5), 3)
    with pytest.raises(UnsupportedError, match="couldn't be listed"):
        logical_index(None, 3)


@given(st.lists(st.text("0123456789abcdef", min_size=2, max_size=4), unique=True, min_size=2))
def test_a_shortened_uuid_counts_only_where_one_device_has_it(keys):
    machine = tuple(SmiDevice(index, f"GPU-{key}") for index, key in enumerate(keys))
    prefix = f"GPU-{keys[0][0]}"
    matching = [d.index for d in machine if d.uuid and d.uuid.startswith(prefix)]
    assume(prefix[4:])
    view = compose(NVIDIA, {"CUDA_VISIBLE_DEVICES": prefix}, machine)
    if len(matching) == 1:
        assert view.devices == (matching[0],)
    else:
        assert "which this machine hasn't" in view.errors[0]


SLICES = (
    SmiDevice(0, "GPU-aa"),
    SmiDevice(1, "MIG-1a"),
    SmiDevice(1, "MIG-1b"),
    SmiDevice(2, "MIG-2a"),
)


@pytest.mark.parametrize(
    ("value", "seen"),
    [
        (None, ("MIG-1a",)),
        ("0", (0,)),
        ("GPU-aa", (0,)),
        ("1", ("MIG-1a",)),
        ("0,1", ("MIG-1a",)),
        ("2,1", ("MIG-2a",)),
        ("MIG-1b", ("MIG-1b",)),
        ("MIG-2a,MIG-1b", ("MIG-2a",)),
        ("MIG-elsewhere", ("MIG-elsewhere",)),
    ],
)
def test_a_process_sees_one_slice_by_its_own_name_and_nothing_beside_it(value, seen):
    environment = {} if value is None else {"CUDA_VISIBLE_DEVICES": value}
    view = compose(NVIDIA, environment, SLICES)
    assert (view.devices, view.errors) == (seen, ())
    hides = value is None or "," in value
    assert [("sees one MIG slice" in each) for each in view.warnings] == [True] * hides
    child = {**environment, **view.child_variables([0])}
    assert compose(NVIDIA, child, SLICES).devices == seen


def test_a_device_that_a_tool_lists_twice_is_one_device():
    assert compose(NVIDIA, {}, (SmiDevice(0), SmiDevice(0), SmiDevice(1))).devices == (0, 1)
