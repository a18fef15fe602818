"""TFLite models of 8 bits, by the ai-edge-quantizer or with ranges of a trained quantisation.

For the latter the quantiser takes kernels that hold the levels of training, with batch norm
folded in, and a range for the result of each operation; nothing has to be measured on images.
"""

import dataclasses
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Literal

import jax
import jax.numpy as jnp
import numpy as np

from stillbox.checkpoints.trained import TrainedModel
from stillbox.devices.process import own_processors
from stillbox.errors import UserError
from stillbox.exporting.program import ExportProgram
from stillbox.exporting.tflite.conversion import INPUT, SIGNATURE
from stillbox.extras import import_extra
from stillbox.models.heads import SharedLayer, WeightSharedPredictor
from stillbox.models.layers import ConvLayer, NormLayer, SeparableConv2d
from stillbox.models.layers.quantization import RANGE_ENDS, Roundings
from stillbox.models.paths import named_modules
from stillbox.models.variables import bind_detector, split_detector
from stillbox.references import Parameter

if TYPE_CHECKING:
    from ai_edge_litert import schema_py_generated as flat
    from ai_edge_quantizer import quantizer

_TRUNK, _HEAD, _ANY = ".*/(backbone|neck)/.*", ".*/head/.*", ".*"
_OPERATIONS = ("CONV_2D", "DEPTHWISE_CONV_2D", "ADD", "MAX_POOL_2D", "RELU", "PAD")
_OTHERS = (
    *("RESHAPE", "CONCATENATION", "LOGISTIC", "MUL", "SUB", "MEAN", "SLICE", "STRIDED_SLICE"),
    *("RESIZE_NEAREST_NEIGHBOR", "TRANSPOSE", "MAXIMUM", "AVERAGE_POOL_2D", "HARD_SWISH"),
)
"""The other operations of the networks."""
_CHANNEL_AXES = {"CONV_2D": 0, "DEPTHWISE_CONV_2D": 3}
# One less than the 31 of a magnitude.
_BIAS_BITS, _TINY = 30, 1e-6
_SCOPES: dict[str, tuple[str, ...]] = {
    "trunk": (_TRUNK,),
    "network": (_TRUNK, _HEAD),
    "model": (_ANY,),
}
Part = Literal["trunk", "network", "model"]
"""What is computed with integers: backbone and neck; the head's convolutions too; or every
operation, results included."""
BITS = 8
"""Width of the integers."""


def quantize(
    content: bytes,
    images: Sequence[np.ndarray],
    ranges: Mapping[str, tuple[float, float]] | None = None,
    *,
    part: Part = "trunk",
) -> bytes:
    """Quantises the network, weights channel by channel.

    Backbone and neck compute with integers, in the measured ranges. The head has integer weights
    and float32 results, unless `part` says otherwise. Decoding and suppression stay float32.

    Args:
        images: inputs of the model, each with the batch axis, to measure activations on.
        ranges: known ranges by tensor, which replace measured ones.
        part: what computes with integers.

    Raises:
        UserError: the quantiser is not installed, or there are no images.
    """
    import_extra("ai_edge_quantizer", "tflite")
    from ai_edge_quantizer import calibrator

    if not images:
        fix = f"give some tens of typical images with {Parameter('images')}"
        raise UserError(
            "int8 needs images to measure activations on", where=Parameter("quantize"), fix=fix
        )
    samples = [{INPUT: image} for image in images]
    with warnings.catch_warnings():
        # LiteRT warns that measuring keeps every tensor.
        warnings.filterwarnings("ignore", "(?s).*experimental_preserve_all_tensors")
        measured = _quantizer(content, part).calibrate(
            {SIGNATURE: samples},
            num_threads=own_processors(),
            mode=calibrator.CalibrationMode.CALIBRATION_PROFILER_BASED,
        )
        for name, (low, high) in (ranges or {}).items():
            measured[name] = {"min": np.array([low]), "max": np.array([high])}
        work = _quantizer(_with_room_for_biases(content, measured), part)
        return bytes(work.quantize(measured, enable_progress_report=False).quantized_model)


