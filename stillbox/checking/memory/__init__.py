"""The memory of a run, from shapes alone: estimated, compared with a machine, refused."""
