"""Reads from the text of test files where each of them runs; imports and runs none of them."""
