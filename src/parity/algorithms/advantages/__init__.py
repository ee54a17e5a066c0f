"""Advantages by name; `advantage.py` is the contract."""

from parity.registry import Registry

ADVANTAGES = Registry("advantages", {"grpo": "parity.algorithms.advantages.grpo:grpo"})
