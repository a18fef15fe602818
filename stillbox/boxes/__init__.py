"""Pure functions on arrays for anchor-based detection; imports no other part of this package."""
