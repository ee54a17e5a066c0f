"""What is left over from a replaced section name is dropped; what the user set never is."""

import pytest

from parity.config.compose import load_train
from parity.config.layers import Layers, drop_replaced
from parity.config.schema import TrainConfig
from parity.errors import ConfigError


def dropped(tasks: dict[str, object], own: set[str], overrides: set[str]) -> set[str]:
    plain: dict[str, object] = {"tasks": dict(tasks)}
    drop_replaced(TrainConfig, plain, Layers(own=frozenset(own), overrides=frozenset(overrides)))
    left = plain["tasks"]
    assert isinstance(left, dict)
    return set(tasks) - set(left)


TASKS = {"name": "jsonl", "path": "x", "dataset": "d", "settings": {}, "chat": False}


def test_an_override_of_the_name_drops_the_recipes_keys_of_the_old_name():
    own = {"tasks.name", "tasks.dataset", "tasks.settings", "tasks.chat"}
    assert dropped(TASKS, own, {"tasks.name", "tasks.path"}) == {"dataset", "settings"}


def test_the_recipes_own_name_drops_what_it_inherits():
    assert dropped(TASKS, {"tasks.name", "tasks.path"}, set()) == {"dataset", "settings"}


def test_keys_that_the_chooser_itself_or_a_stronger_layer_set_stay():
    assert dropped(TASKS, {"tasks.name", "tasks.dataset"}, {"tasks.settings"}) == set()
    overrides = {"tasks.name", "tasks.dataset"}
    assert dropped(TASKS, {"tasks.settings"}, overrides) == {"settings"}


def test_nothing_is_dropped_where_the_name_was_inherited_too():
    assert dropped(TASKS, set(), set()) == set()


def test_auto_counts_as_a_file():
    tasks = {**TASKS, "name": "auto"}
    assert dropped(tasks, set(), {"tasks.name"}) == {"dataset", "settings"}


def test_sections_inside_sections_are_reached():
    plain: dict[str, object] = {"eval": {"tasks": {"name": "jsonl", "path": "x", "dataset": "d"}}}
    layers = Layers(own=frozenset(), overrides=frozenset({"eval.tasks.name"}))
    drop_replaced(TrainConfig, plain, layers)
    assert plain == {"eval": {"tasks": {"name": "jsonl", "path": "x"}}}


def test_an_entry_of_an_open_mapping_without_effect_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"tasks\.settings"):
        load_train("finetune", ["tasks.name=jsonl", "tasks.settings.min_word_len=3"])
