"""The layout is a contract: what may import what, how large things grow, what names say."""

import subprocess
import sys
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path

import pytest
from architecture import hardware, rules

import parity
from parity.config import recipes
from parity.config.arithmetic import check
from parity.config.compose import load
from parity.errors import ConfigError

TREE = rules.Tree(Path(parity.__file__).parent)
HEAVY = ("torch", "transformers", "reasoning_gym", "matplotlib", "pyarrow", "numpy", "math_verify")


@pytest.mark.parametrize(
    "rule",
    [
        rules.forward_imports,
        rules.oversized,
        rules.vague_names,
        hardware.hardware_names,
        rules.environment_readers,
        rules.undeclared_metrics,
    ],
)
def test_the_package_keeps_the_rule(rule: Callable[[rules.Tree], list[str]]):
    assert len(TREE.modules) > 30
    assert not (wrong := rule(TREE)), "\n".join(wrong)


def modules_after(statement: str) -> set[str]:
    """The modules that a fresh process holds after a statement."""
    code = f"import sys\n{statement}\nprint('\\n'.join(sys.modules), file=sys.stderr)"
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True
    )
    return set(done.stderr.split())


def test_the_command_line_starts_without_anything_heavy():
    loaded = modules_after("import parity.cli.main")
    assert "parity.cli.train" in loaded
    assert not loaded & {*HEAVY, "hydra", "omegaconf", "rich", "yaml"}


def test_a_config_is_resolved_and_checked_without_anything_heavy():
    loaded = modules_after(
        "from parity.cli.main import main\nassert main(['config', 'quickstart']) == 0"
    )
    assert "hydra" in loaded
    assert not loaded & set(HEAVY)


def test_config_sections_types_and_indexes_load_nothing_heavy():
    light = [
        module.name
        for module in TREE.modules
        if module.name.endswith(".config") or module.path.name == "__init__.py"
    ]
    imports = "\n".join(f"import parity{'.' if name else ''}{name}" for name in light)
    loaded = modules_after(f"import parity.types, parity.registry, parity.config.saved\n{imports}")
    assert not loaded & set(HEAVY)


@pytest.mark.parametrize("recipe", recipes.names())
def test_every_packaged_recipe_loads_and_says_what_it_is(recipe: str):
    config = load(recipe)
    assert recipes.read(recipe).body.get("kind") in ("train", "sft")
    assert recipes.read(recipe).description
    if config.model.path is not None:
        check(config)
    elif recipe == "finetune":
        with pytest.raises(ConfigError, match=r"model\.path is missing"):
            check(config)


def test_every_name_in_an_index_has_a_module():
    from parity.algorithms.advantages import ADVANTAGES
    from parity.algorithms.losses import LOSSES
    from parity.engines import ENGINES
    from parity.observe.trackers import TRACKERS
    from parity.platforms import PLATFORMS
    from parity.rewards import REWARDS
    from parity.tasks import TASKS
    from parity.weights import TRANSPORTS

    seams = (ADVANTAGES, LOSSES, ENGINES, TRACKERS, PLATFORMS, REWARDS, TASKS, TRANSPORTS)
    for registry in seams:
        for name, target in registry._table.items():
            assert find_spec(target.partition(":")[0]), f"{registry.seam}.{name}: no {target}"
