"""The typed experiment, and one reader for each dialect that people write it in."""
