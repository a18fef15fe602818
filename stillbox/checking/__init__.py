"""Checks before training: configs, data, anchors, machines, accelerators."""
