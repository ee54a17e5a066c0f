"""Hardware CI: which test runs where, and why not; planned by a pure, tested program.

Serves any repository that has a `ci.toml` at its root; imports no torch.
"""
