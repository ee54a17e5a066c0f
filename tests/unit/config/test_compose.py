"""Recipes compose from anywhere, in three layers, without a trace in Hydra's own state."""

from pathlib import Path

import pytest
from hydra import compose, initialize_config_dir
from hydra.core.global_hydra import GlobalHydra
from hydra.version import VersionBase

from parity.config.compose import load, load_sft, load_train
from parity.config.schema import SftConfig, TrainConfig
from parity.errors import ConfigError
from parity.tasks.config import FileConfig, ReasoningGymConfig


@pytest.fixture(autouse=True)
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("PARITY_RUNS_DIR", raising=False)
    return tmp_path


def refusal(recipe: str, *words: str, loader=load_train) -> str:
    with pytest.raises(ConfigError) as caught:
        loader(recipe, words)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_a_packaged_recipe_loads_from_any_working_directory():
    config = load_train("quickstart")
    assert config.model.path == "parity://quickstart"
    assert isinstance(config.tasks, ReasoningGymConfig)


def test_a_recipe_says_only_what_differs_from_the_one_it_names():
    first, second = load_train("quickstart"), load_train("quickstart_sync")
    assert first.rollouts.max_lag == 1.0
    assert second.rollouts.max_lag == 0.0
    assert second.rollouts.group_size == first.rollouts.group_size
    assert second.tasks == first.tasks


def test_overrides_reach_keys_that_the_recipe_does_not_mention():
    words = ["loss.clip_high=0.3", "kl.coefficient=0.1", "steps=3", "eval.samples_per_task=2"]
    config = load_train("quickstart", words)
    assert (config.loss.clip_high, config.kl.coefficient, config.steps) == (0.3, 0.1, 3)
    assert config.eval.samples_per_task == 2


def test_the_last_override_of_a_key_wins():
    assert load_train("quickstart", ["steps=3", "steps=4"]).steps == 4


def test_a_switched_section_drops_the_recipes_keys_but_not_the_users():
    config = load_train("quickstart", ["tasks.name=jsonl", "tasks.path=x.jsonl"])
    assert config.tasks == FileConfig(name="jsonl", path="x.jsonl", chat=False)
    message = refusal("quickstart", "tasks.name=jsonl", "tasks.dataset=chain_sum")
    assert "tasks.dataset='chain_sum' has no effect" in message


@pytest.mark.parametrize(
    ("path", "name"),
    [("a.jsonl", "jsonl"), ("b/a.ndjson", "jsonl"), ("A.PARQUET", "parquet"), ("a.pq", "parquet")],
)
def test_auto_tells_the_kind_of_file_by_its_suffix(path: str, name: str):
    config = load_train("finetune", [f"tasks.path={path}"])
    assert isinstance(config.tasks, FileConfig)
    assert config.tasks.name == name


def test_auto_refuses_a_suffix_that_it_does_not_know():
    message = refusal("finetune", "tasks.path=a.csv")
    assert "tasks.path is 'a.csv'" in message
    assert ".parquet" in message


def test_auto_works_for_the_evaluation_file_too():
    words = ["eval.tasks.name=auto", "eval.tasks.path=held.parquet"]
    config = load_train("finetune", [*words, "tasks.path=a.jsonl"])
    assert config.eval.tasks == FileConfig(name="parquet", path="held.parquet")


def test_each_command_sends_the_other_kind_of_recipe_to_the_right_one():
    assert refusal("sft_quickstart").endswith("is an SFT recipe; use `parity sft sft_quickstart`.")
    assert "use `parity sft" in refusal("sft_quickstart", "rollouts.max_lag=0")
    assert "use `parity train quickstart`" in refusal("quickstart", loader=load_sft)
    assert isinstance(load("sft_quickstart"), SftConfig)
    assert isinstance(load("quickstart"), TrainConfig)


def test_lists_of_sections_and_optional_sections_can_be_overridden():
    words = ["answers.1.weight=5", "tiny_model.num_layers=2"]
    config = load_sft("sft_quickstart", words)
    assert config.answers[1].weight == 5.0
    assert config.tiny_model is not None
    assert config.tiny_model.num_layers == 2
    assert "list index out of range" in refusal(
        "sft_quickstart", "answers.99.weight=5", loader=load_sft
    )


