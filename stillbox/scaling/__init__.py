"""Training, prediction and serving on several machines, by Ray."""
