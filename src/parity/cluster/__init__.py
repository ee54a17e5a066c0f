"""What a batch system is given so that a run gets its Ray cluster: written here, started there."""
