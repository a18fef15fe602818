"""The loss: by hand on two anchors, then against the executed original."""

import json
from dataclasses import replace
from functools import partial
from math import atan, exp, log, pi
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from stillbox.experiment import schema
from stillbox.models.anchors import build_anchors
from stillbox.models.build import build_detector
from stillbox.models.detector import Predictions
from stillbox.models.one_stage.loss import (
    batch_targets,
)
from stillbox.models.variables import bind_detector, split_detector
from tests import reference
from tests.batches import batch_of
from tests.matched import loss_output, loss_terms

CONFIG1 = reference.model(reference.SSD)
GOLDEN = json.loads((Path(__file__).parents[1] / "goldens/training_losses.json").read_text())

# Two anchors side by side. The box is the left one's, shifted: it covers 80 % of it.
ANCHORS = np.array([[0, 0, 1, 0.5], [0, 0.5, 1, 1]], np.float32)
BOX = (0.0, 0.1, 1.0, 0.5)
# Centres .3 - .25 = .05 over .5, times 10 = 1; log(.4 / .5) * 5 = -1.115718; rows are equal.
CODES = (0.0, 1.0, 0.0, 5 * log(0.8))

ONE_CLASS = schema.OneStage(
    num_classes=1,
    loss=schema.Loss(encode_background_as_zeros=True),
    matcher=schema.ArgmaxMatcher(matched_threshold=0.5, unmatched_threshold=0.5),
)


def toy_batch(*images, weight=1.0, image_weights=None):
    """One row for each image, which is a list of boxes of class 0; room for two boxes."""
    count = len(images)
    boxes, weights = np.zeros((count, 2, 4), np.float32), np.zeros((count, 2), np.float32)
    for row, image in enumerate(images):
        for column, box in enumerate(image):
            boxes[row, column], weights[row, column] = box, weight
    images = np.zeros((count, 1, 1, 3), np.float32)
    return batch_of(images, boxes, weights, image_weights=image_weights)


def toy_predictions(count=1, logits=((0.0, 2.0), (0.0, -1.0)), codes=((0.0,) * 4,) * 2):
    return Predictions(
        jnp.tile(jnp.asarray(codes, jnp.float32), (count, 1, 1)),
        jnp.tile(jnp.asarray(logits, jnp.float32), (count, 1, 1)),
    )


def loss_parts(predictions, batch, model=ONE_CLASS, replicas=1):
    # One program compiles faster than single operations.
    options = {"anchors": ANCHORS, "model": model, "replicas": replicas}
    return jax.jit(partial(loss_terms, **options))(predictions, batch)


def targets_of(batch, anchors, model):
    return jax.jit(partial(batch_targets, anchors=anchors, model=model))(batch)


def toy_loss(batch, model=ONE_CLASS, **predictions):
    parts = loss_parts(toy_predictions(len(batch.records), **predictions), batch, model)
    return [float(part) for part in parts]


def with_loss(**changes):
    return replace(ONE_CLASS, loss=replace(ONE_CLASS.loss, **changes))


# Anchor 0 matches the box, anchor 1 is background; logits are (slot 0, class).
#   slot 0 has no target: log(1 + e^0) = .693147 for each anchor
#   anchor 0, class: target 1, logit 2:  log(1 + e^-2) = .126928
#   anchor 1, class: target 0, logit -1: log(1 + e^-1) = .313262
MATCHED = log(2) + log(1 + exp(-2))
BACKGROUND = log(2) + log(1 + exp(-1))
# Huber with delta 1 of the codes 0, 1, 0, -1.115718: 1/2 + (1.115718 - 1/2) = 1.115718
HUBER = 0.5 + (-CODES[3] - 0.5)
# Class losses of an image with one match and of an image without a box. Without one, anchor 0 is
# background too, and its logit 2 costs more.
BOTH = MATCHED + BACKGROUND
NOTHING = log(2) + log(1 + exp(2)) + BACKGROUND


