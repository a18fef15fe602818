"""Two-stage detectors overfit photographs, find blood cells, and train by a config of others."""

import pytest

from stillbox.cli.main import main
from stillbox.evaluation.history import HISTORY, read_history
from tests.proofs.photographs import train_and_score, write_blood_cells, write_photographs
from tests.proofs.test_user_configs import training_annotations
from tests.small import SHARED, needs_shared

# Ten to twenty minutes each on two cores.
pytestmark = [pytest.mark.proof, pytest.mark.slow, needs_shared]

IMAGENET = SHARED / "weights/mobilenet_v1_1.0_imagenet_bnstat.npz"
CONV = (
    "{activation: relu6, regularizer: {kind: l2, weight: 4.0e-5}, "
    "initializer: {kind: truncated_normal, stddev: 0.03}, "
    "batch_norm: {decay: 0.97, epsilon: 0.001}}"
)
# MobileNet v1 with a feature pyramid; statistics of short runs must follow fast.
SMALL = {
    "model.pixels": "{mean: [127.5, 127.5, 127.5], std: [127.5, 127.5, 127.5]}",
    "model.backbone": f"{{kind: mobilenet_v1, conv: {CONV}}}",
    "model.freeze_batch_norm": "false",
    "model.proposals.depth": 64,
    "model.proposals.localization_weight": 2.0,
    "model.proposals.conv": CONV,
    "model.boxes.crop": "{kind: crop_and_resize}",
    "model.boxes.head": "{kind: fully_connected, widths: [256, 256]}",
    "model.boxes.sample_size": 128,
    "model.boxes.positive_fraction": 0.5,
    "train.precision": "float32",
    "train.log_every": 10,
    "train.fine_tune": f"{{checkpoint: {IMAGENET}, scope: classification}}",
}


def neck(min_level, max_level, depth):
    levels = f"min_level: {min_level}, max_level: {max_level}, depth: {depth}"
    return f"{{kind: fpn, {levels}, conv: {CONV}}}"


def test_sixteen_images_are_overfitted(tmp_path):
    records, steps = tmp_path / "records", 800
    records.mkdir()
    write_photographs(records)
    changes = {
        **SMALL,
        "data.train.paths": records / "train.record-*",
        "data.evaluation.paths": records / "train.record-*",
        "data.train.label_map": records / "label_map.pbtxt",
        "data.evaluation.label_map": records / "label_map.pbtxt",
        "model.resizer": "{kind: fixed_shape, height: 256, width: 256}",
        # Statistics of four images are not those of sixteen.
        "model.backbone.conv.batch_norm.train": "false",
        "model.neck": neck(2, 5, 96),
        "model.boxes.head.conv.batch_norm.decay": 0.97,
        "model.boxes.localization_weight": 4.0,
        "model.proposals.anchors": "{kind: multiscale, min_level: 2, max_level: 5, "
        "anchor_scale: 3.0}",
        "train.batch_size": 4,
        "train.steps": steps,
        # Images of few objects match few anchors.
        "model.proposals.sample_size": 64,
        "train.checkpoint_every": 200,
        "train.keep_checkpoints": 1,
        "train.evaluate_every": 200,
        "train.gradient_clip_norm": 10.0,
        "train.optimizer": "{kind: adam, schedule: {kind: cosine, learning_rate: 0.001, "
        "warmup_learning_rate: 0.0001, warmup_steps: 20, hold_steps: 330, "
        f"total_steps: {steps}, final_learning_rate: 0.00001}}}}",
        "train.augmentations": "[]",
    }
    scores = train_and_score("faster_rcnn_resnet50_v1_640x640", tmp_path / "run", changes)
    assert scores["AP"] >= 0.90


def test_blood_cells_are_found(tmp_path):
    folder, steps = tmp_path / "records", 300
    write_blood_cells(folder)
    flips = [
        f"{{kind: random_{axis}_flip, probability: 0.5}}" for axis in ("horizontal", "vertical")
    ]
    changes = {
        **SMALL,
        "data.train.paths": folder / "train.record-*",
        "data.train.label_map": folder / "label_map.pbtxt",
        "data.evaluation.paths": folder / "test.record-*",
        "data.evaluation.label_map": folder / "label_map.pbtxt",
        "model.num_classes": 3,
        "model.resizer": "{kind: fixed_shape, height: 240, width: 320}",
        "model.neck": neck(2, 4, 64),
        "model.boxes.head.conv.batch_norm.decay": 0.97,
        # Platelets, red cells, white cells.
        "model.proposals.anchors": "{kind: flexible_grid, grids: ["
        "{sizes: [17, 22], aspect_ratios: [1, 1], height_stride: 4, width_stride: 4, "
        "height_offset: 2, width_offset: 2}, "
        "{sizes: [40, 52, 66], aspect_ratios: [1, 1, 1], height_stride: 8, width_stride: 8, "
        "height_offset: 4, width_offset: 4}, "
        "{sizes: [95, 140], aspect_ratios: [1, 1], height_offset: 8, width_offset: 8}]}",
        "model.boxes.postprocessing.nms": "{score_threshold: 0.01, iou_threshold: 0.5, "
        "max_per_class: 100, max_total: 100}",
        "train.batch_size": 8,
        "train.steps": steps,
        "train.checkpoint_every": steps,
        "train.ema_decay": 0.98,
        "train.optimizer": "{kind: momentum, schedule: {kind: cosine, learning_rate: 0.03, "
        f"warmup_learning_rate: 0.005, warmup_steps: 40, total_steps: {steps}}}}}",
        "train.augmentations": "[" + ", ".join(flips) + "]",
        "evaluation.use_ema": "true",
    }
    scores = train_and_score("faster_rcnn_resnet50_v1_640x640", tmp_path / "run", changes)
    assert scores["AP50"] >= 0.80


def test_a_config_of_one_class_trains_on_its_owners_data(tmp_path):
    steps = 150
    training_annotations(tmp_path / "annotations")
    raccoon = SHARED / "data/raccoon"
    sources = ["--annotations", str(tmp_path / "annotations"), "--images", str(raccoon / "images")]
    output = ["--output", str(tmp_path / "records"), "--name", "train"]
    assert main(["data", "convert", "voc", *sources, *output]) == 0
    changes = {
        "data.train.paths": tmp_path / "records/train.record-*",
        "data.train.label_map": raccoon / "label_map.pbtxt",
        "data.evaluation.paths": raccoon / "data/test.record",
        "data.evaluation.label_map": raccoon / "label_map.pbtxt",
        # Without the checkpoint that the config starts from, frozen norms are no norms.
        "train.fine_tune.checkpoint": "",
        "model.freeze_batch_norm": "false",
        "train.batch_size": 4,
        "train.steps": steps,
        "train.log_every": 1,
    }
    words = [word for item in changes.items() for word in ("--set", "{}={}".format(*item))]
    config = str(SHARED / "configs/pipeline/faster_rcnn_inception_v2.config")
    assert main(["train", config, "--model-dir", str(tmp_path / "model"), *words]) == 0
    history = read_history(tmp_path / "model" / HISTORY)
    numbers, losses = history.series("loss")
    assert len(numbers) == steps
    assert losses[-20:].mean() < 0.7 * losses[:20].mean()
    assert history.evaluations[-1][0] == steps
