import pytest

from parity.algorithms.losses.loss import load_loss
from parity.algorithms.losses.ppo_clip import ppo_clip
from parity.errors import ConfigError


def test_losses_are_found_by_name_and_a_wrong_name_gets_the_nearest():
    assert load_loss("ppo_clip") is ppo_clip
    with pytest.raises(ConfigError, match="Did you mean 'ppo_clip'"):
        load_loss("ppo_clipp")
