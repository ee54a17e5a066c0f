"""Sees to it that a run never hangs: every wait is known, has a limit, and ends with one page."""
