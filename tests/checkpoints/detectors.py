"""Stand-ins for detectors, with the parameter paths and shapes of real ones, and their weights."""

import json
from contextlib import closing
from dataclasses import replace
from functools import cache
from unittest.mock import patch

import jax.numpy as jnp
import numpy as np
from flax import nnx

from stillbox.checkpoints.files import Checksums, read_manifest, write_manifest
from stillbox.checkpoints.importer import ImportOptions, import_weights
from stillbox.checkpoints.model_directory import ModelDirectory
from stillbox.checkpoints.names import reference_names
from stillbox.experiment import schema
from stillbox.experiment.resolve import resolve
from stillbox.experiment.yaml_config import to_yaml
from stillbox.models.backbones.resnet import ResNetBackbone
from stillbox.models.build import build_detector
from stillbox.models.parts import BuildOptions
from stillbox.models.paths import variables_of

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
    return {path: tuple(array.shape) for path, array in variables_of(module).items()}


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


def write_trained(folder, model, params, stats=None):
    """Writes a model directory with one checkpoint, of step 1."""
    experiment = to_yaml(schema.Experiment(model=model))
    created = ModelDirectory.create(folder, experiment=experiment, label_map="", versions={})
    with closing(created) as directory:
        directory.save(1, {"params": params, "stats": stats or {}}, {})
    return folder


def assert_same_arrays(held, arrays):
    """Asserts that a mapping has these names in their order, with the same bits."""
    assert list(held) == list(arrays)
    for name, array in arrays.items():
        assert (held[name].dtype, held[name].shape) == (array.dtype, array.shape), name
        assert held[name].tobytes() == array.tobytes(), name


def take(path, *, model=None, scope="classification", heads=False, least=1.0):
    """Imports a file into a stand-in of small arrays."""
    detector = build(small_shapes())
    options = ImportOptions(scope=scope, load_heads=heads, min_loaded=least)
    return detector, import_weights(detector, model or ssd(), path, options)


def reseal(folder, name="checkpoint.json", **changes):
    """Lets the manifest of a folder fit its present files, and changes fields of it."""
    content = read_manifest(folder / name, problem="", fix="") | changes
    content["checksums"] = Checksums.of_folder(folder, name).to_json()
    (folder / name).write_bytes(write_manifest(content))


def age(folder, name="checkpoint.json", **changes):
    """Makes the manifest of a folder one of a version without checksums."""
    content = json.loads((folder / name).read_text()) | changes
    for field in ("sha256", "checksums"):
        del content[field]
    (folder / name).write_text(json.dumps(content))