def shrink(content: bytes, kind: Literal["float16", "dynamic"]) -> bytes:
    """Stores the kernels of a float32 model smaller; nothing is measured on images.

    Args:
        kind: `float16`: half floats, which the runtime converts to floats; `dynamic`: 8 bit
            integers, channel by channel, with which it multiplies activations that it rounds for
            each image.

    Raises:
        UserError: the quantiser is not installed.
    """
    import_extra("ai_edge_quantizer", "tflite")
    from ai_edge_quantizer import algorithm_manager, qtyping, quantizer

    work = quantizer.Quantizer(bytearray(content))
    for name in map(qtyping.TFLOperationName, _CHANNEL_AXES):
        if kind == "float16":
            cast = algorithm_manager.AlgorithmName.FLOAT_CASTING
            work.add_weight_only_config(_ANY, name, num_bits=16, algorithm_key=cast)
        else:
            work.add_dynamic_config(_ANY, name, num_bits=BITS)
    return bytes(work.quantize(enable_progress_report=False).quantized_model)


def _quantizer(content: bytes, part: Part) -> "quantizer.Quantizer":
    from ai_edge_quantizer import qtyping, quantizer

    work = quantizer.Quantizer(bytearray(content))
    names = _OPERATIONS + (_OTHERS if part == "model" else ())
    for name in map(qtyping.TFLOperationName, names):
        for scope in _SCOPES[part]:
            work.add_static_config(scope, name, activation_num_bits=BITS, weight_num_bits=BITS)
    if part == "trunk":
        work.add_dynamic_config(_HEAD, qtyping.TFLOperationName.CONV_2D, num_bits=BITS)
    return work


def _with_room_for_biases(
    content: bytes, measured: Mapping[str, Mapping[str, np.ndarray]]
) -> bytes:
    """Returns the model with one weight raised in each channel that is too small for its bias.

    A bias has 32 bits, in units of the product of the units of input and kernel. If training has
    decayed a channel to almost nothing, its unit is so small that the bias is cut off: a class
    without examples would be detected everywhere.
    """
    from ai_edge_litert.tools import flatbuffer_utils

    model = flatbuffer_utils.read_model_from_bytearray(bytearray(content))
    (graph,) = model.subgraphs
    for kind, operation in operations_of(model):
        if kind not in _CHANNEL_AXES or len(operation.inputs) < 3 or operation.inputs[2] < 0:
            continue
        source, kernel, bias = (graph.tensors[index] for index in operation.inputs)
        known = measured.get(source.name.decode())
        if known is None:
            continue
        width = np.ptp([0.0, float(np.min(known["min"])), float(np.max(known["max"]))])
        held = (
            np.frombuffer(model.buffers[tensor.buffer].data, np.float32)
            for tensor in (kernel, bias)
        )
        weights, offsets = (np.array(values) for values in held)
        rows = np.moveaxis(weights.reshape(kernel.shape), _CHANNEL_AXES[kind], 0)
        least = np.abs(offsets) * 2.0 ** (2 * BITS - 1 - _BIAS_BITS) / max(width, _TINY)
        small = np.abs(rows).max(axis=(1, 2, 3)) < least
        rows[small, 0, 0, 0] = least[small]
        model.buffers[kernel.buffer].data = np.frombuffer(weights.tobytes(), np.uint8)
    return bytes(flatbuffer_utils.convert_object_to_bytearray(model))


Range = tuple[float, float]
Ranges = Mapping[str, Range]
"""By the path of a rounding, such as `backbone.conv_0.act_quant`."""

_SITE = "_quant_"
# A share of the kernel's largest weight: a quarter of a level.
_LEAST_WEIGHT = 1e-3
_DEPTHWISE = "depthwise_act_quant"
_REPETITION = "REPETITION"
# Operations with a result that has the values of their first input.
_SAME_VALUES = {
    "PAD", "MAX_POOL_2D", "RESHAPE", "BROADCAST_TO", "TILE", "TRANSPOSE", "SLICE", "STRIDED_SLICE",
    "RESIZE_NEAREST_NEIGHBOR", _REPETITION,
}  # fmt: skip
_ROUNDED = {"CONV_2D", "DEPTHWISE_CONV_2D", "ADD"}


