"""SavedModel: from image files or pixels to detections, for TensorFlow and TensorFlow Serving.

Preprocessing consists of operations of TensorFlow; detector and post-processing are one program of
StableHLO in an `XlaCallModule` operation, and the weights are variables. Everything is written
without TensorFlow. The file has a graph with signatures, for sessions, servers and converters, and
objects with a function, by which `tf.saved_model.load` returns something to call.
"""

import dataclasses
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import export

from stillbox.checkpoints.tf1 import Tf1Checkpoint
from stillbox.checkpoints.tf2 import Tf2Checkpoint, write_tf2_checkpoint
from stillbox.exporting.backend import Run, refusal
from stillbox.exporting.manifest import MAX_PROGRAM_BYTES, Manifest, Written
from stillbox.exporting.program import ExportProgram, Outputs, WeightArrays
from stillbox.exporting.saved_model import messages
from stillbox.exporting.saved_model.graph import Graph, Tensor
from stillbox.exporting.saved_model.messages import DType, Info, Shape
from stillbox.exporting.saved_model.objects import add_variables, object_graph
from stillbox.exporting.saved_model.pixels import NetworkInput, add_preprocessing
from stillbox.exporting.settings import ENCODED, ExportSettings
from stillbox.extras import import_extra
from stillbox.inputs.decode import decode_image
from stillbox.inputs.resize import resize_image
from stillbox.jax_internals import PassManager, ir, stablehlo
from stillbox.lowering import lowering
from stillbox.records.wire import parse_features
from stillbox.untrusted import read_untrusted

FOLDER, MODEL, VARIABLES = "saved_model", "saved_model.pb", "variables/variables"
FROZEN = "frozen_inference_graph.pb"
SIGNATURE = "serving_default"
# The tensors of "Object Detection Models on TPU", for clients of frozen graphs.
_TENSORS = {
    "num_detections": "NumDetections",
    "detection_boxes": "DetectionBoxes",
    "detection_classes": "DetectionClasses",
    "detection_scores": "DetectionScores",
    "image_info": "ImageInfo",
}
NEEDS = "2.20"
"""The least TensorFlow, by experiment: 2.19 refuses version 10 of the operation `XlaCallModule`,
whatever its content. 2.20 and 2.21 read the programs of jax 0.10.0 and 0.10.2, 2.21 reads 0.12.0's
too."""

STABLEHLO = "1.8.0"
"""A version older than the StableHLO of TensorFlow 2.20. TensorFlow 2.21 has 1.13.7; by itself jax
0.12.0 writes 1.18.0."""


def write(program: ExportProgram, folder: Path, calibration: Sequence[np.ndarray]) -> Written:
    """Writes `saved_model/` with the signature `serving_default`."""
    del calibration  # nothing is quantised
    place = model_folder(folder, program.settings)
    arrays = {path: array for group in program.weights.values() for path, array in group.items()}
    (place / VARIABLES).parent.mkdir(parents=True)
    write_tf2_checkpoint(place / VARIABLES, arrays, counted=False)
    (place / MODEL).write_bytes(_saved_model(program, arrays))
    name = MODEL if place == folder else FOLDER
    return Written(
        files={name: f"SavedModel, tag {messages.TAG}, signature {SIGNATURE}"},
        needs={"tensorflow": f">={NEEDS}"},
        known_bad=(f"tensorflow<{NEEDS}",),
        written_with={"jax": jax.__version__},
    )


def _saved_model(program: ExportProgram, arrays: Mapping[str, np.ndarray]) -> bytes:
    settings, graph = program.settings, Graph()
    value = add_input(graph, program)
    weights, saver = add_variables(graph, arrays)
    resized = add_network_input(value, program)
    exported = portable(exported_program(program))
    named = add_program(graph, program, exported, weights, resized, _TENSORS)
    outputs = {name: output.info for name, output in named.items()}
    given = Info(value.name, value.dtype, input_shape(program))
    signature = messages.signature({settings.input: given}, outputs)
    variables = {
        path: Info(path, DType.of(array.dtype), array.shape) for path, array in arrays.items()
    }
    functions = _add_functions(graph, program, exported, variables, given, outputs)
    objects = object_graph(functions, (settings.input, given), outputs, variables, SIGNATURE)
    return messages.saved_model(graph.message(), {SIGNATURE: signature}, saver, objects)