def test_ones_own_file_may_name_packaged_recipes(elsewhere: Path):
    (elsewhere / "mine.yaml").write_text(
        "defaults: [quickstart]\nsteps: 9\ntasks: {name: jsonl, path: x.jsonl}\n"
    )
    config = load_train("mine.yaml", ["seed=5"])
    assert (config.steps, config.seed) == (9, 5)
    assert config.tasks == FileConfig(path="x.jsonl", chat=False)
    assert config.optimizer == load_train("quickstart").optimizer


def test_ones_own_file_may_have_the_name_of_a_packaged_recipe(elsewhere: Path):
    (elsewhere / "quickstart.yaml").write_text("defaults: [quickstart]\nsteps: 9\n")
    assert load_train("./quickstart.yaml").steps == 9
    assert load_train("quickstart").steps != 9


def test_ones_own_file_may_name_a_file_beside_it(elsewhere: Path):
    folder = elsewhere / "it's a, folder"
    folder.mkdir()
    (folder / "first.yaml").write_text("defaults: [quickstart]\nsteps: 9\n")
    (folder / "second.yaml").write_text("defaults: [first]\nseed: 3\n")
    config = load_train(str(folder / "second.yaml"))
    assert (config.steps, config.seed) == (9, 3)


def test_a_file_without_kind_fits_the_command_that_is_asked(elsewhere: Path):
    (elsewhere / "bare.yaml").write_text("steps: 4\n")
    assert load_train("bare.yaml").steps == 4
    assert load_sft("bare.yaml").steps == 4


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("rollouts: {maxlag: 1}\n", ["rollouts.maxlag=1", "rollouts.max_lag"]),
        ("tasks: {name: jsonl, dataset: d}\n", ["tasks.dataset='d' has no effect"]),
        ("defaults: [own]\n", ["includes itself"]),
        ("defaults: [nowhere]\n", ["can't be composed", "nowhere"]),
        ("steps: [1\n", ["own.yaml:2", "isn't valid YAML"]),
        ("- steps\n", ["holds a list"]),
        ("kind: rl\n", ["kind is 'rl'", "train, sft"]),
        ("steps: ???\n", ["steps is ???"]),
        ("steps: ${nothing}\n", ["nothing"]),
        ("hydra: {run: {dir: x}}\n", ["hydra", "remove it"]),
        ("rollouts: {max_lag: .nan}\n", ["rollouts.max_lag is nan"]),
    ],
)
def test_a_broken_file_is_refused_in_one_sentence(elsewhere: Path, text: str, words: list[str]):
    (elsewhere / "own.yaml").write_text(text)
    message = refusal("own.yaml")
    for word in words:
        assert word in message


def test_a_missing_recipe_is_refused_with_the_nearest_name(elsewhere: Path):
    assert "Did you mean 'quickstart'?" in refusal("quikstart")
    assert "doesn't exist" in refusal("./gone.yaml")
    (elsewhere / "mine.yaml").write_text("steps: 1\n")
    assert "Did you mean the file ./mine.yaml?" in refusal("mine")
    (elsewhere / "old.yaml").write_bytes(b"steps: 1 # \xff\n")
    assert "isn't UTF-8" in refusal("old.yaml")


def test_the_callers_hydra_state_is_untouched(elsewhere: Path):
    (elsewhere / "theirs.yaml").write_text("x: 1\n")
    with initialize_config_dir(str(elsewhere), version_base="1.2", job_name="theirs"):
        outer = GlobalHydra.instance().hydra
        version = VersionBase.instance().getbase()
        load_train("quickstart")
        with pytest.raises(ConfigError):
            load_train("quickstart", ["model.path=${nothing}"])
        assert GlobalHydra.instance().hydra is outer
        assert VersionBase.instance().getbase() == version
        assert compose("theirs").x == 1
    assert GlobalHydra.instance().hydra is None


def test_the_runs_folder_of_the_environment_is_a_default(monkeypatch: pytest.MonkeyPatch):
    assert load_train("quickstart").output.dir == "runs"
    monkeypatch.setenv("PARITY_RUNS_DIR", "/data/runs")
    assert load_train("quickstart").output.dir == "/data/runs"
    assert load_train("quickstart", ["output.dir=here"]).output.dir == "here"
