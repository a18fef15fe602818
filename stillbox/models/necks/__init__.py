"""From taps to the feature maps that carry anchors, one file a kind."""