def _add_functions(
    graph: Graph,
    program: ExportProgram,
    exported: export.Exported,
    variables: Mapping[str, Info],
    given: Info,
    outputs: Mapping[str, Info],
) -> tuple[str, str]:
    """Writes the detector as a function of the input and the variables.

    Returns the names of the function and of another that calls it for the signature: a concrete
    function has arguments either by position or by name.
    """

    def body(value: Tensor, *handles: Tensor) -> list[Tensor]:
        inner = value.graph
        read = (
            inner.node("ReadVariableOp", [handle], [info.dtype], output="value", dtype=info.dtype)
            for handle, info in zip(handles, variables.values(), strict=True)
        )
        weights = dict(zip(variables, (tensors[0] for tensors in read), strict=True))
        resized = add_network_input(value, program)
        named = add_program(inner, program, exported, weights, resized, {})
        return [named[name].source for name in sorted(outputs)]

    types = [given.dtype, *[DType.RESOURCE] * len(variables)]
    detect = graph.function("__inference_detect", types, body)

    def call(*arguments: Tensor) -> list[Tensor]:
        results = list(detect.results)
        return arguments[0].graph.node(
            *("StatefulPartitionedCall", arguments, results), f=detect.name, Tin=types, Tout=results
        )

    return detect.name, graph.function("__inference_signature", types, call).name


def add_input(graph: Graph, program: ExportProgram) -> Tensor:
    """Writes the node of the input, under its name."""
    settings = program.settings
    encoded = settings.input_type in ENCODED
    dtype = DType.STRING if encoded else DType.of(np.dtype(settings.input_dtype))
    shape = input_shape(program)
    return graph.node("Placeholder", [], [dtype], name=settings.input, dtype=dtype, shape=shape)[0]


def add_network_input(value: Tensor, program: ExportProgram) -> NetworkInput:
    """Writes the nodes from the value of the input to the network input."""
    input_type, resizer = program.settings.input_type, program.description.resizer
    return add_preprocessing(value, input_type, resizer, program.image_kind)


def input_shape(program: ExportProgram) -> Shape:
    """Returns the shape of the input."""
    batch = program.settings.batch_size or None
    if program.settings.input_type in ENCODED:
        return (batch,)
    height, width = program.image_size or (None, None)
    return batch, height, width, program.image_kind.channels


class Output(NamedTuple):
    """An output of the program."""

    source: Tensor
    info: Info


def add_program(
    graph: Graph,
    program: ExportProgram,
    exported: export.Exported,
    weights: Mapping[str, Tensor],
    resized: NetworkInput,
    names: Mapping[str, str],
) -> dict[str, Output]:
    """Writes the program, a `portable` `exported_program`; returns its outputs by name.

    `names` are the names of nodes, for outputs that are named otherwise.
    """
    held = {
        kind: {path: weights[path] for path in paths} for kind, paths in program.weights.items()
    }
    # In the order of the program's arguments; it drops unused ones.
    arguments = jax.tree.leaves((held, *resized))
    inputs = [arguments[index] for index in exported.module_kept_var_idx]
    results = call_program(graph, exported, inputs)
    outputs = {}
    for name, index in jax.tree.unflatten(exported.out_tree, range(len(results))).items():
        source, shape = results[index]
        tensor = graph.op("Identity", source, name=names.get(name, name))
        outputs[name] = Output(tensor, Info(tensor.name, tensor.dtype, shape))
    return outputs


def call_program(
    graph: Graph, exported: export.Exported, inputs: Sequence[Tensor]
) -> list[tuple[Tensor, Shape]]:
    """Writes the node that runs a `portable` program; returns its results with their shapes."""
    types = [DType.of(aval.dtype) for aval in exported.out_avals]
    # An expression is the length of a free axis.
    shapes = [
        tuple(size if isinstance(size, int) else None for size in aval.shape)
        for aval in exported.out_avals
    ]
    results = graph.node(
        *("XlaCallModule", inputs, types),
        version=exported.calling_convention_version,
        module=exported.mlir_module_serialized,
        platforms=[name.upper() for name in exported.platforms],
        Tin=[tensor.dtype for tensor in inputs],
        Tout=types,
        Sout=shapes,
    )
    return list(zip(results, shapes, strict=True))


