"""From feature maps to box encodings and class logits, one file a kind."""
