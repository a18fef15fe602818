"""Reads and writes TF2's object-based checkpoints without TensorFlow.

The variables of a SavedModel are read too.
"""

from collections.abc import Mapping
from pathlib import Path

import numpy as np

from stillbox.checkpoints.lazy_arrays import LazyArrays
from stillbox.checkpoints.object_graph import ObjectGraph, serialize_object_graph
from stillbox.checkpoints.tf1 import Tf1Checkpoint
from stillbox.checkpoints.tf1_writer import write_tf1_checkpoint
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


def write_tf2_checkpoint(prefix: str | Path, arrays: Mapping[str, np.ndarray]) -> None:
    """Writes variables, replacing a checkpoint of that prefix.

    Args:
        prefix: path without `.index`, as `ckpt-1`; its folder exists.
        arrays: by path of objects, such as `model/layer/kernel`; types as in TF1 checkpoints.
    """
    # TensorFlow's own checkpoints count how often they were saved.
    counted = {**arrays, "save_counter": np.ones((), np.int64)}
    keys = {path: path + VARIABLE for path in counted}
    keyed = {keys[path]: array for path, array in counted.items()}
    write_tf1_checkpoint(prefix, keyed | {OBJECT_GRAPH: serialize_object_graph(keys)})
