import dataclasses
import datetime
import enum
import json
import math
import pathlib
import subprocess
import sys
from collections import Counter, UserDict, defaultdict, deque, namedtuple
from collections.abc import Callable

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from parity.errors import DataError
from parity.observe.encode import MAX_DEPTH, Unencodable, decode, dumps, encode, loads


def strict(line: str) -> object:
    """What a strict reader makes of a line: no constants, ASCII only, one line."""

    def refuse(word: str) -> None:
        raise AssertionError(word)

    assert line.isascii()
    assert len(line.splitlines()) == 1
    return json.loads(line, parse_constant=refuse)


def canon(value: object) -> str:
    """A text that two values share only if type and value agree at every depth."""
    name = type(value).__name__
    if isinstance(value, list | tuple):
        return f"{name}{[canon(item) for item in value]}"
    if isinstance(value, set | frozenset):
        return f"{name}{sorted(canon(item) for item in value)}"
    if isinstance(value, dict):
        return f"{name}{[(canon(key), canon(item)) for key, item in value.items()]}"
    return f"{name}:{value!r}"  # NaN is nan; 0.0 is not -0.0


def same(a: object, b: object) -> bool:
    return canon(a) == canon(b)


ANY_TEXT = st.text(st.characters())  # surrogates included
HASHABLE = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | ANY_TEXT | st.binary(),
    lambda inner: st.lists(inner, max_size=3).map(tuple) | st.frozensets(inner, max_size=3),
    max_leaves=4,
)
VALUES = st.recursive(
    HASHABLE,
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.lists(inner, max_size=4).map(tuple)
        | st.sets(HASHABLE, max_size=4)
        | st.dictionaries(ANY_TEXT, inner, max_size=4)
        | st.dictionaries(st.sampled_from(["$float", "$", "$$map", "a"]), inner, max_size=3)
        | st.dictionaries(HASHABLE, inner, max_size=3)
    ),
    max_leaves=12,
)


@settings(max_examples=50, deadline=None)
@given(VALUES)
def test_every_value_comes_back_as_it_was(value: object) -> None:
    lost = Counter()
    line = dumps(value, lost)
    strict(line)
    assert same(loads(line), value)
    assert not lost


@settings(max_examples=50, deadline=None)
@given(ANY_TEXT)
def test_every_text_is_one_ascii_line_and_comes_back(text: str) -> None:
    assert loads(dumps(text)) == text
    strict(dumps({text: text}))


JSON_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**70), 2**70) | st.text() | st.floats(-9, 9),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(
                ["$float", "$int", "$bytes", "$text", "$set", "$map", "$tuple", "$frozenset"]
            )
            | st.text(max_size=3),
            inner,
            max_size=2,
        )
    ),
    max_leaves=8,
)


@settings(max_examples=50, deadline=None)
@given(JSON_VALUES)
def test_foreign_json_never_breaks_the_reader(value: object) -> None:
    decode(value)


@pytest.mark.parametrize(
    ("value", "native"),
    [
        (np.bool_(True), True),
        (np.float64(0.5) > 0.1, True),
        (np.int64(7), 7),
        (np.uint8(255), 255),
        (np.float64(0.1), 0.1),
        (np.float16(0.5), 0.5),
        (np.str_("x"), "x"),
        (np.array(2.5), 2.5),
        (np.arange(4).reshape(2, 2), [[0, 1], [2, 3]]),
        ([[np.int32(1)], [np.int32(2)]], [[1], [2]]),
        (torch.tensor(3), 3),
        (torch.tensor(0.25), 0.25),
        (torch.tensor(True), True),
        (torch.ones(2, dtype=torch.bfloat16, requires_grad=True), [1.0, 1.0]),
        ({"deep": [{"x": torch.tensor([1, 2])}]}, {"deep": [{"x": [1, 2]}]}),
        (pathlib.PurePosixPath("a/b"), "a/b"),
        (datetime.date(2024, 5, 6), "2024-05-06"),
        (deque([1, 2]), [1, 2]),
        (range(3), [0, 1, 2]),
        (UserDict({"a": 1}), {"a": 1}),
        (defaultdict(list, a=[1]), {"a": [1]}),
    ],
)
def test_scalars_and_containers_of_others_become_native(value: object, native: object) -> None:
    lost = Counter()
    assert same(strict(dumps(value, lost)), native)
    assert not lost


def test_numpy_numbers_as_keys_stay_numbers() -> None:
    assert same(loads(dumps({np.int64(3): "x", "y": 1})), {3: "x", "y": 1})


def test_non_finite_numbers_are_strict_and_reversible_at_any_depth() -> None:
    value = {"a": 0.5, "b": math.nan, "c": [1.0, -math.inf], "d": np.array([math.inf])}
    strict(dumps(value))
    assert same(
        loads(dumps(value)), {"a": 0.5, "b": math.nan, "c": [1.0, -math.inf], "d": [math.inf]}
    )


def test_large_finite_floats_stay_numbers() -> None:
    assert loads(dumps([1e308, 1e308, -1e308])) == [1e308, 1e308, -1e308]


def test_a_pair_of_lone_surrogates_is_not_joined_into_one_character() -> None:
    pair = "a\ud83d\ude00b"
    assert loads(dumps(pair)) == pair
    assert loads(dumps(pair)) != "a\U0001f600b"
    assert strict(dumps(pair)) == {"$text": ["a", 0xD83D, 0xDE00, "b"]}


def test_line_separators_stay_inside_one_record() -> None:
    text = "one\u2028two\u0085three\x0bfour\r\nfive"
    strict(dumps({"text": text}))
    assert loads(dumps({"text": text})) == {"text": text}


