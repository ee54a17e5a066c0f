"""Metric gates: what a test measured, held against a hard bound and its trusted history."""
