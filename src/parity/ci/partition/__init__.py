"""Spreads tests over shards by their estimated times, and checks the estimates."""
