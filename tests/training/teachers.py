"""A small detector with distributions, and teachers for it, which need no training."""

from pathlib import Path
from typing import Any

import numpy as np

from stillbox.checkpoints.model_directory import ModelDirectory
from stillbox.experiment.schema import Experiment
from stillbox.experiment.yaml_config import to_yaml
from stillbox.models.build import build_detector
from stillbox.models.variables import split_detector

# Beside `tests.small.SMALL`.
GFL = (
    "model.background_class=false",
    "model.postprocessing.score_converter=sigmoid",
    "model.anchors={aspect_ratios: [1], interpolated_scale_aspect_ratio: 0}",
    "model.anchors.reduce_boxes_in_lowest_layer=false",
    "model.head={kind: gfl, depth: 8, layers_before: 1, conv: {group_norm: {groups: 4}}}",
    "model.box_coder={kind: distribution, longest: 4}",
    "model.matcher={kind: atss, candidates: 4}",
    "model.loss={kind: quality}",
)


def opinionated(params: dict[str, Any], seed: int) -> dict[str, Any]:
    """Returns parameters by which distributions are uneven, and differ between anchors."""
    rng = np.random.default_rng(seed)
    return {
        path: rng.normal(scale=0.3, size=array.shape).astype(np.float32)
        if path.startswith("head.box")
        else array
        for path, array in params.items()
    }


def write_teacher(folder: Path, experiment: Experiment, *, seed: int = 7, step: int = 1) -> Path:
    """Writes a model directory with `opinionated` fresh weights.

    Args:
        folder: must not exist.
        experiment: its model is the teacher's.
        seed: of the weights.
        step: of its checkpoint.
    """
    _, params, stats = split_detector(build_detector(experiment.model, seed=seed))
    params = opinionated(params, seed)
    label_map = "".join(f'item {{ id: {number} name: "{number}" }}\n' for number in range(1, 7))
    directory = ModelDirectory.create(
        folder, experiment=to_yaml(experiment), label_map=label_map, versions={}
    )
    directory.save(step, {"params": params, "stats": stats}, {})
    directory.close()
    return folder
