"""Frozen graphs: one file with the graph and the weights as constants, for clients of TF1.

Clients open it with `tf.compat.v1.GraphDef`, feed `image_tensor:0` and fetch `detection_boxes:0`,
as the original's `export_inference_graph.py` names them. The nodes are those of the SavedModel.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path

import jax
import numpy as np

from stillbox.errors import UserError
from stillbox.exporting.backend import Run, refusal
from stillbox.exporting.manifest import MAX_PROGRAM_BYTES, Manifest, Written
from stillbox.exporting.program import ExportProgram
from stillbox.exporting.saved_model.format import (
    NEEDS,
    add_input,
    add_program,
    exported_program,
    portable,
)
from stillbox.exporting.saved_model.graph import Graph, Tensor
from stillbox.exporting.saved_model.messages import Array
from stillbox.exporting.saved_model.pixels import add_preprocessing
from stillbox.extras import import_extra
from stillbox.untrusted import read_untrusted

FILE = "frozen_inference_graph.pb"
# Those that every signature has, and clients read.
_OUTPUTS = ("num_detections", "detection_boxes", "detection_classes", "detection_scores")


def write(program: ExportProgram, folder: Path, calibration: Sequence[np.ndarray]) -> Written:
    """Writes `frozen_inference_graph.pb`.

    Raises:
        UserError: its weights are more than a protocol message holds.
    """
    del calibration  # nothing is quantised
    graph = Graph()
    value = add_input(graph, program)
    arrays = {path: array for group in program.weights.values() for path, array in group.items()}
    weights = _add_constants(graph, arrays)
    resized = add_preprocessing(value, program.settings.input_type, program.description.resizer)
    exported = portable(exported_program(program))
    add_program(graph, program, exported, weights, resized, {})
    content = graph.message()
    if len(content) >= MAX_PROGRAM_BYTES:
        raise UserError(
            f"the graph has {len(content):,} bytes, and a protocol message holds fewer",
            where="--format frozen_graph",
            fix="use --format saved_model, which keeps weights in a file of their own",
        )
    (folder / FILE).write_bytes(content)
    return Written(
        files={FILE: f"GraphDef, input {value.name}"},
        needs={"tensorflow": f">={NEEDS}"},
        known_bad=(f"tensorflow<{NEEDS}",),
        written_with={"jax": jax.__version__},
    )


def _add_constants(graph: Graph, arrays: Mapping[str, np.ndarray]) -> dict[str, Tensor]:
    constants = {}
    for path, array in arrays.items():
        value = Array.of(array)
        (constants[path],) = graph.node(
            "Const", [], [value.dtype], name=path, dtype=value.dtype, value=value
        )
    return constants


def load(folder: Path, manifest: Manifest) -> Run:
    """Loads the graph into a session.

    Raises:
        UserError: TensorFlow is not installed, or refuses the graph.
    """
    tf = import_extra("tensorflow", "tf")
    fix = f"install tensorflow{manifest.needs.get('tensorflow', '')}, or export again"
    content = read_untrusted(folder / FILE, most=MAX_PROGRAM_BYTES)
    graph = tf.Graph()
    errors = OSError, ValueError, tf.errors.OpError, tf.compat.v1.errors.OpError
    with refusal(f"TensorFlow {tf.__version__}", folder / FILE, fix, *errors), graph.as_default():
        definition = tf.compat.v1.GraphDef()
        definition.ParseFromString(content)
        tf.import_graph_def(definition, name="")
    session = tf.compat.v1.Session(graph=graph)

    def run(images: np.ndarray) -> dict[str, np.ndarray]:
        fed = {f"{manifest.settings.input}:0": images}
        fetched: dict[str, np.ndarray] = session.run({n: f"{n}:0" for n in _OUTPUTS}, feed_dict=fed)
        return fetched

    return run
