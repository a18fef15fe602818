"""The mesh that a batch is spread over."""
