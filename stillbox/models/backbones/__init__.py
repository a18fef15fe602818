"""From the network input to taps of falling resolution, one file a family."""
