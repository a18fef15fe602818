"""Compiling an experiment's programs for accelerators that need not be there."""
