"""ONNX: one file from images to detections, one that ends before suppression, and their runtimes.

The runtimes are onnxruntime and OpenVINO.
"""

import functools
import sys
import threading
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from importlib.metadata import version
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, cast

import jax
import numpy as np

from stillbox.boxes.nms import SEARCH
from stillbox.devices.process import own_processors
from stillbox.errors import UserError
from stillbox.exporting.backend import Run, refusal
from stillbox.exporting.manifest import Manifest, Written
from stillbox.exporting.onnx import frigate, raw
from stillbox.exporting.onnx.arithmetic import TYPES
from stillbox.exporting.onnx.graph import (
    BATCH,
    FLOAT,
    INT32,
    IR_VERSION,
    OPSET,
    UINT8,
    Constant,
    Graph,
    Info,
    Operand,
    Tensor,
    Value,
    identity,
)
from stillbox.exporting.onnx.network import add_program
from stillbox.exporting.onnx.pixels import Resized, add_preprocessing
from stillbox.exporting.program import ExportProgram, WeightArrays
from stillbox.exporting.settings import FRIGATE
from stillbox.extras import import_extra
from stillbox.models.jaxpr import TracedProgram, operations, trace

if TYPE_CHECKING:
    import onnx
    import openvino

FILE, RAW_FILE = "model.onnx", "model_raw.onnx"
# OpenVINO reads no such setting from the metadata of a model, in ONNX or in its own format.
_PRECISION = "INFERENCE_PRECISION_HINT"
_FLOAT32 = (
    "f32 in OpenVINO, which by default computes in bfloat16 on processors that have it: AP falls"
)
_PIXELS, _RAW_BOXES, _RAW_SCORES = "pixels", "raw_detection_boxes", "raw_detection_scores"


def write(program: ExportProgram, folder: Path, calibration: Sequence[np.ndarray]) -> Written:
    """Writes both files.

    Raises:
        UserError: onnx is not installed, or the model has an operation that ONNX cannot hold.
    """
    library = import_extra("onnx", "onnx")
    library.save(whole_model(program), folder / FILE)
    files = {FILE: "ONNX: images to detections, for onnxruntime and OpenVINO"}
    if program.settings.postprocess in FRIGATE:
        files |= frigate.write_beside(program, folder, FILE)
    if (undecided := raw_model(program)) is not None:
        library.save(undecided, folder / RAW_FILE)
        files[RAW_FILE] = (
            "ONNX: resized images to boxes and scores before suppression, for TensorRT"
        )
    if program.settings.raw:
        library.save(network_model(program), folder / raw.NETWORK)
        files[raw.NETWORK] = "ONNX: resized images to the network's own outputs, for compilers"
        files |= raw.write_beside(program, folder, calibration)
    return Written(
        files=files,
        needs={
            "onnxruntime": ">=1.16",
            "openvino": ">=2024.6",
            _PRECISION: _FLOAT32,
            "onnx": f"opset {OPSET}, IR version {IR_VERSION}",
        },
        written_with={"onnx": library.__version__},
    )


def whole_model(program: ExportProgram) -> "onnx.ModelProto":
    """Returns the model from images to the outputs of the signature."""
    settings, size, graph = program.settings, program.image_size, Graph()
    uint8 = settings.input_dtype == "uint8"
    if settings.input_type == "raw_image_tensor":
        sides = np.array(size, np.float32)
        resized = Resized(settings.input, sides, sides)
    else:
        resizer = program.description.resizer
        channels = program.image_kind.channels
        resized = add_preprocessing(
            graph, resizer, settings.input, size, uint8=uint8, channels=channels
        )
    pixels, pair = _pixels(program), jax.ShapeDtypeStruct((BATCH, 2), np.int32)
    names: list[str] = []

    layout = settings.postprocess if settings.postprocess in FRIGATE else ""

    def function(weights: WeightArrays, *arrays: jax.Array) -> tuple[jax.Array, ...]:
        named = program.outputs(weights, *arrays)
        if layout:
            named = {frigate.OUTPUT: frigate.rows_of(layout, named, program.input_size)}
        names.extend(named)  # in their order, which JAX does not keep
        return tuple(named.values())

    traced = trace(function, program.weights, pixels, pair, pair)
    sizes = [_repeated(graph, size, resized.pixels) for size in resized[1:]]
    inputs = [*_weights(program), _tensor(resized.pixels), *sizes]
    outputs = _add_outputs(graph, program, traced, inputs, names, layout)
    shape = _batch(program), *(size or ("height", "width")), program.image_kind.channels
    return graph.model(
        {settings.input: (UINT8 if uint8 else FLOAT, shape)}, outputs, program.model.name
    )


