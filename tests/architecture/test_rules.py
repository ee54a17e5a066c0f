"""Each rule finds the fault that it is for, planted in a small tree, and nothing else there."""

from pathlib import Path

import pytest
from architecture import hardware, rules


@pytest.fixture
def plant(tmp_path: Path):
    """Writes `name -> source` into a tree that keeps every rule, and reads it."""

    def write(**files: str) -> rules.Tree:
        sound = {
            "__init__": "__version__ = '1'\n",
            "errors": "class ParityError(Exception): ...\n",
            "types": "from parity import __version__\nfrom parity.errors import ParityError\n",
            "loop": "from parity import types\nimport parity.errors\n",
        }
        for name, source in {**sound, **files}.items():
            path = tmp_path / f"{name.replace('__', '/') if name != '__init__' else name}.py"
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(source)
        return rules.Tree(tmp_path)

    return write


def test_a_sound_tree_keeps_every_rule(plant):
    tree = plant(
        platforms__cuda="import os\nimport torch\nos.environ['X']\ntorch.cuda.is_available()\n",
        config__environment="import os\nos.getenv('X')\n",
        rollouts__config="from parity.types import Task\n",
        engines__engine="from parity.rollouts.config import X\n",
        observe__names="NAMES = ['train/never_declared']\n",
        training__trainer="M = {'train/loss': 1.0, f'eval/pass_at_{8}': 0.5, 'a train/x': 2}\n",
    )
    for rule in (
        rules.forward_imports,
        rules.oversized,
        rules.vague_names,
        hardware.hardware_names,
        rules.environment_readers,
        rules.undeclared_metrics,
    ):
        assert rule(tree) == []


@pytest.mark.parametrize(
    "source",
    [
        "import parity.loop\n",
        "from parity import loop\n",
        "from parity.loop import train\n",
        "def f():\n    from parity.loop import train\n",
        "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from parity.loop import train\n",
    ],
)
def test_an_import_of_a_later_module_is_found(plant, source: str):
    (wrong,) = rules.forward_imports(plant(engines__engine=source))
    assert wrong.startswith("engines.engine:")
    assert "imports loop" in wrong


def test_a_module_of_a_seam_whose_config_comes_early_still_comes_late(plant):
    tree = plant(rollouts__buffer="", engines__engine="from parity.rollouts.buffer import B\n")
    assert len(rules.forward_imports(tree)) == 1


def test_the_early_part_of_observe_can_be_imported_and_the_late_part_cannot(plant):
    tree = plant(
        observe__names="",
        observe__curve="",
        training__early="from parity.observe import names\n",
        training__late="from parity.observe import curve\n",
    )
    (wrong,) = rules.forward_imports(tree)
    assert wrong.startswith("training.late:")


def test_a_module_without_a_place_is_found(plant):
    assert rules.forward_imports(plant(novelty="")) == ["novelty has no place in the reading order"]


def test_large_files_functions_and_folders_are_found(plant):
    body = "    x = 1\n"
    assert rules.oversized(plant(loop="x = 1\n" * 400)) == []
    assert len(rules.oversized(plant(loop="x = 1\n" * 401))) == 1
    assert rules.oversized(plant(loop="def f():\n" + body * 59)) == []
    assert len(rules.oversized(plant(loop="async def f():\n" + body * 60))) == 1
    many = {f"tools__tool_{index}": "" for index in range(16)}
    assert rules.oversized(plant(loop="", **many)) == ["tools/: 16 files, at most 15"]


@pytest.mark.parametrize("name", ["utils", "rollouts__helpers", "base__x", "model_manager", "v2"])
def test_vague_names_are_found(plant, name: str):
    assert rules.vague_names(plant(**{name: ""})) == [name.replace("__", ".")]


def test_names_that_only_contain_a_vague_word_are_fine(plant):
    assert rules.vague_names(plant(training__baseline="", engines__score="")) == []


@pytest.mark.parametrize(
    "source",
    ["import os\nos.environ['A']\n", "import os\nos.getenv('A')\n", "from os import environ\n"],
)
def test_environment_variables_elsewhere_are_found(plant, source: str):
    assert len(rules.environment_readers(plant(config__compose=source))) == 1


@pytest.mark.parametrize(
    "source", ["M = {'train/losss': 1}\n", "M = f'eval/pas_at_{k}'\n", "M = 'publish/x_*'\n"]
)
def test_metrics_that_are_not_declared_are_found(plant, source: str):
    assert len(rules.undeclared_metrics(plant(loop=source))) == 1
