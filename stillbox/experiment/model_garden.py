"""Experiments of TensorFlow Model Garden, which the package stillbox-legacy reads."""

from stillbox.errors import UserError
from stillbox.experiment.imports import import_entry_points
from stillbox.experiment.reading import LAYERS_READERS, LayersReader
from stillbox.extras import install_legacy_command
from stillbox.textformat.yaml_tree import Node

MODEL_GARDEN = "model_garden"
"""Name of the dialect."""
_SECTIONS = {"runtime", "task", "trainer"}


def is_garden(root: Node) -> bool:
    """Returns whether YAML is an experiment of Model Garden: two of `runtime`, `task`, `trainer`.

    One of them is enough if there is nothing else.
    """
    names = set(root.value) if isinstance(root.value, dict) else set()
    return len(names & _SECTIONS) > 1 or (bool(names) and names <= _SECTIONS)


def garden_reader(where: str) -> LayersReader:
    """Returns the reader of these experiments.

    Raises:
        UserError: stillbox-legacy is not installed; `where` is in the message.
    """
    import_entry_points("stillbox.readers")
    if MODEL_GARDEN not in LAYERS_READERS:
        problem = "this is an experiment of TensorFlow Model Garden, which stillbox-legacy reads"
        raise UserError(problem, where=where, fix=install_legacy_command())
    return LAYERS_READERS[MODEL_GARDEN]
