"""The mathematics of anchor-based detection: pure functions on arrays, nothing of this package."""
