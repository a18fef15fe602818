"""A first experiment for somebody's data: records, recipe, batch and length of the run."""
