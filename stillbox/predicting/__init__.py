"""Prediction: from images of any kind to detections with class names."""
