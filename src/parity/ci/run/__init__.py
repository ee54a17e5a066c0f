"""Runs the tests of one shard, one process tree per test file, and tells what became of each."""
