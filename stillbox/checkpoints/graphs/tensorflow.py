"""Operations of TensorFlow's graphs, by the names of `tensorflow/core/ops` and of Grappler.

Source: `tensorflow/core/ops/nn_ops.cc`, `tensorflow/core/grappler/optimizers/remapper.cc`.
"""

from collections.abc import Mapping
from typing import NamedTuple

from stillbox.checkpoints.graphs.operations import Operation, OperationKind

_KINDS: Mapping[str, OperationKind] = {
    "Conv2D": "convolution",
    "_FusedConv2D": "convolution",
    "DepthwiseConv2dNative": "depthwise",
    "FusedDepthwiseConv2dNative": "depthwise",
    "_FusedDepthwiseConv2dNative": "depthwise",
    "Add": "add",
    "AddV2": "add",
    "AddN": "add",
    "BiasAdd": "add",
    "Sub": "subtract",
    "Mul": "multiply",
    "RealDiv": "divide",
    "FusedBatchNorm": "norm",
    "FusedBatchNormV2": "norm",
    "FusedBatchNormV3": "norm",
    "Sqrt": "root",
    "Rsqrt": "inverse_root",
    "Abs": "absolute",
    "Minimum": "minimum",
    "Identity": "same",
    **dict.fromkeys(("Reshape", "ExpandDims", "Squeeze", "BroadcastTo"), "reshape"),
    "Cast": "same",
    # After a convolution with dilation.
    "BatchToSpaceND": "same",
    # The ranges of training for integers are applied to the kernels themselves.
    "FakeQuantWithMinMaxVars": "same",
    "FakeQuantWithMinMaxVarsPerChannel": "same",
    "Pad": "pad",
    "PadV2": "pad",
    "Shape": "size",
    "ShapeN": "size",
    "Size": "size",
    "Rank": "size",
    "Sigmoid": "scores",
    "Softmax": "scores",
}
_NORM_EPSILON = 1e-4
"""TensorFlow's default, which need not be written."""


class Node(NamedTuple):
    """A node of a `GraphDef`."""

    name: str
    operation: str
    inputs: tuple[str, ...]
    fused: tuple[str, ...] = ()
    """Operations that are part of it, such as `BiasAdd`."""
    epsilon: float | None = None


def operation_of(node: Node) -> Operation:
    """Returns a node as an operation, whose result has the node's name."""
    # `^name` is an order without a value, `name:1` the second result.
    inputs = tuple(name.partition(":")[0] for name in node.inputs if not name.startswith("^"))
    kind = _KINDS.get(node.operation, "other")
    normed = "FusedBatchNorm" in node.fused
    others = [name for name in node.fused if name not in ("BiasAdd", "FusedBatchNorm")]
    epsilon = 0.0
    if kind == "norm" or normed:
        epsilon = node.epsilon or _NORM_EPSILON
    return Operation(node.name, kind, inputs, (node.name,), bool(others), epsilon)
