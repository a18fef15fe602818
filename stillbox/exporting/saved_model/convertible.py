"""A SavedModel for TensorFlow's converter to TFLite, as `export_tflite_graph_tf2.py` writes it.

Tutorials pass it to `tf.lite.TFLiteConverter.from_saved_model` and to `tflite_convert`. It takes
one normalised image of the network's size; its outputs are those of TFLite's detection operator.
`model.tflite` of `stillbox export --format tflite` is the same network, converted already.
"""

from pathlib import Path

import jax
import jax.numpy as jnp
from jax import export

from stillbox.exporting.program import ExportProgram
from stillbox.exporting.saved_model import messages
from stillbox.exporting.saved_model.format import FOLDER, MODEL, SIGNATURE, call_program, portable
from stillbox.exporting.saved_model.graph import Graph
from stillbox.exporting.saved_model.messages import DType, Info
from stillbox.exporting.tflite import detection_op
from stillbox.exporting.tflite.format import detect_function
from stillbox.lowering import lowering

INPUT = "normalized_input_image_tensor"
# Names in the signature, for boxes, classes, scores and count. From these the converter of
# TensorFlow 2.21 makes the order of the original's models of TF2: scores, boxes, count, classes.
_OUTPUTS = ("", ":1", ":2", ":3")
# Clients tell such a model by this word in the names of its outputs.
_NODE = "StatefulPartitionedCall"


def write_convertible(program: ExportProgram, folder: Path) -> Path:
    """Writes `saved_model/` into a folder and returns its place.

    Args:
        program: of images that are resized and normalised (`raw_image_tensor`).
        folder: an existing folder without `saved_model`.
    """
    shape = 1, *program.input_size, 3
    # No sorts and no loops: TFLite has no sort, and MediaPipe refuses loops.
    with lowering(portable=True, suppression="unrolled"):
        exported = export.export(jax.jit(detect_function(program)), platforms=("cpu",))(
            jax.ShapeDtypeStruct(shape, jnp.float32)
        )
    graph = Graph()
    name = program.settings.input_name or INPUT
    image = graph.node("Placeholder", [], [DType.FLOAT], name=name, dtype=DType.FLOAT, shape=shape)[
        0
    ]
    outputs = {}
    for index, (result, size) in enumerate(call_program(graph, portable(exported), [image])):
        tensor = graph.op("Identity", result, name=f"{_NODE}_{index}" if index else _NODE)
        key = f"{detection_op.NAME}{_OUTPUTS[index]}"
        outputs[key] = Info(tensor.name, tensor.dtype, size)
    signature = messages.signature({name: Info(image.name, DType.FLOAT, shape)}, outputs)
    content = messages.saved_model(graph.message(), {SIGNATURE: signature}, None)
    place = folder / FOLDER
    place.mkdir()
    (place / MODEL).write_bytes(content)
    return place