@pytest.mark.parametrize(
    ("changes", "classification", "localization"),
    [
        ({}, BOTH, HUBER),
        ({"normalize_localization_by_code_size": True}, BOTH, HUBER / 4),
        ({"classification_weight": 3.0, "localization_weight": 5.0}, 3 * BOTH, 5 * HUBER),
        ({"negative_class_weight": 0.25}, MATCHED + BACKGROUND / 4, HUBER),
        # Slot 0 is no class and keeps weight 1: log 2 for each anchor.
        ({"class_weights": (3.0,)}, 2 * log(2) + 3 * (BOTH - 2 * log(2)), HUBER),
        # One match and one more: everything is halved.
        ({"added_matches": 1.0}, BOTH / 2, HUBER / 2),
        # .5 * 1 - .125 and .5 * 1.115718 - .125
        ({"localization": schema.SmoothL1Loss(delta=0.5)}, BOTH, 0.25 - 0.5 * CODES[3]),
    ],
    ids=lambda value: "-".join(value) if isinstance(value, dict) else "",
)
def test_the_loss_of_two_anchors_by_hand(changes, classification, localization):
    losses = toy_loss(toy_batch([BOX]), with_loss(**changes))
    assert losses == pytest.approx([classification, localization, 1], rel=1e-6)


def test_class_weights_need_no_background_class():
    model = replace(with_loss(class_weights=(3.0,)), background_class=False)
    classification, _, _ = toy_loss(toy_batch([BOX]), model, logits=((2.0,), (-1.0,)))
    assert classification == pytest.approx(3 * (BOTH - 2 * log(2)), rel=1e-6)


def test_codes_that_are_right_cost_nothing():
    _, localization, _ = toy_loss(toy_batch([BOX]), codes=(CODES, (9.0,) * 4))
    assert localization == pytest.approx(0, abs=1e-10)


def test_both_losses_are_divided_by_the_matches_of_the_whole_batch():
    # Images with one, one and no match: everything is added up, then divided by 2.
    losses = toy_loss(toy_batch([BOX], [BOX], []))
    assert losses == pytest.approx([(2 * BOTH + NOTHING) / 2, 2 * HUBER / 2, 2], rel=1e-6)


def test_each_replica_divides_by_its_own_matches_and_the_replicas_are_averaged():
    # Two matches in the first half of the batch, one in the second.
    batch, model = toy_batch([BOX], [BOX], [BOX], []), with_loss(normalizer="per_replica")
    first, second = 2 * BOTH / 2, BOTH + NOTHING
    parts = loss_parts(toy_predictions(4), batch, model, replicas=2)
    assert parts.classification == pytest.approx((first + second) / 2)
    assert parts.localization == pytest.approx((2 * HUBER / 2 + HUBER) / 2, rel=1e-5)
    assert parts.matched_anchors == 3
    # Without that normalizer, replicas change nothing.
    whole = loss_parts(toy_predictions(4), batch, ONE_CLASS, replicas=2)
    assert whole.localization == pytest.approx(3 * HUBER / 3, rel=1e-5)


def test_the_mean_over_images_is_taken_replica_by_replica_too():
    # With a row of padding the second replica has one image, which counts double.
    batch = toy_batch([BOX], [], [BOX], [], image_weights=[1, 1, 1, 0])
    model = with_loss(normalizer="per_replica", normalize_per_image=True)
    parts = loss_parts(toy_predictions(4), batch, model, replicas=2)
    first, second = (BOTH + NOTHING) / 2, BOTH
    assert parts.classification == pytest.approx((first + second) / 2)


def test_without_a_match_the_divisor_is_1_and_the_background_teaches():
    assert toy_loss(toy_batch([])) == pytest.approx([NOTHING, 0, 0])
    added = toy_loss(toy_batch([]), with_loss(added_matches=3.0))
    assert added == pytest.approx([NOTHING / 3, 0, 0])


def test_without_normalisation_the_sums_stay():
    losses = toy_loss(toy_batch([BOX], [BOX]), with_loss(normalize_by_matches=False))
    assert losses == pytest.approx([2 * BOTH, 2 * HUBER, 2], rel=1e-6)


