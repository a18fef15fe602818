"""The server: a predictor behind HTTP."""
