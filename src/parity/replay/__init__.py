"""Computes the recorded steps of a run again and compares, number for number; see `replay.py`."""
