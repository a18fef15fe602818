"""Reads TF2's object-based checkpoints, and the variables of a SavedModel, without TensorFlow."""

import numpy as np

from stillbox.checkpoints.lazy_arrays import LazyArrays
from stillbox.checkpoints.object_graph import ObjectGraph
from stillbox.checkpoints.tf1 import Tf1Checkpoint
from stillbox.errors import UserError

OBJECT_GRAPH = "_CHECKPOINTABLE_OBJECT_GRAPH"
"""Key of the graph, which TF1 checkpoints do not have."""
VARIABLE = "/.ATTRIBUTES/VARIABLE_VALUE"
"""Follows the path of a variable in its key."""


class Tf2Checkpoint(LazyArrays[str]):
    """The variables of a checkpoint by the path that is their key in it.

    Args:
        bundle: the file, which has an object graph.

    Raises:
        UserError: the graph is damaged.
    """

    def __init__(self, bundle: Tf1Checkpoint) -> None:
        self._bundle = bundle
        graph = bundle.read_text(OBJECT_GRAPH)
        try:
            self._graph = ObjectGraph(graph)
        except ValueError as error:
            what = f"the checkpoint cannot be read: {error}"
            raise UserError(what, where=bundle.prefix, fix="copy the files again") from error
        keys = (key for key in bundle if key.endswith(VARIABLE))
        super().__init__({key.removesuffix(VARIABLE): key for key in keys})

    def find(self, path: str) -> str:
        """Returns the name in this mapping of the variable that a path of objects leads to.

        The path itself if it leads to none.
        """
        key = self._graph.key(path)
        return path if key is None else key.removesuffix(VARIABLE)

    def _read(self, name: str, entry: str) -> np.ndarray:
        return self._bundle[entry]
