"""Engines by name; `engine.py` is the contract."""

from parity.registry import Registry

ENGINES = Registry("engines", {"embedded": "parity.engines.embedded.engine:EmbeddedEngine"})
