"""The paths of all parameters and statistics, which checkpoints depend on, stay as they are.

`paths/hashes.json` has a hash of the paths and shapes of each model. `paths/*.txt` list the paths
of a model of each family, to read and to compare. `python -m tests.models.test_paths` writes both.
"""

import hashlib
import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from flax import nnx

from stillbox.experiment import schema
from stillbox.experiment.recipes import recipe_names
from stillbox.experiment.resolve import resolve
from stillbox.experiment.variants import implementation_of
from stillbox.models.build import abstract_detector
from stillbox.models.layers.hyperparams import ShapesOnly
from stillbox.models.variables import Shapes, split_detector
from tests.helpers import build_options

FOLDER = Path(__file__).parent / "paths"
ROUNDED = (
    "efficientdet_d0_512x512",
    "efficientdet_lite0",
    "gfl_mobile",
    "ssd_mobilenet_v2_fpnlite_320x320",
    "ssdlite_mobilenet_v2_coco",
)
LISTED = (
    "recipe efficientdet_d0_512x512",
    "recipe faster_rcnn_inception_v2_coco",
    "recipe gfl_mobile",
    "recipe retinanet_nasfpn",
    "recipe spinenet-mbconv49_retinanet",
    "recipe ssd_mobilenet_v1_300x300",
    "recipe ssdlite_mobilenet_v3_large_320x320",
    "recipe tood_resnet50",
    "rounded ssd_mobilenet_v2_fpnlite_320x320",
)
BACKBONES = {f"backbone {kind}": member for kind, member in schema.Backbone.variants.items()}
BOX_HEADS = {f"box head {kind}": member for kind, member in schema.BoxHead.variants.items()}
CASES = (
    *(f"recipe {name}" for name in recipe_names()),
    *(f"rounded {name}" for name in ROUNDED),
    *(case for case, member in BACKBONES.items() if member.__module__.startswith("stillbox.")),
    *(case for case, member in BOX_HEADS.items() if member.__module__.startswith("stillbox.")),
    "neck mnasfpn",
)


def shapes_of(case: str) -> Shapes:
    """Returns the shapes of all parameters and statistics of a case by path."""
    kind, _, name = case.rpartition(" ")
    if kind in ("recipe", "rounded"):
        experiment = resolve(name).experiment
        rounds = schema.Quantization() if kind == "rounded" else experiment.train.quantization
        detector = abstract_detector(experiment.model, "float32", rounds)
        return detector.params | detector.stats
    _, params, stats = split_detector(nnx.eval_shape(lambda: build_part(case)))
    return params | stats


def build_part(case: str) -> nnx.Module:
    """Returns the default of a kind of backbone, neck or box head."""
    options = build_options(rng=ShapesOnly())
    if case in BACKBONES:
        config = BACKBONES[case]()
        taps = (config.layers[-1],)
        return implementation_of(config)(config, taps, options)
    if case in BOX_HEADS:
        config = BOX_HEADS[case]()
        return implementation_of(config)(config, 1088, 17, options)
    neck = schema.MnasFpn()
    return implementation_of(neck)(neck, (32, 96, 320), options)


def listed(shapes: Shapes) -> Iterator[str]:
    """Yields a line for each module, with the names and shapes of its arrays."""
    lines: dict[str, list[str]] = {}
    for path, shape in sorted(shapes.items()):
        module, _, name = path.rpartition(".")
        lines.setdefault(module, []).append(f"{name}{[*shape.shape]}".replace(" ", ""))
    return (" ".join((module, *arrays)) for module, arrays in lines.items())


def hash_of(shapes: Shapes) -> str:
    """Returns a hash of the list of a model."""
    return hashlib.sha256("\n".join(listed(shapes)).encode()).hexdigest()[:16]


def list_of(case: str) -> Path:
    """Returns the file of a readable list."""
    return FOLDER / f"{case.replace(' ', '_')}.txt"


@pytest.mark.parametrize("case", CASES)
def test_paths_are_those_of_checkpoints(case: str) -> None:
    shapes = shapes_of(case)
    if case in LISTED:
        assert [*listed(shapes)] == list_of(case).read_text().splitlines()
    assert hash_of(shapes) == json.loads((FOLDER / "hashes.json").read_text())[case]


def write() -> None:
    """Writes the lists."""
    hashes = {}
    for case in CASES:
        shapes = shapes_of(case)
        hashes[case] = hash_of(shapes)
        if case in LISTED:
            list_of(case).write_text("".join(f"{line}\n" for line in listed(shapes)))
    (FOLDER / "hashes.json").write_text(json.dumps(hashes, indent=1) + "\n")


if __name__ == "__main__":
    write()
