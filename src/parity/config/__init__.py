"""Configuration: the schema, recipes, overrides and everything that is checked before a run."""
