"""Measures every runtime of a model, each in a process of its own."""