def test_a_box_of_fractional_weight_divides_by_1_at_least():
    # Weight .5: its losses count half. The divisor would be .5 too, without its floor.
    losses = toy_loss(toy_batch([BOX], weight=0.5))
    assert losses[:2] == pytest.approx([MATCHED / 2 + BACKGROUND, HUBER / 2], rel=1e-6)
    # Three of them weigh 1.5, which is above the floor.
    classification, _, _ = toy_loss(toy_batch([BOX], [BOX], [BOX], weight=0.5))
    assert classification == pytest.approx(3 * (MATCHED / 2 + BACKGROUND) / 1.5)


def test_the_background_has_a_target_unless_it_is_zeros():
    classification, _, _ = toy_loss(
        toy_batch([BOX]),
        with_loss(encode_background_as_zeros=False),
        logits=((0.0, 2.0), (3.0, -1.0)),
    )
    # Anchor 1: target 1 on slot 0; its logit 3 costs log(1 + e^-3).
    assert classification == pytest.approx(MATCHED + log(1 + exp(-3)) + log(1 + exp(-1)))


def test_an_ignored_box_contributes_nothing_and_its_anchor_neither():
    # Weight 0, as a crowd has it: the anchor that it attracts is no background.
    losses = toy_loss(toy_batch([BOX], weight=0.0))
    assert losses == pytest.approx([BACKGROUND, 0, 0])


def test_anchors_between_the_thresholds_count_in_no_loss():
    # IoU .8 is below .9 and not below .3; anchor 1 has IoU 0 and is background.
    matcher = schema.ArgmaxMatcher(matched_threshold=0.9, unmatched_threshold=0.3)
    losses = toy_loss(toy_batch([BOX]), replace(ONE_CLASS, matcher=matcher))
    assert losses == pytest.approx([BACKGROUND, 0, 0])


@pytest.mark.parametrize(
    ("fields", "matched"),
    [
        # The first box has IoU .556 with anchor 0 and .4 with anchor 1, the second .5 and 0; of
        # the anchors the first covers all and .8, the second .5 and nothing.
        ({}, 1),
        ({"similarity": schema.IoaSimilarity()}, 2),
        ({"similarity": schema.ThresholdedIouSimilarity(iou_threshold=0.6)}, 0),
        # Squared distances: .16 and .26 of the first, .0625 and .8125 of the second.
        (
            {
                "similarity": schema.NegSqDistSimilarity(),
                "matcher": schema.ArgmaxMatcher(matched_threshold=-0.2, unmatched_threshold=-0.2),
            },
            1,
        ),
        ({"matcher": schema.BipartiteMatcher()}, 2),
    ],
)
def test_matcher_and_similarity_decide_which_anchors_match(fields, matched):
    boxes = [(0.0, 0.0, 1.0, 0.9), (0.0, 0.0, 1.0, 0.25)]
    assert toy_loss(toy_batch(boxes), replace(ONE_CLASS, **fields))[2] == matched


def test_rows_that_only_fill_up_count_in_no_sum():
    full = toy_loss(toy_batch([BOX]))
    assert toy_loss(toy_batch([BOX], [BOX], [], image_weights=[1, 0, 0])) == full


def test_focal_and_softmax_losses_take_their_parameters():
    focal = with_loss(classification=schema.SigmoidFocalLoss(gamma=2.0, alpha=0.25))
    classification, _, _ = toy_loss(toy_batch([BOX]), focal)
    # p = 1 / (1 + e^-x): doubt of slot 0 is 1/2, of 2 for target 1 .119203, of -1 for 0 .268941.
    by_hand = (
        2 * 0.75 * 0.5**2 * log(2)
        + 0.25 * 0.1192029**2 * log(1 + exp(-2))
        + 0.75 * 0.2689414**2 * log(1 + exp(-1))
    )
    assert classification == pytest.approx(by_hand, rel=1e-5)
    softmax = with_loss(
        classification=schema.SoftmaxLoss(logit_scale=2.0), encode_background_as_zeros=False
    )
    classification, _, _ = toy_loss(toy_batch([BOX]), softmax)
    # Logits halved: (0, 1) with target 1: log(1 + e^-1); (0, -.5) with target 0: log(1 + e^-.5).
    assert classification == pytest.approx(log(1 + exp(-1)) + log(1 + exp(-0.5)), rel=1e-6)


