"""Host input pipeline: from an example to a batch of fixed shape."""
