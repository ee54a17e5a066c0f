"""One value becomes a list of ids, or one sentence that says what is wrong with it."""

import pytest

from parity.platforms.visibility.lists import read_list

NAME = "HIP_VISIBLE_DEVICES"


def read(value: str, *, hides: bool = True):
    return read_list(NAME, value, hides_after_negative=hides)


@pytest.mark.parametrize(
    ("value", "ids"),
    [
        ("0", (0,)),
        ("3,1", (3, 1)),
        ("0,1,2,5", (0, 1, 2, 5)),
        (" 4 ,\t5", (4, 5)),
        ("7,", (7,)),
        ("007", (7,)),
        ("", ()),
        ("NoDevFiles", ()),
        ("-1", ()),
        ("-5", ()),
        ("GPU-5f1e", ("GPU-5f1e",)),
        ("MIG-a/1/0,MIG-b/1/0", ("MIG-a/1/0", "MIG-b/1/0")),
    ],
)
def test_lists_that_are_clean(value: str, ids: tuple):
    found = read(value)
    assert (found.ids, found.warnings, found.errors) == (ids, (), ())


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        ("0,0", "names 0 more than once"),
        ("1,01", "names 1 more than once"),
        ("GPU-a,GPU-a", "names GPU-a more than once"),
        ("0,,1", "empty place"),
        (",", "empty place"),
        ("all", "'all' in it, which is neither"),
        ("0 1", "'0 1' in it"),
        ("+1", "neither a number"),
        ("\u0661", "neither a number"),
        ("9" * 5000, "neither a number"),
        ("0,GPU-a", "mixes numbers and UUIDs"),
        ('"0,1"', "neither a number"),
    ],
)
def test_lists_that_a_runtime_would_read_otherwise_than_they_look(value: str, reason: str):
    (error,) = read(value).errors
    assert reason in error
    assert error.startswith(f"{NAME}={value}")
    assert read(value).ids == ()


def test_a_negative_number_ends_the_list_where_the_runtime_reads_it_so():
    found = read("0,-1,1,2")
    assert found.ids == (0,)
    assert "hides what follows it (1, 2)" in found.warnings[0]
    assert read("0,-1").warnings == ()
    (error,) = read("0,-1,1", hides=False).errors
    assert "or -1 alone" in error
    assert read("-1", hides=False).errors == ()


def test_a_list_that_no_machine_can_have_is_refused_without_repeating_it():
    value = ",".join(str(number) for number in range(20_000))
    found = read_list("CUDA_VISIBLE_DEVICES", value, hides_after_negative=True)
    (error,) = found.errors
    assert "names 20000 devices; at most 1024 are possible" in error
    assert len(error) < 200
