"""Paths and shapes of SSD ResNet-34, and small files of weights for it."""

from dataclasses import replace
from functools import cache
from unittest.mock import patch

import jax.numpy as jnp
import numpy as np
from flax import nnx

from stillbox.checkpoints.importer import import_weights
from stillbox.checkpoints.names import reference_names
from stillbox.experiment import schema
from stillbox.experiment.resolve import resolve
from stillbox.models.backbones.resnet import ResNetBackbone
from stillbox.models.build import build_detector
from stillbox.models.parts import BuildOptions
from tests.checkpoints.detectors import build, random_arrays


@cache
def ssd():
    """The description of SSD ResNet-34."""
    return resolve("ssd_resnet34").experiment.model


def with_backbone(**fields):
    """The same with another backbone."""
    return replace(ssd(), backbone=replace(ssd().backbone, **fields))


class Holder(nnx.Module):
    """A module that has only the backbone of a detector."""

    def __init__(self, config, tap):
        rng = np.random.default_rng(1)
        options = BuildOptions(dtype=jnp.float32, freeze_norm=False, rng=rng)
        self.backbone = ResNetBackbone(config, (tap,), options)


def shapes_of(module):
    """Shape of every array by path."""
    state = nnx.to_flat_state(nnx.state(module))
    return {".".join(map(str, path)): tuple(array.shape) for path, array in state}


def _without_numbers(make):
    """Shapes of what would be built; nothing is drawn, which takes seconds."""
    zeros = patch("stillbox.models.layers.conv.draw_kernel", lambda _, shape, __: jnp.zeros(shape))
    with zeros:
        return shapes_of(nnx.eval_shape(make))


@cache
def shapes():
    """All arrays of SSD ResNet-34."""
    return _without_numbers(lambda: build_detector(ssd()))


def backbone_shapes(depth, **fields):
    """All arrays of a complete ResNet."""
    config = schema.ResNet(depth=depth, last_layer="group_4", **fields)
    return _without_numbers(lambda: Holder(config, "group_4"))


def small_shapes():
    """The same arrays with few numbers; all axes of a kernel are different."""
    return {path: (2, 3, 4, 5) if path.endswith("kernel") else (5,) for path in shapes()}


def named(model, shapes, **options):
    """Names in TensorFlow by path."""
    return reference_names(model, {p: np.empty(s) for p, s in shapes.items()}, **options)


def tf1_arrays(scope="detection"):
    """Random small arrays under TensorFlow's names."""
    names = named(ssd(), shapes(), scope=scope)
    return random_arrays({name: small_shapes()[path] for path, name in names.items()})


def torch_arrays():
    """The same under torchvision's names; its last group has one block only."""
    arrays = {}

    def convolution(conv, norm):
        arrays[f"{conv}.weight"] = (5, 4, 2, 3)  # [out, in, rows, columns]
        for name in ("weight", "bias", "running_mean", "running_var"):
            arrays[f"{norm}.{name}"] = (5,)

    convolution("conv1", "bn1")
    for group, blocks in ((1, 3), (2, 4), (3, 6), (4, 1)):
        for block in range(blocks):
            scope = f"layer{group}.{block}"
            convolution(f"{scope}.conv1", f"{scope}.bn1")
            convolution(f"{scope}.conv2", f"{scope}.bn2")
            if block == 0 and group > 1:
                convolution(f"{scope}.downsample.0", f"{scope}.downsample.1")
    counters = ("bn1.num_batches_tracked", "layer1.0.bn1.num_batches_tracked")
    return random_arrays(arrays | {"fc.weight": (10, 5), "fc.bias": (10,)}) | dict.fromkeys(
        counters, np.array(7)
    )


def take(path, *, model=None, scope="classification", heads=False, least=1.0):
    """Imports a file into a stand-in of small arrays."""
    detector = build(small_shapes())
    report = import_weights(
        detector, model or ssd(), path, scope=scope, load_heads=heads, min_loaded=least
    )
    return detector, report