def raw_model(program: ExportProgram) -> "onnx.ModelProto | None":
    """Returns the model that ends before suppression.

    None if an earlier suppression chooses the boxes in front of the last one.
    """

    def candidates_of(
        weights: WeightArrays, images: jax.Array, sizes: jax.Array
    ) -> tuple[jax.Array, jax.Array] | None:
        _, candidates = program.detect(weights, images, sizes)
        if candidates is None:
            return None
        background = program.description.class_logits - program.description.num_classes
        return candidates.boxes, candidates.scores[..., background:]

    pair = jax.ShapeDtypeStruct((BATCH, 2), np.int32)
    traced = trace(candidates_of, program.weights, _pixels(program), pair)
    if not traced.out_avals or SEARCH.name in operations(traced.jaxpr):
        return None
    graph = Graph()
    size = Constant(np.array([program.input_size], np.int32))
    inputs = [*_weights(program), _tensor(_PIXELS), size]
    outputs = _add_outputs(graph, program, traced, inputs, (_RAW_BOXES, _RAW_SCORES))
    shape = _batch(program), *program.input_shape
    return graph.model({_PIXELS: (FLOAT, shape)}, outputs, program.model.name)


def network_model(program: ExportProgram) -> "onnx.ModelProto":
    """Returns the network alone, for `raw.DECODE`.

    Raises:
        UserError: see `raw.check_raw`.
    """
    raw.check_raw(program.description)
    traced, graph = trace(raw.network_function(program), program.weights, _pixels(program)), Graph()
    inputs = [*_weights(program), _tensor(_PIXELS)]
    outputs = _add_outputs(graph, program, traced, inputs, raw.OUTPUTS)
    shape = _batch(program), *program.input_size, 3
    return graph.model({_PIXELS: (FLOAT, shape)}, outputs, program.model.name)


def _add_outputs(
    graph: Graph,
    program: ExportProgram,
    traced: TracedProgram,
    inputs: Sequence[Value],
    names: Sequence[str],
    layout: str = "",
) -> dict[str, Info]:
    """Writes a traced program into a graph; its results become outputs of these names."""
    outputs = {}
    tensors = add_program(graph, traced, inputs)
    for name, tensor, aval in zip(names, tensors, traced.out_avals, strict=True):
        shape = (_batch(program), *aval.shape[1:])
        if layout:
            shape = frigate.shape_of(layout, aval.shape[1])
            graph.op("Reshape", tensor, np.array(shape), name=name)
        else:
            graph.op("Identity", tensor, name=name)
        outputs[name] = TYPES[aval.dtype.name], shape
    return outputs


def _pixels(program: ExportProgram) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct((BATCH, *program.input_shape), np.float32)


def _weights(program: ExportProgram) -> list[Value]:
    return [Constant(np.asarray(array)) for array in jax.tree.leaves(program.weights)]


def _tensor(pixels: str) -> Value:
    return Tensor(pixels, identity(4))


def _repeated(graph: Graph, size: Operand, pixels: str) -> Value:
    """Returns height and width `[2]` float32 as `[B, 2]` int32."""
    if not isinstance(size, str):
        return Constant(np.asarray(size, np.int32)[None])
    shape = graph.op("Concat", graph.op("Shape", pixels, end=1), np.array([2]), axis=0)
    whole = graph.op("Cast", size, to=INT32)
    return Tensor(graph.op("Expand", whole, shape), identity(2))


def _batch(program: ExportProgram) -> int | str:
    return program.settings.batch_size or "batch"


