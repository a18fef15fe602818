"""Stand-ins for detectors: modules with the parameter paths and shapes of real ones."""

import jax.numpy as jnp
import numpy as np
from flax import nnx

_BACKBONE = (64, 128, 128, 256, 256, 512, 512, 512, 512, 512, 512, 1024, 1024)
_EXTRA = (512, 256, 256, 128)
_NORM = ("scale", "bias", "mean", "var")


def ssd_mobilenet_shapes(*, classes=90, multiplier=1.0, before=0):
    """Shapes by path of an SSD MobileNet v1 with its 3, 6, 6, 6, 6, 6 anchors a cell."""

    def scaled(depth):
        return max(int(depth * multiplier), 16)

    shapes = {}

    def convolution(path, kernel, *, normalized=True, out=None):
        channels = out or kernel[-1]
        shapes[f"{path}.kernel"] = kernel
        if normalized:
            shapes.update({f"{path}.norm.{name}": (channels,) for name in _NORM})
        else:
            shapes[f"{path}.bias"] = (channels,)

    depth = scaled(32)
    convolution("backbone.conv_0", (3, 3, 3, depth))
    maps = []
    for index, wanted in enumerate(_BACKBONE, start=1):
        convolution(f"backbone.conv_{index}_depthwise", (3, 3, depth, 1), out=depth)
        convolution(f"backbone.conv_{index}_pointwise", (1, 1, depth, scaled(wanted)))
        depth = scaled(wanted)
        maps += [depth] * (index in (11, 13))
    for index, wanted in enumerate(_EXTRA, start=2):
        convolution(f"neck.extra_{index}_1x1", (1, 1, depth, scaled(wanted / 2)))
        convolution(f"neck.extra_{index}_3x3", (3, 3, scaled(wanted / 2), scaled(wanted)))
        depth = scaled(wanted)
        maps.append(depth)
    for index, depth in enumerate(maps):
        anchors = 3 if index == 0 else 6
        for layer in range(before):
            convolution(f"head.map_{index}.before_{layer}", (1, 1, depth, 64))
            depth = 64
        for name, outputs in (("box", 4), ("class_", classes + 1)):
            kernel = (1, 1, depth, anchors * outputs)
            convolution(f"head.map_{index}.{name}", kernel, normalized=False)
    return shapes


class Node(nnx.Module):
    """Holds attributes."""


def build(shapes):
    """A module with parameters and statistics at the given paths, all 7."""
    root = Node()
    for path, shape in shapes.items():
        *parents, name = path.split(".")
        node = root
        for parent in parents:
            if not hasattr(node, parent):
                setattr(node, parent, Node())
            node = getattr(node, parent)
        kind = nnx.BatchStat if name in ("mean", "var") else nnx.Param
        setattr(node, name, kind(jnp.full(shape, 7.0, jnp.float32)))
    return root


def read(detector, path):
    """The values at a path."""
    node = detector
    for name in path.split("."):
        node = getattr(node, name)
    return np.asarray(node[...])


def random_arrays(shapes, seed=0):
    """Arrays by name."""
    generator = np.random.default_rng(seed)
    return {name: generator.standard_normal(shape, np.float32) for name, shape in shapes.items()}
