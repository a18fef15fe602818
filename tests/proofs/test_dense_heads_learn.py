"""Dense detectors overfit photographs, and find blood cells sooner than RetinaNet."""

import pytest

from tests.proofs.photographs import train_and_score, write_photographs
from tests.small import SHARED, needs_shared

# Ten minutes each on two cores.
pytestmark = [pytest.mark.proof, pytest.mark.slow, needs_shared]

IMAGENET = SHARED / "weights/mobilenet_v1_1.0_imagenet_bnstat.npz"
NORM = "{decay: 0.97, epsilon: 0.001}"
# MobileNet v1 with a feature pyramid from stride 4 on, and a narrow head.
SMALL = {
    "model.pixels": "{mean: [127.5, 127.5, 127.5], std: [127.5, 127.5, 127.5]}",
    # Statistics of four images are not those of sixteen.
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
    records, steps = tmp_path / "records", 600
    records.mkdir()
    write_photographs(records)
    found = train_and_score(
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
            "warmup_learning_rate: 0.0001, warmup_steps: 20, hold_steps: 300, "
            f"total_steps: {steps}, final_learning_rate: 0.00001}}}}",
            **changes,
        },
    )
    assert found["AP"] >= 0.95
