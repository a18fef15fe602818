"""One-stage detectors: SSD and RetinaNet."""
