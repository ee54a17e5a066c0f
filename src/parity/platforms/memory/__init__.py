"""Memory that two parts of a run take turns on: tensors at rest, and what a process holds."""