@pytest.mark.parametrize(
    "value",
    [
        {"$float": "nan"},
        {"$$float": "nan"},
        {"$map": [[1, 2]]},
        {"$other": 1},
        {"$": {"$bytes": "AAAA"}},
        {"$text": [55296], "b": 1},
    ],
)
def test_a_users_own_dollar_keys_are_kept(value: object) -> None:
    assert same(loads(dumps(value)), value)


class Color(enum.Enum):
    RED = 1
    WORD = "red"


def test_enums_become_their_value_and_colliding_keys_are_both_kept() -> None:
    assert encode([Color.RED, Color.WORD]) == [1, "red"]
    line = dumps({"red": 1, Color.WORD: 2})
    assert strict(line) == {"$map": [["red", 1], ["red", 2]]}
    assert loads(line) == [("red", 1), ("red", 2)]


@dataclasses.dataclass(frozen=True)
class Point:
    x: float
    tags: tuple[str, ...] = ()


def test_dataclasses_become_dicts_also_where_they_were_hashed() -> None:
    assert encode(Point(1.0, ("a",))) == {"x": 1.0, "tags": {"$tuple": ["a"]}}
    assert loads(dumps({Point(1.0)})) == [{"x": 1.0, "tags": ()}]
    assert loads(dumps({Point(1.0): 2})) == [({"x": 1.0, "tags": ()}, 2)]


def test_huge_integers_come_back_and_absurd_ones_cost_themselves() -> None:
    huge = 10**5000  # more digits than Python turns into text
    assert loads(dumps([huge, -huge, 2**64, 2**64 - 1])) == [huge, -huge, 2**64, 2**64 - 1]
    assert strict(dumps(2**64 - 1)) == 2**64 - 1
    lost = Counter()
    assert loads(dumps([1, 1 << 100_000], lost))[0] == 1
    assert lost.total() == 1


class HostileRepr:
    def __repr__(self) -> str:
        raise RuntimeError("no repr")

    __str__ = __repr__


class HostileClass:
    @property
    def __class__(self) -> type:  # type: ignore[override]
        raise RuntimeError("no class")


class HostileMeta(type):
    def __getattribute__(cls, name: str) -> object:
        if name == "__qualname__":
            raise RuntimeError("no name")
        return type.__getattribute__(cls, name)


class HostileName(metaclass=HostileMeta):
    pass


class HostileMapping(dict):
    def items(self):
        raise KeyError("no items")


class HostileInt(int):
    def __index__(self) -> int:
        raise RuntimeError("no index")

    __int__ = __index__


@dataclasses.dataclass
class HostileField:
    good: int = 1

    def __getattribute__(self, name: str) -> object:
        if name == "good":
            raise RuntimeError("no field")
        return object.__getattribute__(self, name)


@pytest.mark.parametrize(
    "make",
    [
        HostileRepr,
        HostileClass,
        HostileName,
        lambda: HostileMapping(a=1),
        HostileField,
        object,
        lambda: (n for n in range(3)),
        lambda: open,
        lambda: int,
        lambda: Point,
        lambda: 1 + 2j,
        lambda: np.array([1 + 2j])[0],
        lambda: np.longdouble(1),
        lambda: torch.empty(2, device="meta"),
    ],
)
def test_what_cannot_be_encoded_costs_only_itself_and_is_counted(
    make: Callable[[], object],
) -> None:
    lost = Counter()
    line = dumps({"before": 1, "bad": [make()], "after": "x"}, lost)
    strict(line)
    found = loads(line)
    assert found["before"] == 1
    assert found["after"] == "x"
    assert isinstance(found["bad"][0], Unencodable)
    assert lost.total() == 1
    assert dumps(found) == line


def test_a_subclass_of_int_cannot_interfere() -> None:
    assert encode(HostileInt(5)) == 5


def test_a_cycle_costs_only_the_place_where_it_closes() -> None:
    ring: list[object] = [1]
    ring.append({"again": ring})
    lost = Counter()
    assert encode(ring, lost) == [
        1,
        {"again": {"$unencodable": "list: contains itself"}},
    ]
    assert lost.total() == 1


def test_the_same_object_twice_is_no_cycle() -> None:
    shared = [1.5]
    lost = Counter()
    assert encode([shared, shared], lost) == [[1.5], [1.5]]
    assert not lost


@pytest.mark.parametrize("depth", [MAX_DEPTH + 1, 100_000])
def test_too_deep_nesting_is_cut(depth: int) -> None:
    value: list[object] = []
    for _ in range(depth):
        value = [value]
    lost = Counter()
    strict(dumps(value, lost))
    assert lost.total() == 1


def test_named_tuples_are_tuples() -> None:
    pair = namedtuple("pair", "a b")(1, 2)
    assert loads(dumps(pair)) == (1, 2)


def test_sets_have_one_order() -> None:
    assert dumps({"b", "a", "c"}) == dumps({"c", "b", "a"}) == '{"$set": ["a", "b", "c"]}'


@pytest.mark.parametrize(
    "line", ["NaN", "[Infinity]", "{", "", "{'a': 1}", "[" * 100_000, b"\xff", "1" * 5000]
)
def test_what_is_not_strict_json_is_refused(line: str | bytes) -> None:
    with pytest.raises(DataError):
        loads(line)


def test_encoding_imports_neither_torch_nor_numpy() -> None:
    code = (
        "import sys; from parity.observe.encode import dumps; dumps({1: (2.0, b'x')});"
        "assert not {'torch', 'numpy'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