def test_every_localisation_loss_by_hand():
    def localization(kind, **predictions):
        return toy_loss(toy_batch([BOX]), with_loss(localization=kind), **predictions)[1]

    # Codes 0, 1, 0, -1.115718 against zeros; beyond 1, half a unit is subtracted.
    assert localization(schema.SmoothL1Loss()) == pytest.approx(0.5 - CODES[3] - 0.5, rel=1e-5)
    assert localization(schema.L1Loss()) == pytest.approx(1 - CODES[3], rel=1e-5)
    assert localization(schema.L2Loss()) == pytest.approx((1 + CODES[3] ** 2) / 2, rel=1e-5)
    # Codes of zeros are the anchor itself, of which the box covers .8; their hull is the anchor.
    assert localization(schema.IouLoss()) == pytest.approx(0.2, rel=1e-5)
    assert localization(schema.GiouLoss()) == pytest.approx(0.2, rel=1e-5)
    # The width halved: .1125 to .3625 of 0 to .5 lies inside the box, .25 of its .4.
    halved = ((0.0, -0.25, 0.0, 5 * log(0.5)), (0.0,) * 4)
    assert localization(schema.IouLoss(), codes=halved) == pytest.approx(1 - 0.25 / 0.4, rel=1e-5)
    # To the left of the box: 0 to .05, hull .5, of which .05 is covered by neither.
    apart = ((0.0, -4.5, 0.0, 5 * log(0.1)), (0.0,) * 4)
    assert localization(schema.GiouLoss(), codes=apart) == pytest.approx(1 + 0.05 / 0.5, rel=1e-4)


@pytest.mark.parametrize("kind", [schema.DiouLoss, schema.CiouLoss])
def test_distances_and_shapes_are_compared_in_pixels(kind):
    model = replace(
        with_loss(localization=kind()), resizer=schema.FixedShapeResizer(height=100, width=400)
    )
    # 100 x 200 and 100 x 160 pixels, centres 20 apart, in a hull of 100 x 200.
    slope = 4 / pi**2 * (atan(200 / 100) - atan(160 / 100)) ** 2
    shape = slope**2 / (0.2 + slope) if kind is schema.CiouLoss else 0.0
    expected = 0.2 + 20**2 / (100**2 + 200**2) + shape
    assert toy_loss(toy_batch([BOX]), model)[1] == pytest.approx(expected, rel=1e-4)


def test_a_square_coder_has_three_codes_to_divide_by():
    model = replace(
        with_loss(localization=schema.L1Loss(), normalize_localization_by_code_size=True),
        box_coder=schema.SquareBoxCoder(),
    )
    # Sides sqrt(.4) and sqrt(.5): 10 * .05 / .707107 = .707107, 5 * ln(.8) / 2 = -.557859.
    _, localization, _ = toy_loss(toy_batch([BOX]), model, codes=((0.0,) * 3,) * 2)
    assert localization == pytest.approx((0.707107 + 0.557859) / 3, rel=1e-5)


def test_bootstrapped_and_logit_targets_take_their_parameters():
    # Hard, trust .8: slot 0 has logit 0 and no target; logit 2: own decision 1, target 1;
    # logit -1: own decision 0, target 0. The loss is unchanged, because the model agrees.
    hard = with_loss(classification=schema.BootstrappedSigmoidLoss(alpha=0.8, hard=True))
    assert toy_loss(toy_batch([BOX]), hard)[0] == pytest.approx(BOTH)
    # Soft: softplus(x) - x z with z = .8 t + .2 s(x): .2 * 2 * (1 - .880797) more for logit 2,
    # .2 * .268941 more for logit -1.
    soft = with_loss(classification=schema.BootstrappedSigmoidLoss(alpha=0.8))
    by_hand = BOTH + 0.4 * 0.119203 + 0.2 * 0.268941
    assert toy_loss(toy_batch([BOX]), soft)[0] == pytest.approx(by_hand, rel=1e-5)
    # Targets (0, 1) and (1, 0) halved have softmaxes (p, q) and (q, p), q = 1 / (1 + e^-.5);
    # logits (0, 1) and (0, -.5): -log softmax is x minus its slot.
    logits = with_loss(
        classification=schema.SoftmaxAgainstLogitsLoss(logit_scale=2.0),
        encode_background_as_zeros=False,
    )
    q = 1 / (1 + exp(-0.5))
    by_hand = log(1 + exp(1)) - q + log(1 + exp(-0.5)) + 0.5 * (1 - q)
    assert toy_loss(toy_batch([BOX]), logits)[0] == pytest.approx(by_hand, rel=1e-5)