def portable(exported: export.Exported) -> export.Exported:
    """Returns a program with its StableHLO in the form of a version that TensorFlow reads.

    JAX writes the form of a few weeks before its release, TensorFlow reads the form of its own.
    """
    stablehlo.register_stablehlo_passes()
    with ir.Context() as context:
        stablehlo.register_dialect(context)
        module = stablehlo.deserialize_portable_artifact(context, exported.mlir_module_serialized)
        # Older versions have no composites with regions, such as `cumsum` of jax 0.12.
        passes = "builtin.module(func.func(stablehlo-legalize-composite-to-call))"
        PassManager.parse(passes).run(module.operation)
        content = bytes(stablehlo.serialize_portable_artifact(module, STABLEHLO))
    return dataclasses.replace(exported, mlir_module_serialized=content)


def exported_program(program: ExportProgram) -> export.Exported:
    """Returns the program from weights and network input to the outputs."""
    batch = program.settings.batch_size
    (rows,) = export.symbolic_shape(str(batch or "b"), constraints=[] if batch else ["b >= 1"])
    images = jax.ShapeDtypeStruct((rows, *program.input_shape), jnp.float32)
    pair = jax.ShapeDtypeStruct((rows, 2), jnp.int32)

    # A new function, because JAX would reuse the program of another lowering.
    def detect(weights: WeightArrays, *inputs: jax.Array) -> Outputs:
        return program.outputs(weights, *inputs)

    with lowering(top_k="sort"):
        exporting = export.export(jax.jit(detect), platforms=program.settings.platforms)
        return exporting(program.weights, images, pair, pair)


def load(folder: Path, manifest: Manifest) -> Run:
    """Loads the signature into this process.

    Raises:
        UserError: TensorFlow is not installed, or refuses the program.
    """
    tf = import_extra("tensorflow", "tf")
    place = model_folder(folder, manifest.settings)
    fix = f"install tensorflow{manifest.needs.get('tensorflow', '')}, or export again"
    errors = OSError, ValueError, tf.errors.OpError
    with refusal(f"TensorFlow {tf.__version__}", place, fix, *errors):
        loaded = tf.saved_model.load(str(place))

    def run(images: np.ndarray) -> dict[str, np.ndarray]:
        # The variables live as long as `loaded`, which this function keeps.
        outputs = loaded.signatures[SIGNATURE](
            **{manifest.settings.input: tf.convert_to_tensor(images)}
        )
        return {name: array.numpy() for name, array in outputs.items()}

    return run


def model_folder(folder: Path, settings: ExportSettings) -> Path:
    """Returns the folder of the SavedModel in an export.

    As in the originals: `exporter_main_v2.py` writes `saved_model/` in its output folder, and
    `export_saved_model.py` of tpu/models writes into the output folder itself.
    """
    return folder / FOLDER if settings.signature == "detection_api" else folder


def load_stand_in(program: ExportProgram, folder: Path) -> Run:
    """Loads program and variables of an export that was just written, without TensorFlow.

    Images are decoded and resized as in training; the nodes that do so in the graph are not run.
    """
    place = model_folder(folder, program.settings)
    content = read_untrusted(place / MODEL, most=MAX_PROGRAM_BYTES)
    graph = messages.nodes_of(messages.graph_of(content))
    return _call_program(program, graph, Tf2Checkpoint(Tf1Checkpoint(place / VARIABLES)))


def load_frozen(program: ExportProgram, folder: Path) -> Run:
    """Loads program and constants of a frozen graph that was just written."""
    nodes = messages.nodes_of(read_untrusted(folder / FROZEN, most=MAX_PROGRAM_BYTES))
    paths = [path for group in program.weights.values() for path in group]
    return _call_program(program, nodes, {path: nodes[path].array("value") for path in paths})


def _call_program(
    program: ExportProgram, nodes: Mapping[str, messages.Node], arrays: Mapping[str, np.ndarray]
) -> Run:
    (call_module,) = (node for node in nodes.values() if node.operator == "XlaCallModule")
    module = call_module.text("module")
    exported = dataclasses.replace(exported_program(program), mlir_module_serialized=module)
    weights = {
        kind: {path: arrays[path] for path in paths} for kind, paths in program.weights.items()
    }
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
    """Returns pixels `[h, w, C]`, in whole numbers where the graph rounds them."""
    if isinstance(image, bytes):
        if program.settings.input_type == "tf_example":
            image = bytes(parse_features(image)["image/encoded"][0])
        return decode_image(image, kind=program.image_kind)
    whole = program.description.resizer.method == "bilinear_antialias"
    whole &= program.image_kind.bits == 8
    return np.rint(image).astype(np.uint8) if whole else image
