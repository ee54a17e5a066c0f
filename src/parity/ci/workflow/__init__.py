"""Renders the workflows of a repository's lanes from its `ci.toml`, and keeps them current."""
