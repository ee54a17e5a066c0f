import math

import pytest

from parity.errors import ConfigError
from parity.observe.names import METRICS, TABLE, check, combine, find

PROMISED = """
train/loss train/grad_norm train/learning_rate train/ppo_kl train/clip_fraction train/entropy
train/kl_reference train/train_rollout_logprob_abs_diff train/train_rollout_kl
train/correction_weight train/correction_truncated_share train/tokens train/computed_tokens
train/padding_share train/prefix_shared_share train/skipped_steps train/step_s
rollout/raw_reward rollout/reward_std rollout/scored_share rollout/unscored_share
rollout/failed_share rollout/zero_spread_share rollout/dropped_groups
rollout/response_tokens_mean rollout/response_tokens_max rollout/prompt_tokens_mean
rollout/truncated_share rollout/lag_mean rollout/lag_max rollout/tokens_per_s
time/step_s time/generate_share time/train_share time/wait_share time/engine_idle_share
time/publish_s time/eval_s time/checkpoint_s time/tokens_per_s
buffer/issued buffer/trained buffer/dropped buffer/failed buffer/in_flight
eval/accuracy eval/accuracy_low eval/accuracy_high eval/mean_reward eval/pass_at_1
eval/pass_at_16 eval/majority_vote eval/response_tokens_mean eval/truncated_share
publish/version
""".split()


def test_every_name_stands_once_and_says_what_it_means() -> None:
    assert len(METRICS) == len(TABLE)
    assert all(metric.meaning for metric in TABLE)


def test_the_promised_names_are_declared() -> None:
    check(PROMISED)


def test_shares_are_marked_as_such() -> None:
    for metric in TABLE:
        is_named_share = metric.name.endswith("_share")
        assert not is_named_share or (metric.unit, metric.reduction) == ("share", "share")


def test_an_undeclared_name_is_refused_with_the_nearest() -> None:
    with pytest.raises(ConfigError, match=r"train/grad_nrom.*Did you mean 'train/grad_norm'"):
        check(["train/loss", "train/grad_nrom"])


def test_the_longest_family_declares_a_member() -> None:
    found = find("eval/pass_at_low_4")
    assert found is not None
    assert found.name == "eval/pass_at_low_*"
    assert find("eval/pass_at_*") is not None
    assert find("plugin/anything") is not None
    assert find("nothing/at_all") is None


def test_rows_combine_each_metric_by_its_own_reduction() -> None:
    rows = [
        {"train/loss": 1.0, "train/tokens": 10, "rollout/response_tokens_max": 5},
        {
            "train/loss": math.nan,
            "train/tokens": 20,
            "rollout/response_tokens_max": 9,
            "train/entropy": None,
        },
    ]
    assert combine(rows) == {
        "train/loss": 1.0,
        "train/tokens": 30,
        "rollout/response_tokens_max": 9,
        "train/entropy": None,
    }


def test_combining_an_undeclared_name_is_refused() -> None:
    with pytest.raises(ConfigError, match="train/los"):
        combine([{"train/los": 1.0}])