def test_logits_of_zeros_cost_ln_2_a_slot():
    # 2 images of 2 anchors with 2 slots each, whatever the targets.
    classification, _, _ = toy_loss(
        toy_batch([BOX], []), with_loss(normalize_by_matches=False), logits=((0.0, 0.0),) * 2
    )
    assert classification == pytest.approx(2 * 2 * 2 * log(2), rel=1e-6)


@pytest.mark.parametrize(
    ("miner", "kept"),
    [
        # Classification: anchor 0 costs MATCHED = .820, anchor 1 BACKGROUND = 1.006.
        (schema.HardExampleMiner(num_hard_examples=1, loss_type="classification"), (0, 1)),
        (schema.HardExampleMiner(num_hard_examples=1, loss_type="localization"), (1, 0)),
        (schema.HardExampleMiner(num_hard_examples=2), (1, 1)),
    ],
)
def test_the_miner_multiplies_both_losses_by_its_mask(miner, kept):
    losses = toy_loss(toy_batch([BOX]), with_loss(hard_example_miner=miner))
    # The divisor stays the number of matches, mined away or not.
    expected = [kept[0] * MATCHED + kept[1] * BACKGROUND, kept[0] * HUBER, 1]
    assert losses == pytest.approx(expected, rel=1e-6)


def test_no_gradient_flows_through_what_the_miner_left_out():
    miner = schema.HardExampleMiner(num_hard_examples=1, loss_type="classification")
    model, batch = with_loss(hard_example_miner=miner), toy_batch([BOX])

    def total(logits):
        predictions = toy_predictions()._replace(class_logits=logits)
        return loss_parts(predictions, batch, model).classification

    gradient = jax.jit(jax.grad(total))(toy_predictions().class_logits)[0]
    assert np.all(np.asarray(gradient[0]) == 0)
    assert np.all(np.asarray(gradient[1]) != 0)


# ---- config 1, end to end ------------------------------------------------------------------------


@pytest.fixture(scope="module")
def weighted():
    detector = build_detector(CONFIG1)
    reference.load_deterministic_weights(detector, CONFIG1)
    return detector


@pytest.mark.parametrize("mode", ["eval", "train"])
def test_the_losses_of_config_1_equal_the_executed_original(weighted, mode):
    graph, params, stats = split_detector(weighted)

    @jax.jit
    def losses(params, stats, batch):
        detector = bind_detector(graph, params, stats)
        predictions = detector(batch.images, train=mode == "train")
        parts = loss_terms(predictions, batch, weighted.anchors, CONFIG1)
        return parts, detector.regularization()

    parts, penalty = losses(params, stats, reference.batch(300))
    golden = GOLDEN[mode]
    np.testing.assert_allclose(parts.localization, golden["localization_loss"], rtol=1e-3)
    np.testing.assert_allclose(parts.classification, golden["classification_loss"], rtol=1e-3)
    np.testing.assert_allclose(penalty, golden["regularization_loss"], rtol=1e-5)
    assert parts.matched_anchors == sum(GOLDEN["targets"]["num_pos"])


def test_the_targets_of_config_1_equal_the_executed_original(weighted):
    targets = targets_of(reference.batch(300), weighted.anchors, CONFIG1)
    golden, matches = GOLDEN["targets"], np.asarray(targets.matches)
    assert (matches >= 0).sum(axis=1).tolist() == golden["num_pos"]
    assert (matches == -1).sum(axis=1).tolist() == golden["num_neg"]
    assert (matches == -2).sum(axis=1).tolist() == golden["num_ign"]
    per_box = [(matches[0] == row).sum() for row in range(8)]
    assert per_box == golden["pos_per_gt_img0"]
    first = np.flatnonzero(matches[0] >= 0)[:10]
    assert first.tolist() == golden["first_pos_idx_img0"]
    codes = np.asarray(targets.box_targets)[0, first[:3]]
    np.testing.assert_allclose(codes, golden["regt_first_pos_img0"], atol=1e-5)


