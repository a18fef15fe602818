"""Dense detectors overfit photographs, and find blood cells as soon as RetinaNet."""

import pytest

from tests.proofs.photographs import train_and_score, write_blood_cells, write_photographs
from tests.proofs.test_learning import BACKBONES, NORM, SMALL_HEAD, optimizer
from tests.small import SHARED, needs_shared

# Ten minutes each on two cores.
pytestmark = [pytest.mark.proof, pytest.mark.slow, needs_shared]

IMAGENET = SHARED / "weights/mobilenet_v1_1.0_imagenet_bnstat.npz"
# MobileNet v1 with a feature pyramid from stride 4 on, and a narrow head.
SMALL = {
    "model.pixels": "{mean: [127.5, 127.5, 127.5], std: [127.5, 127.5, 127.5]}",
    # Four images have other statistics than sixteen.
    "model.backbone": "{kind: mobilenet_v1, conv: {activation: relu6, "
    "batch_norm: {epsilon: 0.001, train: false}}}",
    "model.neck": "{min_level: 2, max_level: 5, depth: 64}",
    "model.head": "{depth: 64, layers_before: 1}",
    "model.anchors": "{min_level: 2, max_level: 5}",
    "model.resizer": "{kind: fixed_shape, height: 256, width: 256}",
    "model.num_classes": 90,
    "model.class_slots": "label_map_id",
    "train.freeze": "[]",
    "train.batch_size": 4,
    "train.log_every": 10,
    "train.augmentations": "[]",
    "train.fine_tune": f"{{checkpoint: {IMAGENET}, scope: classification}}",
    "train.gradient_clip_norm": 10.0,
}


@pytest.mark.parametrize(
    ("recipe", "changes"),
    [
        pytest.param("gfl_resnet50", {}, id="gfl"),
        pytest.param(
            "tood_resnet50",
            {"model.loss.initial.steps": 200, "model.head.layers_before": 2},
            id="tood",
        ),
    ],
)
def test_sixteen_images_are_overfitted(tmp_path, recipe, changes):
    records, steps = tmp_path / "records", 1000
    records.mkdir()
    write_photographs(records)
    scores = train_and_score(
        recipe,
        tmp_path / "run",
        {
            **SMALL,
            "data.train.paths": records / "train.record-*",
            "data.evaluation.paths": records / "train.record-*",
            "data.train.label_map": records / "label_map.pbtxt",
            "data.evaluation.label_map": records / "label_map.pbtxt",
            "train.steps": steps,
            "train.checkpoint_every": 200,
            "train.keep_checkpoints": 1,
            "train.evaluate_every": 200,
            "train.optimizer": "{kind: adam, schedule: {kind: cosine, learning_rate: 0.001, "
            "warmup_learning_rate: 0.0001, warmup_steps: 20, hold_steps: 500, "
            f"total_steps: {steps}, final_learning_rate: 0.00001}}}}",
            **changes,
        },
    )
    assert scores["AP"] >= 0.95


# The same backbone, neck, images and schedule as RetinaNet in `test_learning.py`, with its AP of
# .539: in so few steps from random weights the head decides little.
GFL = {
    "model.background_class": "false",
    "model.anchors": "{anchor_scale: 8.0, aspect_ratios: [1.0], scales_per_octave: 1}",
    "model.box_coder.kind": "distribution",
    "model.matcher.kind": "atss",
    "model.loss.kind": "quality",
    "model.postprocessing.nms": "{iou_threshold: 0.6, max_candidates_per_class: 0}",
}
HEADS = {
    "batch_norm": f"{{kind: gfl, conv: {{group_norm: null, batch_norm: {NORM}}}}}",
    "group_norm": "{kind: gfl, conv: {group_norm: {groups: 32}}}",
}


@pytest.mark.parametrize("norm", HEADS)
def test_blood_cells_are_found_as_soon_as_by_retinanet(tmp_path, norm):
    folder, steps = tmp_path / "records", 250
    write_blood_cells(folder)
    changes = {
        "model.head": HEADS[norm],
        "model.head.depth": 96,
        "model.head.layers_before": 2,
        **BACKBONES["retinanet"],
        "model.backbone.conv.batch_norm": SMALL_HEAD["model.backbone.conv.batch_norm"],
        **GFL,
        "model.num_classes": 3,
        "data.train.paths": folder / "train.record-*",
        "data.train.label_map": folder / "label_map.pbtxt",
        "data.evaluation.paths": folder / "test.record-*",
        "data.evaluation.label_map": folder / "label_map.pbtxt",
        "model.resizer": "{height: 320, width: 320, multiple: 64, min_scale: 0.8, max_scale: 1.2}",
        "train.precision": "float32",
        "train.batch_size": 8,
        "train.steps": steps,
        "train.log_every": 10,
        "train.checkpoint_every": steps,
        "train.gradient_clip_norm": 10.0,
        "train.optimizer": optimizer(steps),
    }
    assert train_and_score("retinanet", tmp_path / "run", changes)["AP"] >= 0.5
