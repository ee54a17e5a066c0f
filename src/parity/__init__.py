"""Parity: reinforcement-learning post-training that trains the same everywhere."""

__version__ = "0.1.0"
