"""SavedModels and frozen graphs without TensorFlow: their program and weights, run by JAX.

Images are decoded and resized as in training. The nodes that do so in the graph are not run.
"""

import dataclasses
from collections.abc import Mapping
from pathlib import Path

import jax
import numpy as np

from stillbox.checkpoints.tf1 import Tf1Checkpoint
from stillbox.checkpoints.tf2 import Tf2Checkpoint
from stillbox.exporting.backend import Run
from stillbox.exporting.manifest import MAX_PROGRAM_BYTES
from stillbox.exporting.program import ExportProgram
from stillbox.exporting.saved_model import messages
from stillbox.exporting.saved_model.format import (
    MODEL,
    VARIABLES,
    exported_program,
    model_folder,
)
from stillbox.exporting.saved_model.frozen import FILE
from stillbox.inputs.decode import decode_image
from stillbox.inputs.resize import resize_image
from stillbox.records.wire import parse_features
from stillbox.untrusted import read_untrusted


def load(program: ExportProgram, folder: Path) -> Run:
    """Loads program and variables of an export that was just written."""
    place = model_folder(folder, program.settings)
    content = read_untrusted(place / MODEL, most=MAX_PROGRAM_BYTES)
    graph = messages.nodes_of(messages.graph_of(content))
    return _run(program, graph, Tf2Checkpoint(Tf1Checkpoint(place / VARIABLES)))


def load_frozen(program: ExportProgram, folder: Path) -> Run:
    """Loads program and constants of a frozen graph that was just written."""
    nodes = messages.nodes_of(read_untrusted(folder / FILE, most=MAX_PROGRAM_BYTES))
    paths = [path for group in program.weights.values() for path in group]
    return _run(program, nodes, {path: nodes[path].array("value") for path in paths})


def _run(
    program: ExportProgram,
    nodes: Mapping[str, messages.Node],
    arrays: Mapping[str, np.ndarray],
) -> Run:
    (call_module,) = (node for node in nodes.values() if node.operator == "XlaCallModule")
    module = call_module.text("module")
    exported = dataclasses.replace(exported_program(program), mlir_module_serialized=module)
    weights = {kind: {path: arrays[path] for path in own} for kind, own in program.weights.items()}
    call = jax.jit(exported.call)

    def run(images: np.ndarray) -> dict[str, np.ndarray]:
        outputs = call(weights, *_network_input(program, images))
        return {name: np.asarray(array) for name, array in outputs.items()}

    return run


def _network_input(program: ExportProgram, images: np.ndarray) -> tuple[np.ndarray, ...]:
    """Returns resized images, and their sizes after and before; see `ExportProgram.outputs`."""
    if program.settings.input_type == "raw_image_tensor":
        sizes = np.full((len(images), 2), program.input_size, np.int32)
        return images, sizes, sizes
    pixels = [_decoded(program, image) for image in images]
    resized = [resize_image(image, program.description.resizer) for image in pixels]
    true_sizes = np.array([size for _, size in resized], np.int32)
    sizes = np.array([image.shape[:2] for image in pixels], np.int32)
    return np.stack([image for image, _ in resized]), true_sizes, sizes


def _decoded(program: ExportProgram, image: np.ndarray | bytes) -> np.ndarray:
    """Returns pixels `[h, w, 3]`, in whole numbers where the graph rounds them."""
    if isinstance(image, bytes):
        if program.settings.input_type == "tf_example":
            image = bytes(parse_features(image)["image/encoded"][0])
        return decode_image(image)
    whole = program.description.resizer.method == "bilinear_antialias"
    return np.rint(image).astype(np.uint8) if whole else image
