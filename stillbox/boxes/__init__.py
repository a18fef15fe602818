"""Pure functions on arrays for anchor-based detection; they import `jax_internals` and no more."""
