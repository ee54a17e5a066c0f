"""Rewards by name; `reward.py` is the contract."""

from parity.registry import Registry

REWARDS = Registry(
    "rewards",
    {
        "reasoning_gym": "parity.rewards.reasoning_gym:ReasoningGymReward",
        "exact": "parity.rewards.exact:ExactReward",
        "numeric": "parity.rewards.numeric:NumericReward",
        "math": "parity.rewards.math:MathReward",
        "format": "parity.rewards.format:FormatReward",
        "python": "parity.rewards.python:PythonReward",
        "sum": "parity.rewards.sum:SumReward",
    },
)
