"""Computes graph models of TensorFlow.js by their own words, for comparison with stillbox.

It knows the operations of NanoDet's graph.
"""

import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

_STORED = {"float16": "<f2", "float32": "<f4", "int32": "<i4"}


def constants_of(document: Mapping[str, Any], folder: Path) -> dict[str, np.ndarray]:
    """Returns the weights of a `model.json`."""
    constants, at = {}, 0
    (group,) = document["weightsManifest"]
    data = b"".join((folder / name).read_bytes() for name in group["paths"])
    for weight in group["weights"]:
        dtype = np.dtype(_STORED[weight.get("quantization", weight)["dtype"]])
        count = math.prod(weight["shape"])
        array = np.frombuffer(data, dtype, count, at).reshape(weight["shape"])
        at += array.nbytes
        constants[weight["name"]] = array.astype(np.float32) if dtype.kind == "f" else array
    return constants


def resized(x: jax.Array, sides: np.ndarray) -> jax.Array:
    """Resizes `[B, H, W, C]` bilinearly, with centres at half pixels."""
    for axis, new in enumerate(sides.tolist(), start=1):
        old = x.shape[axis]
        places = np.maximum((np.arange(new) + 0.5) * old / new - 0.5, 0)
        below = np.minimum(places.astype(int), old - 1)
        shape = [-1 if place == axis else 1 for place in range(4)]
        share = (places - below).astype(np.float32).reshape(shape)
        above = np.minimum(below + 1, old - 1)
        x = jnp.take(x, below, axis) * (1 - share) + jnp.take(x, above, axis) * share
    return x


class Graph:
    """A graph model, which computes its results."""

    def __init__(self, path: Path) -> None:
        document = json.loads(path.read_text())
        self.constants = constants_of(document, path.parent)
        self.nodes = {node["name"]: node for node in document["modelTopology"]["node"]}

    def run(self, image: jax.Array, *outputs: str) -> list[jax.Array]:
        """Returns the values of nodes."""
        values: dict[str, Any] = {}

        def value(name: str) -> Any:
            node, _, place = name.partition(":")
            if node in self.constants:
                return self.constants[node]
            if node not in values:
                operation = self.nodes[node]
                names = operation.get("input", [])
                # The shape of a reshaped value is computed of what is not known here.
                inputs = list(map(value, names[:1] if operation["op"] == "Reshape" else names))
                values[node] = _compute(operation, inputs) if inputs else image
            result = values[node]
            return result[int(place or 0)] if isinstance(result, list) else result

        return [value(name) for name in outputs]


def _compute(node: Mapping[str, Any], inputs: list[Any]) -> Any:
    first, *others = inputs
    attributes = node.get("attr", {})

    def numbers(name: str) -> list[int]:
        return [int(number) for number in attributes[name]["list"]["i"]]

    match node["op"]:
        case "Identity":
            return first
        case "Pad" | "PadV2":
            return jnp.pad(first, others[0], constant_values=[*map(float, others[1:]), 0.0][0])
        case "Transpose":
            return jnp.transpose(first, others[0])
        case "Conv2D":
            strides, axes = numbers("strides")[1:3], ("NHWC", "HWIO", "NHWC")
            return jax.lax.conv_general_dilated(
                first, others[0], strides, "VALID", dimension_numbers=axes
            )
        case "Add" | "AddV2":
            return first + others[0]
        case "LeakyRelu":
            return jnp.where(first > 0, first, attributes["alpha"]["f"] * first)
        case "MaxPool":
            windows = numbers("ksize"), numbers("strides")
            return jax.lax.reduce_window(first, -jnp.inf, jax.lax.max, *windows, "VALID")
        case "ConcatV2":
            return jnp.concatenate(inputs[:-1], int(inputs[-1]))
        case "ResizeBilinear":
            assert attributes["half_pixel_centers"]["b"]
            return resized(first, others[0])
        case "SplitV":
            return jnp.split(first, np.cumsum(others[0])[:-1].tolist(), int(others[1]))
        case "Sigmoid":
            return jax.nn.sigmoid(first)
        case "Reshape":
            # Two maps of a batch, and the places behind them.
            return first.reshape(*first.shape[:2], -1)
    raise NotImplementedError(node["op"])