def float_program(program: ExportProgram) -> tuple[ExportProgram, Ranges]:
    """Returns the program without rounding, with rounded kernels, and the ranges of results.

    Kernels of several maps with a batch norm for each are not rounded: each map has its own folded
    kernel.
    """
    weights = jax.tree.map(jnp.asarray, program.weights)
    detector = bind_detector(program.detector.graph, weights["params"], weights["stats"])
    modules = [module for _, module in named_modules(detector)]
    shared = [layer for layer in modules if isinstance(layer, SharedLayer)]
    separate = {id(layer.conv) for layer in shared if layer.norms[0] is not None}
    scales = {
        id(head.box): head.scales[0][...]
        for head in modules
        if isinstance(head, WeightSharedPredictor) and head.scales is not None
    }
    for layer in modules:
        if isinstance(layer, ConvLayer) and layer.roundings is not None:
            folds = id(layer) not in separate
            _round_kernels(layer, layer.roundings, scales.get(id(layer), 1.0), folds=folds)
    _, params, stats = split_detector(detector)
    ranges = {
        path.removesuffix(".min"): (float(low), float(stats[path.removesuffix("min") + "max"]))
        for path, low in stats.items()
        if path.endswith(".min") and "weights_quant" not in path
    }
    plain = {path: array for path, array in stats.items() if not path.endswith(RANGE_ENDS)}
    return dataclasses.replace(
        program, model=_without_rounding(program.model, params, plain)
    ), ranges


def _without_rounding(
    model: TrainedModel, params: Mapping[str, jax.Array], stats: Mapping[str, jax.Array]
) -> TrainedModel:
    train = dataclasses.replace(model.experiment.train, quantization=None)
    experiment = dataclasses.replace(model.experiment, train=train)
    return dataclasses.replace(model, experiment=experiment, params=dict(params), stats=dict(stats))


def _round_kernels(
    layer: ConvLayer, roundings: Roundings, level_scale: jax.Array | float, *, folds: bool
) -> None:
    """Replaces the kernels of a layer by rounded ones, and its norm by an offset.

    Args:
        layer: in place.
        roundings: of its kernel, which is not separable.
        level_scale: factor of the kernel on the first feature map.
        folds: False: each map has its own norm, and the kernel stays.
    """
    if isinstance(layer, SeparableConv2d):
        depthwise = jnp.asarray(layer.depthwise_kernel[...])
        assert layer.depthwise_roundings is not None
        # All maps share one kernel and therefore one range.
        round_depthwise, _ = layer.depthwise_roundings.of_map(0, train=False)
        rounded = round_depthwise(depthwise)
        layer.depthwise_kernel.set_value(_without_empty_channels(rounded, is_depthwise=True))
    norm, kernel = layer.norm, jnp.asarray(layer.kernel[...])
    if isinstance(norm, NormLayer):
        scale, _ = norm.affine(norm.mean[...].shape[0])
        factor = scale * jax.lax.rsqrt(norm.var[...] + norm.config.epsilon)
        kernel = kernel * (factor[:, None] if layer.is_depthwise else factor)
        _make_offset(norm, factor)
        if layer.bias is not None:
            layer.bias.set_value(layer.bias[...] * factor)
    elif not folds:
        return
    round_kernel, _ = roundings.of_map(0, train=False)
    # Training has rounded the product with a map's own factor; its levels are proportional to it.
    rounded = round_kernel(kernel * level_scale) / level_scale
    layer.kernel.set_value(_without_empty_channels(rounded, is_depthwise=layer.is_depthwise))


def _without_empty_channels(kernel: jax.Array, *, is_depthwise: bool) -> jax.Array:
    """Gives each channel of zeros one small weight.

    The weights of a channel determine the scale of its integers. With a scale of almost 0 the
    integer of its bias would exceed 32 bits.
    """
    largest = jnp.max(jnp.abs(kernel), axis=(0, 1, 3) if is_depthwise else (0, 1, 2))
    spare = jnp.where(largest > 0, 0.0, _LEAST_WEIGHT * jnp.max(largest))
    return kernel.at[0, 0, :, 0].add(spare) if is_depthwise else kernel.at[0, 0, 0].add(spare)


