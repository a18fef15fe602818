"""stillbox: anchor-based object detectors as fixed-shape XLA programs."""

__version__ = "0.1.0"
