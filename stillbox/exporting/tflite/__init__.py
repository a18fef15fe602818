"""TFLite with built-in operators only, suppression included, and the metadata of MediaPipe."""
