"""A first experiment for a data set: records, recipe, batch and length of the run."""
