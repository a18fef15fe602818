"""Rules about two-stage models, and rules of all models in them."""

import pytest

from stillbox.errors import UserError
from stillbox.experiment.overrides import apply_overrides
from stillbox.experiment.rules import check, check_trainable, find_missing, seldom_meant
from stillbox.experiment.schema import Experiment, FasterRcnn

SIDES = "model.resizer={kind: fixed_shape, height: %d, width: %d}"


def experiment_of(*overrides):
    sound = Experiment(model=FasterRcnn())
    return apply_overrides(sound, overrides, {})


@pytest.mark.parametrize(
    ("overrides", "where", "what", "fix"),
    [
        (
            ["model.boxes.crop={size: 4, pool_size: 5}"],
            "model.boxes.crop.pool_size",
            "pool_size 5 is more than the crop's 4 rows and columns",
            "at most 4",
        ),
        (
            ["devices.spatial_partitions=2"],
            "devices.spatial_partitions",
            "crops are taken from whole feature maps",
            "--set devices.spatial_partitions=1",
        ),
        (
            [SIDES % (32, 64)],
            "model.resizer.height",
            "an image side of 32 pixels is too small for resnet_v1",
            "at least 33",
        ),
        (["model.pixels.mean=[1, 2]"], "model.pixels.mean", "has 2 numbers", "R, G, B"),
        (
            ["model.backbone.last_layer=block_5"],
            "model.backbone.last_layer",
            "resnet_v1 has no layer 'block_5'",
            "did you mean 'block_4'",
        ),
        (
            ["model.backbone.output_stride=8"],
            "model.neck.min_level",
            "min_level 4: the backbone has the levels 2 to 3",
            "give one from 2 to 3",
        ),
        (
            ["model.neck={min_level: 3, max_level: 4}"],
            "model.proposals.anchors",
            "anchors for 1 feature maps, but the neck makes 2",
            "describe anchors for 2 maps",
        ),
        (
            [
                "model.neck={kind: fpn, min_level: 2, max_level: 6}",
                SIDES % (320, 320),
                "model.proposals.anchors={kind: multiscale, min_level: 3, max_level: 6}",
            ],
            "model.proposals.anchors.min_level",
            "anchors of min_level 3 for a pyramid of min_level 2",
            "set it to 2",
        ),
        (
            [
                "model.neck={kind: fpn, min_level: 2, max_level: 6}",
                "model.proposals.anchors={kind: multiscale, min_level: 2, max_level: 6}",
            ],
            "model.resizer.height",
            "300 pixels does not fit a feature pyramid that hands down a map of stride 32",
            "288 and 320",
        ),
        (
            [
                "model.backbone={kind: resnet, space_to_depth_stem: true}",
                SIDES % (301, 320),
            ],
            "model.resizer.height",
            "space_to_depth_stem requires an even image side, not 301",
            "such as 302",
        ),
        (
            ["model.proposals.matcher.matched_threshold=1.5"],
            "model.proposals.matcher.matched_threshold",
            "matched_threshold is 1.5, but overlaps lie in 0..1",
            "at most 1",
        ),
        (
            ["model.boxes.classification=sigmoid_focal", "model.boxes.hard_example_miner={}"],
            "model.boxes.hard_example_miner",
            "hard_example_miner together with a focal loss",
            "take the miner out",
        ),
        # Slot 0 is the background, and 90 the last class.
        (
            [
                "model.boxes.postprocessing.calibration="
                "{kind: class_sigmoids, sigmoids: [{slot: 90}, {slot: 91}]}"
            ],
            "model.boxes.postprocessing.calibration.sigmoids.1.slot",
            "there is no class slot 91",
            "they are 0 to 90",
        ),
    ],
)
def test_a_contradiction_is_refused_with_its_place_and_a_remedy(overrides, where, what, fix):
    with pytest.raises(UserError) as caught:
        check(experiment_of(*overrides), {})
    assert caught.value.where == where
    assert what in caught.value.what
    assert fix in caught.value.fix
    assert "pad_to_multiple" not in caught.value.fix


def test_the_defaults_are_sound():
    check(experiment_of(), {})
    check(experiment_of("model.boxes=null"), {})


def test_a_sample_is_a_part_of_the_proposals():
    few = "model.proposals.max_proposals=50"
    # Detection does not sample.
    check(experiment_of(few), {})
    found = [broken.path for broken in find_missing(experiment_of(few))]
    assert "model.boxes.sample_size" in found
    with pytest.raises(UserError, match="sample_size 64 is more than the 50 proposals") as caught:
        check_trainable(experiment_of(few, "data.train.paths=[a]", "data.train.label_map=b"), {})
    assert "--set model.boxes.sample_size=50" in caught.value.fix
    for sound in ("model.boxes.sample_size=50", "model.boxes.hard_example_miner={}"):
        paths = [broken.path for broken in find_missing(experiment_of(few, sound))]
        assert "model.boxes.sample_size" not in paths


def test_statistics_over_padding_are_warned_about():
    masked, trained = "model.mask_padding=true", "model.freeze_batch_norm=false"
    ((path, sentence),) = seldom_meant(experiment_of(masked, trained))
    assert path == "model.freeze_batch_norm"
    assert "they include the padding" in sentence
    for overrides in (
        [masked],
        [trained],
        [masked, trained, "model.backbone.conv.batch_norm.train=false"],
    ):
        assert seldom_meant(experiment_of(*overrides)) == []