def load_onnxruntime(folder: Path, manifest: Manifest) -> Run:
    """Loads an artefact into onnxruntime.

    Raises:
        UserError: onnxruntime is not installed, or refuses the file. The result raises it for an
            input of another type or shape.
    """
    onnxruntime = import_extra("onnxruntime", "onnx")
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = own_processors()
    options.log_severity_level = 4  # errors come as exceptions
    with _refusal("onnxruntime", folder, manifest):
        session = onnxruntime.InferenceSession(
            folder / FILE, options, providers=["CPUExecutionProvider"]
        )
    names = [output.name for output in session.get_outputs()]

    def run(images: np.ndarray) -> dict[str, np.ndarray]:
        arrays = session.run(names, {manifest.settings.input: images})
        return dict(zip(names, arrays, strict=True))

    return _checked(_in_signature(run, manifest), folder)


def load_openvino(folder: Path, manifest: Manifest) -> Run:
    """Loads an artefact into OpenVINO in float32.

    Its order of detections with equal scores differs.

    Raises:
        UserError: OpenVINO is not installed, or refuses the file. The result raises it for an
            input of another type or shape.
    """
    return _load_openvino(folder, manifest, {_PRECISION: "f32"})


def load_openvino_default(folder: Path, manifest: Manifest) -> Run:
    """Loads an artefact into OpenVINO in its default precision; see `load_openvino`.

    Raises:
        UserError: see `load_openvino`.
    """
    return _load_openvino(folder, manifest, {})


def _load_openvino(folder: Path, manifest: Manifest, precision: Mapping[str, str]) -> Run:
    core = openvino_core()
    settings = {**precision, "INFERENCE_NUM_THREADS": own_processors()}
    with _refusal("openvino", folder, manifest):
        model = core.read_model(folder / FILE)
        compiled = core.compile_model(model, "CPU", settings)
    # A tensor has several names if copies were removed; its node has the output's name.
    names = [
        result.get_friendly_name().removesuffix("/sink_port_0") for result in model.get_results()
    ]
    # A request serves one thread at a time.
    thread = threading.local()

    def run(images: np.ndarray) -> dict[str, np.ndarray]:
        if not hasattr(thread, "request"):
            thread.request = compiled.create_infer_request()
        results = thread.request.infer({manifest.settings.input: images})
        arrays = [np.array(array) for array in results.values()]
        return dict(zip(names, arrays, strict=True))

    return _checked(_in_signature(run, manifest), folder)


def _in_signature(run: Run, manifest: Manifest) -> Run:
    """Returns a run with the outputs of the signature, also of a file for Frigate."""
    layout = manifest.settings.postprocess
    if layout not in FRIGATE:
        return run
    return lambda images: dict(
        frigate.outputs_of(layout, run(images)[frigate.OUTPUT], manifest.input_size)
    )


def openvino_core() -> "openvino.Core":
    """Returns the one `openvino.Core` of this process.

    The CPU plugin of each core replaces the thread's alternate signal stack, and unmaps its own
    when the core is destroyed. With two cores, of which the first is destroyed first, the thread
    keeps an unmapped stack, and the next signal ends the process with a segmentation fault.

    Raises:
        UserError: OpenVINO is not installed.
    """
    return _shared_core(import_openvino())


@functools.cache
def _shared_core(module: ModuleType) -> "openvino.Core":
    return module.Core()


def import_openvino() -> ModuleType:
    """Imports OpenVINO without its telemetry.

    The telemetry sends a report and forks this process, which JAX's threads do not survive.
    """
    name, modules = "openvino_telemetry", cast(dict[str, ModuleType | None], sys.modules)
    hide = name not in modules
    if hide:
        modules[name] = None
    try:
        module: ModuleType = import_extra("openvino", "openvino")
        return module
    finally:
        if hide:
            del modules[name]


def _refusal(runtime: str, folder: Path, manifest: Manifest) -> AbstractContextManager[None]:
    fix = f"it needs {runtime} {manifest.needs.get(runtime, '')}"
    return refusal(f"{runtime} {version(runtime)}", folder / FILE, fix, Exception)


def _checked(run: Run, folder: Path) -> Run:
    def checked_run(images: np.ndarray) -> dict[str, np.ndarray]:
        try:
            return run(images)
        except Exception as error:  # the runtimes' exceptions differ
            problem = f"the model does not take {images.dtype} {list(images.shape)}: {error}"
            fix = "export.json gives type and shape; an image must fit the resizer's canvas"
            raise UserError(problem, where=str(folder / FILE), fix=fix) from error

    return checked_run
