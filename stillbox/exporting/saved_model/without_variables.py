"""Graphs that hold their weights: frozen graphs for clients of TF1, and TFLite's converter's input.

Clients open a frozen graph with `tf.compat.v1.GraphDef`, feed `image_tensor:0` and fetch
`detection_boxes:0`, as the original's `export_inference_graph.py` names them. Its nodes are as in
the SavedModel.

Tutorials pass what `export_tflite_graph_tf2.py` writes to
`tf.lite.TFLiteConverter.from_saved_model` and to `tflite_convert`. It takes one normalised image of
the network's size and has the outputs of TFLite's detection operator. `model.tflite` of
`stillbox export --format tflite` is the same network, converted already.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
from jax import export

from stillbox.errors import UserError
from stillbox.exporting.backend import Run, refusal
from stillbox.exporting.manifest import MAX_PROGRAM_BYTES, Manifest, Written
from stillbox.exporting.program import ExportProgram
from stillbox.exporting.saved_model import format, messages
from stillbox.exporting.saved_model.graph import Graph, Tensor
from stillbox.exporting.saved_model.messages import Array, DType, Info
from stillbox.exporting.tflite import detection_op
from stillbox.exporting.tflite.conversion import detect_function
from stillbox.extras import import_extra
from stillbox.lowering import lowering_for_tflite
from stillbox.references import Parameter
from stillbox.untrusted import read_untrusted

# Outputs of every signature, which clients read.
_OUTPUTS = ("num_detections", "detection_boxes", "detection_classes", "detection_scores")


def write(program: ExportProgram, folder: Path, calibration: Sequence[np.ndarray]) -> Written:
    """Writes `frozen_inference_graph.pb`.

    Raises:
        UserError: its weights are more than a protocol message holds.
    """
    del calibration  # nothing is quantised
    graph = Graph()
    value = format.add_input(graph, program)
    arrays = {path: array for group in program.weights.values() for path, array in group.items()}
    weights = _add_constants(graph, arrays)
    resized = format.add_network_input(value, program)
    exported = format.portable(format.exported_program(program))
    format.add_program(graph, program, exported, weights, resized, {})
    content = graph.message()
    if len(content) >= MAX_PROGRAM_BYTES:
        problem = f"the graph has {len(content):,} bytes, and a protocol message holds fewer"
        fix = f"use {Parameter('format')} saved_model, which keeps weights in a file of their own"
        raise UserError(problem, where=f"{Parameter('format')} frozen_graph", fix=fix)
    (folder / format.FROZEN).write_bytes(content)
    return Written(
        files={format.FROZEN: f"GraphDef, input {value.name}"},
        needs={"tensorflow": f">={format.NEEDS}"},
        known_bad=(f"tensorflow<{format.NEEDS}",),
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
    content = read_untrusted(folder / format.FROZEN, most=MAX_PROGRAM_BYTES)
    graph = tf.Graph()
    errors = OSError, ValueError, tf.errors.OpError, tf.compat.v1.errors.OpError
    with (
        refusal(f"TensorFlow {tf.__version__}", folder / format.FROZEN, fix, *errors),
        graph.as_default(),
    ):
        definition = tf.compat.v1.GraphDef()
        definition.ParseFromString(content)
        tf.import_graph_def(definition, name="")
    session = tf.compat.v1.Session(graph=graph)

    def run(images: np.ndarray) -> dict[str, np.ndarray]:
        fed = {f"{manifest.settings.input}:0": images}
        fetched: dict[str, np.ndarray] = session.run({n: f"{n}:0" for n in _OUTPUTS}, feed_dict=fed)
        return fetched

    return run


_INPUT = "normalized_input_image_tensor"
# Names in the signature, for boxes, classes, scores and count. From these the converter of
# TensorFlow 2.21 makes the order of the original's models of TF2: scores, boxes, count, classes.
_KEYS = ("", ":1", ":2", ":3")
# Clients recognise such a model by this word in the names of its outputs.
_NODE = "StatefulPartitionedCall"


def write_convertible(program: ExportProgram, folder: Path) -> Path:
    """Writes `saved_model/` of a program of `raw_image_tensor` into a folder; returns its place."""
    shape = 1, *program.input_shape
    with lowering_for_tflite():
        exported = export.export(jax.jit(detect_function(program)), platforms=("cpu",))(
            jax.ShapeDtypeStruct(shape, jnp.float32)
        )
    graph = Graph()
    name = program.settings.input_name or _INPUT
    image = graph.node("Placeholder", [], [DType.FLOAT], name=name, dtype=DType.FLOAT, shape=shape)[
        0
    ]
    outputs = {}
    for index, (result, size) in enumerate(
        format.call_program(graph, format.portable(exported), [image])
    ):
        tensor = graph.op("Identity", result, name=f"{_NODE}_{index}" if index else _NODE)
        key = f"{detection_op.NAME}{_KEYS[index]}"
        outputs[key] = Info(tensor.name, tensor.dtype, size)
    signature = messages.signature({name: Info(image.name, DType.FLOAT, shape)}, outputs)
    content = messages.saved_model(graph.message(), {format.SIGNATURE: signature}, None)
    place = folder / format.FOLDER
    place.mkdir()
    (place / format.MODEL).write_bytes(content)
    return place
