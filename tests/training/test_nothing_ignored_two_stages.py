"""No field of a two-stage detector is ignored: another value changes its weights or a program.

The records come from `test_nothing_ignored.py`. Nothing is compiled.
"""

import dataclasses
from functools import cache, cached_property

import jax
import numpy as np
import pytest

from stillbox.errors import UserError
from stillbox.experiment import schema
from stillbox.experiment.rules import check
from stillbox.models.build import build_detector
from stillbox.models.detector import LossInputs, detect_function
from stillbox.models.variables import bind_detector, read_statistics, split_detector
from tests.models.two_stage.small import SMALL_OVERRIDES, small_batch
from tests.training.test_nothing_ignored import (
    as_bytes,
    changed,
    folder,  # noqa: F401 - a fixture
    leaves,
    other_values,
    plain_programs,  # noqa: F401 - a fixture
    small,
    traced,
)

# A base for each choice; the fields of the choice that are not sections are then changed.
BASES = {
    "model": (),
    "model.proposals": ("model.proposals.dilation=1",),
    "model.boxes": ("model.boxes={dropout: true, dropout_keep_probability: 0.7}",),
    "model.boxes.crop": (),
    "model.boxes.crop ": ("model.boxes.crop={kind: roi_align, size: 3}",),
    "model.boxes.head": (),
    "model.boxes.head ": ("model.boxes.head={kind: resnet_v1_block}",),
    "model.boxes.head  ": (
        "model.boxes.head={kind: inception_v2_block, depth_multiplier: 0.1, min_depth: 8}",
    ),
    "model.boxes.head   ": (
        "model.boxes.head={kind: inception_resnet_v2_block, depth_multiplier: 0.1, min_depth: 8}",
    ),
    "model.backbone": (
        "model.backbone={kind: inception_v2, depth_multiplier: 0.1, min_depth: 8, "
        "last_layer: mixed_4a}",
    ),
    "model.backbone ": (
        "model.resizer={height: 136, width: 144}",
        "model.backbone={kind: resnet_v1, output_stride: 16}",
        "model.neck={min_level: 2, max_level: 2}",
    ),
}
_FULL = (
    "{regularizer: {kind: l2}, batch_norm: {}, force_bias: true, "
    "initializer: {kind: variance_scaling, uniform: false}}"
)
BASES["full"] = (
    f"model.proposals.conv={_FULL}",
    f"model.boxes.predictor={_FULL}",
    f"model.boxes.head.conv={_FULL}",
    "model.boxes.dropout=true",
)
# Other values that cannot be computed from the present ones.
OTHERS = {"model.backbone.last_layer": "mixed_4b", "model.boxes.head.widths": "[32, 16]"}
ELSEWHERE = {
    "model.boxes.head.conv.force_bias": "fully connected layers always have one",
    "model.class_slots": "what classes stand for: tests/inputs",
    # Blocks 1 to 3, which alone are built here, are strided for all strides from 16 on.
    "model.backbone.output_stride": "tests/models/backbones/test_resnet.py",
    "model.backbone.depth": "tests/models/backbones/test_resnet.py",
}


class Made:
    """The parts of the model of a run; each is made on its first use."""

    def __init__(self, model: schema.FasterRcnn) -> None:
        self.model = model

    @cached_property
    def split(self):
        return split_detector(build_detector(self.model))

    def parameters(self):
        _, params, stats = self.split
        return as_bytes((params, stats))

    def detection(self):
        graph, params, stats = self.split
        batch = self.batch
        return traced(detect_function(graph), params, stats, batch.images, batch.true_sizes)

    def loss(self):
        graph, params, stats = self.split

        def run(params, stats, batch):
            detector = bind_detector(graph, params, stats)
            output = detector.loss(LossInputs(batch, key=jax.random.key(0)))
            return output, detector.regularization(), read_statistics(detector)

        return traced(run, params, stats, self.batch)

    @property
    def batch(self):
        height, width = self.model.resizer.input_size
        images = np.zeros((2, height, width, 3), np.float32)
        return small_batch()._replace(images=images)


PARTS = ("parameters", "detection", "loss")


@cache
def base(variant, folder):  # noqa: F811
    return changed(small(), (*SMALL_OVERRIDES, *BASES[variant]), folder)


@cache
def original(variant, folder, part):  # noqa: F811
    return getattr(Made(base(variant, folder).model), part)()


def shows(variant, folder, path, text):  # noqa: F811
    try:
        experiment = changed(base(variant, folder), [f"{path}={text}"], folder)
        check(experiment, {})
    except UserError:
        return True
    other = Made(experiment.model)
    return any(getattr(other, part)() != original(variant, folder, part) for part in PARTS)


def own_fields(section, path):
    """Yields path, type and value of the fields of a section that are not sections."""
    sections = {
        field.name
        for field in dataclasses.fields(section)
        if dataclasses.is_dataclass(getattr(section, field.name))
    }
    for inner, hint, value in leaves(section, path):
        if inner.removeprefix(f"{path}.").split(".")[0] not in sections:
            yield inner, hint, value


@pytest.mark.slow
@pytest.mark.parametrize("variant", [variant for variant in BASES if variant != "full"])
def test_no_field_is_ignored(folder, variant):  # noqa: F811
    path, section = variant.strip(), base(variant, folder)
    for name in path.split("."):
        section = getattr(section, name)
    silent = [
        inner
        for inner, hint, value in own_fields(section, path)
        if inner not in ELSEWHERE
        and value is not None
        and not any(
            shows(variant, folder, inner, text)
            for text in ([OTHERS[inner]] if inner in OTHERS else other_values(inner, hint, value))
        )
    ]
    assert not silent, silent


@pytest.mark.slow
@pytest.mark.parametrize("section", ["proposals", "boxes"])
def test_no_field_of_the_sections_inside_is_ignored(folder, section):  # noqa: F811
    stage = getattr(base("full", folder).model, section)
    silent = [
        path
        for path, hint, value in leaves(stage, f"model.{section}")
        if value is not None
        and path not in ELSEWHERE
        # No layer of these is depthwise.
        and not path.endswith("regularize_depthwise")
        and not any(shows("full", folder, path, text) for text in other_values(path, hint, value))
    ]
    assert not silent, silent
