import json
import os
import random
import subprocess
import sys

import numpy
import pytest
from reasoning_gym.factory import DATASETS, create_dataset

from parity.errors import ConfigError
from parity.tasks.config import ReasoningGymConfig
from parity.tasks.reasoning_gym import HASH_DEPENDENT, ReasoningGymSource, as_json
from parity.types import Message

SLOW_TO_MAKE = {
    "arc_agi",
    "figlet_font",
    "futoshiki",
    "group_anagrams",
    "puzzle24",
    "zebra_puzzles",
}
USABLE = sorted(DATASETS.keys() - HASH_DEPENDENT - {"composite"})


def source(dataset: str, *, seed: int = 3, **options: object) -> ReasoningGymSource:
    options.setdefault("size", 50)
    return ReasoningGymSource(ReasoningGymConfig(dataset=dataset, **options), seed)


def test_a_task_is_the_record_of_the_data_set() -> None:
    settings = {"min_word_len": 3, "max_word_len": 5}
    task = source("spell_backward", settings=settings, suffix="\n").task(7)
    entry = create_dataset("spell_backward", seed=3, size=50, **settings)[7]
    assert task.task_id == "reasoning_gym/spell_backward/3/7"
    assert task.prompt == entry["question"] + "\n"
    assert task.answer == entry["answer"]
    assert task.messages is None
    assert task.columns == {
        "dataset": "spell_backward",
        "settings": settings,
        "entry": json.loads(json.dumps(entry)),
    }


def test_a_chat_task_has_the_system_message_in_front() -> None:
    task = source("gcd", chat=True, system="Be brief.").task(0)
    assert task.prompt is None
    assert task.messages is not None
    assert task.messages[0] == Message("system", "Be brief.")
    assert task.messages[1].role == "user"


def test_an_index_is_the_same_task_in_any_order_and_from_any_random_state() -> None:
    for dataset in ("list_functions", "pool_matrix", "spell_backward"):
        one, two = source(dataset), source(dataset)
        random.seed(1)
        first = [one.task(index) for index in (4, 9, 20)]
        random.seed(2)
        numpy.random.seed(2)
        assert [two.task(index) for index in (20, 9, 4)] == first[::-1]
        assert one.task(4) == first[0] != one.task(5)


def test_the_random_state_of_the_run_is_left_alone() -> None:
    random.seed(5)
    numpy.random.seed(5)
    state, numpy_state = random.getstate(), numpy.random.get_state()[1].tolist()
    source("pool_matrix").task(1)
    assert random.getstate() == state
    assert numpy.random.get_state()[1].tolist() == numpy_state


