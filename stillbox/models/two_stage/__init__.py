"""Two-stage detectors: Faster R-CNN."""
