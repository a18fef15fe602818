"""What the parts of a detector are called in weights from elsewhere, one file for each part."""
