"""From an example to a batch of fixed shape, on the host."""
