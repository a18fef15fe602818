"""Training, prediction, serving and conversion on several machines, by Ray."""
