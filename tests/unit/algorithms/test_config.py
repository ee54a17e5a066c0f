import math

import pytest

from parity.algorithms.config import CorrectionConfig, EntropyConfig, KlConfig, PpoClipLossConfig
from parity.errors import ConfigError


@pytest.mark.parametrize(
    ("config", "values"),
    [
        (PpoClipLossConfig, {"clip_low": -0.1}),
        (PpoClipLossConfig, {"clip_low": 1.1}),
        (PpoClipLossConfig, {"clip_high": -0.1}),
        (PpoClipLossConfig, {"clip_high": math.inf}),
        (PpoClipLossConfig, {"dual_clip": 1.0}),
        (PpoClipLossConfig, {"aggregation": "mean"}),
        (PpoClipLossConfig, {"old_logprobs": "engine"}),
        (KlConfig, {"coefficient": -1.0}),
        (KlConfig, {"coefficient": math.nan}),
        (KlConfig, {"estimator": "k4"}),
        (EntropyConfig, {"coefficient": math.nan}),
        (CorrectionConfig, {"cap": 0.5}),
        (CorrectionConfig, {"level": "none"}),
    ],
    ids=str,
)
def test_a_value_out_of_range_is_refused_by_its_key(config, values):
    (key,) = values
    with pytest.raises(ConfigError, match=key):
        config(**values)


def test_defaults_and_edges_are_valid():
    for config in (PpoClipLossConfig, KlConfig, EntropyConfig, CorrectionConfig):
        config()
    PpoClipLossConfig(clip_low=0.0, clip_high=0.0, dual_clip=None)
    PpoClipLossConfig(clip_low=1.0)
    CorrectionConfig(cap=1.0)


def test_the_correction_follows_from_what_the_ratio_is_taken_to():
    auto = CorrectionConfig(cap=3.0)
    assert auto.beside("rollout") == CorrectionConfig(level="off", cap=3.0)
    assert auto.beside("trainer") == CorrectionConfig(level="token", cap=3.0)
    chosen = CorrectionConfig(level="sequence")
    assert chosen.beside("rollout") is chosen.beside("trainer") is chosen
