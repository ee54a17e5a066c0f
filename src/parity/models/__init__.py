"""Models: what a path means, loading, rendering, names of weights, and tiny ones to start from."""
