"""What each part of a detector is called in TF1 checkpoints: one file of rules for each part."""
