"""What `import stillbox` shows: the verbs as functions."""
