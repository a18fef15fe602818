"""What other codebases call the parameters of backbones, necks and heads.

Every module of this package is imported by `checkpoints/names.py` and registers its tables.
"""
