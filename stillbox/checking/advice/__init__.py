"""Rules that `stillbox check` applies: about experiments that train badly, loss of data, and more.

They may open files and build the model, which the rules of `experiment/rules` never do.
"""

from stillbox.checking.advice import files, models, training

__all__ = ["files", "models", "training"]
