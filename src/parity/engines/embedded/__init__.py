"""Parity's own engine; `engine.py` is what the rest of Parity sees."""
