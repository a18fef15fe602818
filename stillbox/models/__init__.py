"""Backbones, necks and heads, and the detector that they make."""