@pytest.mark.parametrize("kind", [schema.SmoothL1Loss(), schema.L1Loss(), schema.L2Loss()])
def test_codes_that_should_be_0_can_be_left_out(kind):
    # Targets 0, 1, 0, -1.115718; predicted 5, 1, 7, -1.115718: the codes that are not skipped are
    # right.
    wrong = ((5.0, CODES[1], 7.0, CODES[3]), (0.0,) * 4)
    skipping = with_loss(localization=kind, skip_zero_codes=True)
    _, localization, _ = toy_loss(toy_batch([BOX]), skipping, codes=wrong)
    assert localization == pytest.approx(0, abs=1e-6)
    _, localization, _ = toy_loss(toy_batch([BOX]), with_loss(localization=kind), codes=wrong)
    assert localization > 1


def test_a_coder_takes_the_size_of_a_pixel_from_the_network_input():
    # A pixel is a tenth of the height and a twentieth of the width, and belongs to box and anchor:
    # the row codes are 0 still; .45 and .55 wide with centres .325 and .275: 10 * .05 / .55,
    # 5 ln(.45 / .55).
    model = replace(
        ONE_CLASS,
        resizer=schema.FixedShapeResizer(height=10, width=20),
        box_coder=schema.FasterRcnnBoxCoder(inclusive_edges="both"),
    )
    targets = targets_of(toy_batch([BOX]), ANCHORS, model)
    expected = [0, 0.5 / 0.55, 0, 5 * log(0.45 / 0.55)]
    np.testing.assert_allclose(targets.box_targets[0, 0], expected, atol=1e-5)
    # Decoding only: the codes are those without a pixel.
    model = replace(model, box_coder=schema.FasterRcnnBoxCoder(inclusive_edges="decode"))
    targets = targets_of(toy_batch([BOX]), ANCHORS, model)
    np.testing.assert_allclose(targets.box_targets[0, 0], CODES, atol=1e-5)


def test_the_labels_of_one_anchor_equal_the_published_test():
    # RetinaNet for TPU: levels 3 to 6 of 512 x 512, sizes 2 and 2 sqrt(2) strides.
    # The box is the first anchor, 16 x 16; the second, of twice its area, overlaps it by 1/2.
    anchors = schema.MultiscaleAnchors(
        min_level=3, max_level=6, anchor_scale=2.0, aspect_ratios=(1.0,), order="scale_major"
    )
    shapes = tuple((side, side) for side in (64, 32, 16, 8))
    built = build_anchors(anchors, shapes, (512, 512))
    model = replace(
        ONE_CLASS,
        resizer=schema.FixedShapeResizer(height=512, width=512),
        matcher=schema.ArgmaxMatcher(force_match_for_each_row=True),
    )
    targets = targets_of(toy_batch([built[0]]), built, model)
    assert np.flatnonzero(targets.matches[0] >= 0).tolist() == [0, 1]


def test_a_moving_average_of_matches_divides_from_the_first_batch_on():
    model = with_loss(normalizer_momentum=0.5, added_matches=1.0)

    def loss(batch, average, step):
        predictions, state = toy_predictions(len(batch.records)), {"matches": average}
        compute = jax.jit(partial(loss_output, anchors=ANCHORS, model=model))
        output = compute(predictions, batch, state=state, step=step)
        return float(output.terms["classification_loss"]), float(output.state["matches"])

    # 1 match and 1 added: the average is 0 + 2 / 2 = 1, and half of it has been counted.
    classification, average = loss(toy_batch([BOX]), 0.0, 0)
    assert average == 1.0
    assert classification == pytest.approx(BOTH / 2, rel=1e-6)
    # Then 3 and 1: 1 / 2 + 4 / 2 = 2.5, of which 3 / 4 has been counted.
    classification, average = loss(toy_batch([BOX], [BOX], [BOX]), average, 1)
    assert average == 2.5
    expected = 3 * BOTH / (2.5 / 0.75)
    assert classification == pytest.approx(expected, rel=1e-6)
