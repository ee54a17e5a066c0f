"""Recipes: packaged YAML files, one per way to start; found by `config/recipes.py`."""
