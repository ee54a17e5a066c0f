"""Policy losses by name; `loss.py` is the contract."""

from parity.registry import Registry

LOSSES = Registry("losses", {"ppo_clip": "parity.algorithms.losses.ppo_clip:ppo_clip"})
