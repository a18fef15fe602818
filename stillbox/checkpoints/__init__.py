"""The self-describing model directory, and weights from elsewhere."""
