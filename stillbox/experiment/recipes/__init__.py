"""Recipes: complete experiments as YAML, found by name."""