def _make_offset(norm: NormLayer, factor: jax.Array) -> None:
    norm.mean.set_value(norm.mean[...] * factor)
    norm.var.set_value(jnp.full_like(norm.var[...], 1 - norm.config.epsilon))
    if norm.scale is not None:
        norm.scale.set_value(jnp.ones_like(factor))


def tensor_ranges(content: bytes, ranges: Ranges, parts: tuple[str, ...]) -> dict[str, Range]:
    """Returns the ranges of a TFLite model's tensors by their names.

    Args:
        ranges: of `float_program`.
        parts: the parts with ranges for their operations: `backbone`, `neck`, `head`.

    Raises:
        UserError: a convolution or sum of these parts has no range.
    """
    results = {_scope(path): value for path, value in ranges.items() if _DEPTHWISE not in path}
    inner = {_scope(path): value for path, value in ranges.items() if _DEPTHWISE in path}
    by_name: dict[str, Range] = {}
    for kind, source, name in _operations(content):
        if kind in _SAME_VALUES and source in by_name:
            by_name[name] = by_name[source]
        scopes = _named_scopes(name, parts)
        if kind not in _ROUNDED or not scopes:
            continue
        # Only a separable convolution has both, of a depthwise and of another operation.
        known = inner if kind == "DEPTHWISE_CONV_2D" and _fitting(scopes, inner) else results
        rounding = _fitting(scopes, known)
        if rounding is None:
            problem = f"no range of training fits the operation {name!r}"
            raise UserError(problem, where=Parameter("quantize"), fix="export it in float")
        by_name[name] = known.pop(rounding)
    return by_name


def _fitting(scopes: Sequence[str], known: Iterable[str]) -> str | None:
    """Returns the path above an operation; its own name comes before its operands' names."""
    pairs = ((scope, path) for scope in scopes for path in known)
    return next((path for scope, path in pairs if f"{scope}/".startswith(f"{path}/")), None)


def _scope(path: str) -> str:
    """Returns the scope of the operations that a rounding follows."""
    if path.rpartition(".")[2].endswith("_sum") or ".sum_" in path:
        return path.replace(".", "/")
    layer, _, name = path.rpartition(".")
    part, _, rest = layer.replace(".", "/").partition("/")
    if _SITE not in name:
        return f"{part}/{rest}"
    return f"{part}/map_{name.rpartition('_')[2]}/{rest}"


def _named_scopes(name: str, parts: tuple[str, ...]) -> list[str]:
    """Returns the paths below the parts in a tensor's name, which can join several names."""
    pieces = [piece.split("/") for piece in name.split(";")]
    return [
        "/".join(words[words.index(part) :]) for words in pieces for part in parts if part in words
    ]


def operations_of(model: "flat.ModelT") -> Iterator[tuple[str, "flat.OperatorT"]]:
    """Yields the operations with their names, in order."""
    from ai_edge_litert import schema_py_generated as flat

    kinds = {code: name for name, code in vars(flat.BuiltinOperator).items()}
    for operation in model.subgraphs[0].operators:
        code = model.operatorCodes[operation.opcodeIndex]
        yield kinds[max(code.builtinCode, code.deprecatedBuiltinCode)], operation


def _operations(content: bytes) -> Iterator[tuple[str, str, str]]:
    """Yields kind, first input and first output of each operation, in order.

    The kind of a concatenation of a tensor with itself is `_REPETITION`.
    """
    from ai_edge_litert.tools import flatbuffer_utils

    model = flatbuffer_utils.read_model_from_bytearray(bytearray(content))
    names = [tensor.name.decode() for tensor in model.subgraphs[0].tensors]
    for kind, operation in operations_of(model):
        if len(operation.inputs) and len(operation.outputs):
            if kind == "CONCATENATION" and len(set(operation.inputs)) == 1:
                kind = _REPETITION
            yield kind, names[operation.inputs[0]], names[operation.outputs[0]]