def test_an_unknown_data_set_gives_the_nearest_name() -> None:
    with pytest.raises(ConfigError, match=r"tasks\.dataset is 'spel_backward'.*'spell_backward'"):
        source("spel_backward")


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"min_word_length": 3}, r"min_word_length isn't known .*Did you mean 'min_word_len'"),
        ({"min_word_len": 0}, r"can't be used: min_word_len must be positive.*Known settings: min"),
        ({"min_word_len": "three"}, r"can't be used: '>' not supported"),
        ({"seed": 4}, r"tasks\.settings\.seed can't be set here"),
        ({"size": 4}, r"tasks\.settings\.size can't be set here; use tasks\.size"),
    ],
)
def test_a_bad_setting_is_named(settings: dict[str, object], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        source("spell_backward", settings=settings)


def test_an_index_outside_is_an_error() -> None:
    with pytest.raises(IndexError, match=r"tasks\.size is 50; there is no task 50"):
        source("gcd").task(50)


def test_a_composite_task_carries_what_its_inner_verifier_needs() -> None:
    parts = [
        {"name": "gcd", "weight": 2, "config": {"min_numbers": 3, "max_numbers": 3}},
        {"name": "count_bits"},
    ]
    tasks = source("composite", settings={"datasets": parts})
    found = {str(tasks.task(n).columns["dataset"]): tasks.task(n) for n in range(20)}
    assert found.keys() == {"gcd", "count_bits"}
    assert found["gcd"].columns["settings"] == {"min_numbers": 3, "max_numbers": 3}
    for name, task in found.items():
        verifier = create_dataset(name, **task.columns["settings"])
        assert verifier.score_answer(task.answer, task.columns["entry"]) == 1.0


@pytest.mark.parametrize(
    ("parts", "message"),
    [
        ([], "must be a list of"),
        ([{"name": "gdc"}], r"datasets\[0\]\.dataset is 'gdc'.*'gcd'"),
        ([{"name": "gcd", "config": {"max": 1}}], r"datasets\[0\]\.settings\.max isn't known"),
        ([{"name": "gcd", "wait": 1}], "it must be {name, weight, config}"),
        ([{"name": "gcd", "weight": 0}], "Weight must be positive"),
    ],
)
def test_a_bad_part_of_a_composite_is_named(parts: list[object], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        source("composite", settings={"datasets": parts})


@pytest.mark.skipif(not sys.flags.hash_randomization, reason="the hash seed is fixed")
@pytest.mark.parametrize("dataset", sorted(HASH_DEPENDENT))
def test_data_sets_that_depend_on_the_hash_seed_are_refused(dataset: str) -> None:
    with pytest.raises(ConfigError, match=rf"{dataset} gives other tasks .*PYTHONHASHSEED=0"):
        source(dataset)
    with pytest.raises(ConfigError, match=rf"datasets\[0\]\.dataset={dataset} gives other tasks"):
        source("composite", settings={"datasets": [{"name": dataset}]})


def test_with_a_fixed_hash_seed_they_can_be_used() -> None:
    code = (
        "from parity.tasks.config import ReasoningGymConfig\n"
        "from parity.tasks.reasoning_gym import ReasoningGymSource\n"
        "source = ReasoningGymSource(ReasoningGymConfig(dataset='ransom_note', size=9), 0)\n"
        "print(source.task(3).task_id)"
    )
    environment = {**os.environ, "PYTHONHASHSEED": "0"}
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    assert done.stdout == "reasoning_gym/ransom_note/0/3\n"


@pytest.mark.parametrize(
    "dataset",
    [
        pytest.param(name, marks=pytest.mark.slow) if name in SLOW_TO_MAKE else name
        for name in USABLE
    ],
)
def test_every_data_set_gives_json_that_its_verifier_accepts(dataset: str) -> None:
    task = source(dataset, size=3).task(1)
    columns = json.loads(json.dumps(task.columns, allow_nan=False))
    assert columns == task.columns
    assert task.prompt
    verifier = create_dataset(dataset, **columns["settings"])
    if task.answer is not None and dataset not in ("arc_agi", "rearc"):  # these compare tuples
        assert verifier.score_answer(task.answer, columns["entry"]) == 1.0


def test_a_record_becomes_plain_json() -> None:
    class Word(str):
        __slots__ = ()

    record = {
        1: (1, [2.5]),
        "numpy": numpy.float32(0.5),
        "word": Word("w"),
        "nan": float("nan"),
        "set": frozenset({3}),
        "none": None,
        "yes": numpy.True_,
    }
    found = as_json(record)
    assert found == {
        "1": [1, [2.5]],
        "numpy": 0.5,
        "word": "w",
        "nan": "nan",
        "set": "frozenset({3})",
        "none": None,
        "yes": True,
    }
    assert type(found["word"]) is str


@pytest.mark.slow
def test_no_other_data_set_depends_on_the_hash_seed() -> None:
    code = (
        "import hashlib, json\n"
        "from parity.tasks import reasoning_gym as module\n"
        "from parity.tasks.config import ReasoningGymConfig\n"
        "found = {}\n"
        "module.HASH_DEPENDENT = ()\n"
        "for name in sorted(module.DATASETS.keys() - {'composite'}):\n"
        "    source = module.ReasoningGymSource(ReasoningGymConfig(dataset=name, size=50), 11)\n"
        "    count = 4 if name in ('knight_swap', 'futoshiki', 'puzzle24') else 50\n"
        "    tasks = repr([source.task(n) for n in range(count)])\n"
        "    found[name] = hashlib.md5(tasks.encode()).hexdigest()\n"
        "print('\\n' + json.dumps(found))"
    )

    def digests(hash_seed: str) -> dict[str, str]:
        environment = {**os.environ, "PYTHONHASHSEED": hash_seed}
        command = [sys.executable, "-c", code]
        done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
        return json.loads(done.stdout.splitlines()[-1])

    one, two = digests("1"), digests("2")
    differ = {name for name in one if one[name] != two[name]}
    assert {"ransom_note", "polynomial_multiplication"} <= differ <= HASH_DEPENDENT
