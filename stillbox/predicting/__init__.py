"""Prediction: from images of any kind to detections that a person can use."""
