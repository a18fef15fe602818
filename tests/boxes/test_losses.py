import math
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from stillbox.boxes import losses
from tests.boxes import golden
from tests.helpers import at_once

GOLDEN = golden.load("boxes_losses.json")
LOGITS, TARGETS = (np.float32(GOLDEN["inputs"][name]) for name in ("pred", "target"))
CLASS_WEIGHTS = np.float32(GOLDEN["inputs"]["weights"])
WEIGHTS = CLASS_WEIGHTS[..., 0]
LN2 = math.log(2)


def focal(gamma=2.0, alpha=None):
    return lambda x, z: losses.sigmoid_focal_cross_entropy(x, z, gamma=gamma, alpha=alpha)


def bootstrapped(hard):
    return lambda x, z: losses.bootstrapped_sigmoid_cross_entropy(x, z, alpha=0.9, hard=hard)


@pytest.mark.parametrize(
    "name, function",
    [
        ("sigmoid", losses.sigmoid_cross_entropy),
        ("focal_anone_g2", focal()),
        ("focal_a.25_g2", focal(alpha=0.25)),
        ("focal_a.75_g2", focal(alpha=0.75)),
        ("boot_soft", bootstrapped(hard=False)),
        ("boot_hard", bootstrapped(hard=True)),
    ],
)
def test_elementwise_losses_equal_the_executed_reference(name, function):
    # The reference takes 1 - p_t in float32, which costs its focal loss the sixth digit of the
    # smallest value: 1 / (1 + e^4)^2 * ln(1 + e^-4) is 5.871569e-6, and it has 5.871589e-6.
    result = at_once(function, LOGITS, TARGETS) * CLASS_WEIGHTS
    np.testing.assert_allclose(result, GOLDEN[name], rtol=4e-6)


@pytest.mark.parametrize(
    "name, function",
    [
        ("sigmoid", losses.sigmoid_loss),
        ("focal_anone_g2", losses.sigmoid_focal_loss),
        ("focal_a.25_g2", lambda *a: losses.sigmoid_focal_loss(*a, alpha=0.25)),
        ("boot_soft", lambda *a: losses.bootstrapped_sigmoid_loss(*a, alpha=0.9, hard=False)),
    ],
)
def test_anchor_losses_are_the_sums_over_the_classes(name, function):
    expected = np.sum(GOLDEN[name], axis=-1)
    # The reference weighs every class, here all classes of an anchor alike.
    for weights in (WEIGHTS, CLASS_WEIGHTS):
        result = at_once(function, LOGITS, TARGETS, weights)
        np.testing.assert_allclose(result, expected, rtol=2e-6)


@pytest.mark.parametrize("name, scale", [("softmax", 1.0), ("softmax_ls2", 2.0)])
def test_softmax_equals_the_executed_reference(name, scale):
    for weights in (WEIGHTS, CLASS_WEIGHTS):
        result = at_once(losses.softmax_loss, LOGITS, TARGETS, weights, logit_scale=scale)
        np.testing.assert_allclose(result, GOLDEN[name], rtol=1e-6)


def test_classes_of_one_anchor_can_weigh_differently():
    # Logits 0: every class costs ln 2; focal with gamma 1 half of that; softmax ln 3.
    zeros = np.zeros((1, 3))
    targets, weights = np.float32([[0, 1, 0]]), np.float32([[0.5, 4, 0]])
    np.testing.assert_allclose(losses.sigmoid_loss(zeros, targets, weights), [4.5 * LN2])
    focal = losses.sigmoid_focal_loss(zeros, targets, weights, gamma=1.0)
    np.testing.assert_allclose(focal, [2.25 * LN2], rtol=1e-6)
    # The target's class alone has a loss.
    softmax = losses.softmax_loss(zeros, targets, weights)
    np.testing.assert_allclose(softmax, [4 * math.log(3)], rtol=1e-6)


def test_softmax_against_logits_is_softmax_against_their_softmax():
    # Targets over 2: (0, ln 3) have the softmax (1/4, 3/4); logits over 2: (0, 0) cost ln 2.
    def loss(logits, weight):
        weights = np.float32([weight])
        return losses.softmax_against_logits_loss(logits, targets, weights, logit_scale=2.0)

    targets = np.float32([[0, 2 * math.log(3)]])
    result = loss(np.ones((1, 2)), 0.5)
    np.testing.assert_allclose(result, [0.5 * LN2], rtol=1e-6)
    # Logits over 2: (0, ln 3): -(ln .25 / 4 + 3 ln .75 / 4), what the target itself costs.
    by_hand = -(math.log(0.25) + 3 * math.log(0.75)) / 4
    result = loss(targets, 1)
    np.testing.assert_allclose(result, [by_hand], rtol=1e-6)


def test_soft_bootstrapping_has_a_gradient_through_the_prediction():
    # d/dx of softplus(x) - x z(x), z = .9 t + .1 s(x): s - z - .1 x s (1 - s). At x = 1, t = 0:
    # s = .731059: .731059 - .073106 - .1 * .196612 = .638292. Hard: s - .1 = .631059.
    def slope(hard):
        return jax.grad(
            lambda x: losses.bootstrapped_sigmoid_cross_entropy(x, 0.0, alpha=0.9, hard=hard)
        )(1.0)

    np.testing.assert_allclose(slope(False), 0.638292, rtol=1e-5)
    np.testing.assert_allclose(slope(True), 0.631059, rtol=1e-5)


def test_sigmoid_at_extreme_logits_costs_only_the_undecided_ones():
    # Correct confident classes cost 0, a logit of 0 costs ln 2: twice, and once without weight.
    logits = np.float32([[-100, 100, -100], [100, 0, -100], [0, -100, 100], [0, -100, -100]])
    targets = np.float32([[0, 1, 0], [1, 0, 0], [1, 0, 1], [0, 0, 0]])
    result = losses.sigmoid_loss(logits, targets, np.float32([1, 1, 1, 0]))
    np.testing.assert_allclose(result, [0, LN2, LN2, 0], atol=1e-6)


def test_sigmoid_grows_linearly_when_surely_wrong():
    result = losses.sigmoid_cross_entropy(np.float32([100, -100]), np.float32([0, 1]))
    np.testing.assert_allclose(result, [100, 100])


def test_softmax_at_extreme_logits_costs_only_the_undecided_ones():
    # Two equal winners cost ln 2: once in full and once by half (row 23).
    logits = np.float32([[-100, 100, -100], [0, 0, -100], [100, 100, -100], [-100, -100, 100]])
    targets = np.float32([[0, 1, 0], [1, 0, 0], [0, 1, 0], [0, 0, 1]])
    result = losses.softmax_loss(logits, targets, np.float32([1, 1, 0.5, 1]))
    np.testing.assert_allclose(result.sum(), 1.5 * LN2, rtol=1e-6)


@pytest.mark.parametrize("dtype", [jnp.bfloat16, jnp.float16, jnp.float32])
def test_losses_are_float32_for_any_input_type(dtype):
    logits, weights = jnp.ones((2, 3), dtype), jnp.ones(2, dtype)
    for function in (
        *(losses.sigmoid_loss, losses.sigmoid_focal_loss),
        *(losses.softmax_loss, losses.softmax_against_logits_loss),
        partial(losses.bootstrapped_sigmoid_loss, alpha=0.9, hard=True),
    ):
        assert jax.eval_shape(function, logits, logits, weights).dtype == jnp.float32


@pytest.mark.parametrize("gamma", [0.0, 0.5, 1.0, 2.0])
def test_gradients_are_finite_at_extreme_logits(gamma):
    logits = jnp.asarray([[-100.0, -30, 0, 1e-6, 30, 100]] * 2)
    targets = jnp.asarray([[0.0] * 6, [1.0] * 6])
    for function in (
        losses.sigmoid_loss,
        losses.softmax_loss,
        lambda *a: losses.sigmoid_focal_loss(*a, gamma=gamma, alpha=0.25),
    ):
        slope = jax.value_and_grad(lambda x, f=function: f(x, targets, jnp.ones(2)).sum())
        value, gradient = at_once(slope, logits)
        assert np.isfinite(value)
        assert np.isfinite(gradient).all()


@pytest.mark.parametrize("power", [0.5, 1.0, 2.0])
def test_gradients_of_quality_losses_are_finite_where_the_prediction_is_the_target(power):
    logits, targets = jnp.asarray([[20.0, -100.0, 0.0]]), jnp.asarray([[1.0, 0.0, 0.5]])
    for function in (
        partial(losses.quality_focal_loss, beta=power),
        partial(losses.varifocal_loss, gamma=power),
    ):
        gradient = jax.grad(lambda x, f=function: f(x, targets, jnp.ones(1)).sum())(logits)
        assert np.isfinite(gradient).all()


def test_a_head_of_zeros_has_a_gradient_for_the_background():
    # s(0) - 0 = .5: the slope must not vanish where the loss is written with |x| and max(x, 0).
    gradient = jax.grad(lambda x: losses.sigmoid_cross_entropy(x, 0.0))(0.0)
    assert gradient == 0.5


def test_sigmoid_gradient_is_probability_less_target():
    logits = jnp.asarray([-3.0, -0.1, 0.0, 2.0])
    gradient = jax.grad(lambda x: losses.sigmoid_cross_entropy(x, jnp.ones(4)).sum())(logits)
    np.testing.assert_allclose(gradient, jax.nn.sigmoid(logits) - 1, rtol=1e-6)


FOCAL_LN2 = math.log(2.0)


@pytest.mark.parametrize(
    "alpha, total", [(1.0, 8 * FOCAL_LN2), (0.75, 10 * FOCAL_LN2), (None, 24 * FOCAL_LN2)]
)
def test_focal_without_focus_equals_the_published_test(alpha, total):
    # 8 anchors of 3 classes, one of them positive: 8 alpha + 16 (1 - alpha) times ln 2 (row 24).
    targets = np.eye(3)[np.arange(8) % 3].reshape(2, 4, 3)
    result = losses.sigmoid_focal_loss(
        np.zeros((2, 4, 3)), targets, np.ones((2, 4)), gamma=0.0, alpha=alpha
    )
    np.testing.assert_allclose(result.sum(), total, rtol=1e-6)


def test_focal_keeps_its_digits_for_a_confident_model():
    # At logit 15 and target 1: 1 - p = s(-15) = 3.059e-7, of which 1 - s(15) in float32 keeps one
    # digit. The loss is (1 - p)^2 * -ln p, about (1 - p)^3.
    doubt = 1 / (1 + math.exp(15))
    expected = -(doubt**2) * math.log1p(-doubt)
    result = losses.sigmoid_focal_cross_entropy(15.0, 1.0, gamma=2.0, alpha=None)
    np.testing.assert_allclose(result, expected, rtol=1e-5)


def test_a_head_of_zeros_has_a_focal_gradient_for_the_background():
    # Gamma 2: d/dx of p^2 * -ln(1 - p) at p = .5 is 2 p p (1 - p) ln 2 + p^3.
    gradient = jax.grad(
        lambda x: losses.sigmoid_focal_cross_entropy(x, 0.0, gamma=2.0, alpha=None)
    )(0.0)
    np.testing.assert_allclose(gradient, 0.25 * FOCAL_LN2 + 0.125, rtol=1e-6)


def loss_in_float64(x, t, gamma, alpha):
    s = 1 / (1 + np.exp(-x))
    entropy = -t * np.log(s) - (1 - t) * np.log(1 - s)
    weight = 1.0 if alpha is None else t * alpha + (1 - t) * (1 - alpha)
    return weight * (t * (1 - s) + (1 - t) * s) ** gamma * entropy


@pytest.mark.parametrize("alpha", [None, 0.25])
@pytest.mark.parametrize("gamma", [0.0, 0.5, 1.0, 1.5, 2.0])
def test_the_gradient_is_the_slope_of_the_loss(gamma, alpha):
    # By differences of the formula in float64, which knows nothing of how the loss is written.
    x = np.linspace(-8, 8, 33)[:, None]
    t = np.array([0.0, 0.1, 0.5, 0.9, 1.0])
    step = 1e-5
    upper, lower = (loss_in_float64(x + sign * step, t, gamma, alpha) for sign in (1, -1))
    loss = partial(losses.sigmoid_focal_cross_entropy, gamma=gamma, alpha=alpha)
    slope = jax.grad(lambda logits: loss(logits, t).sum())
    gradient = at_once(slope, np.broadcast_to(np.float32(x), (33, 5)))
    np.testing.assert_allclose(gradient, (upper - lower) / (2 * step), rtol=2e-5, atol=1e-7)


DELTAS, BOX_TARGETS, BOX_WEIGHTS = (
    np.float32(GOLDEN["inputs"][key]) for key in ("box_pred", "box_target", "box_weights")
)
BOXES, TRUE_BOXES = (np.float32(GOLDEN["inputs"][key]) for key in ("iou_b1", "iou_b2"))


@pytest.mark.parametrize("name, delta", [("smooth_l1_d1", 1.0), ("smooth_l1_d.11", 1 / 9)])
def test_smooth_l1_equals_the_executed_reference(name, delta):
    result = losses.smooth_l1_loss(DELTAS, BOX_TARGETS, BOX_WEIGHTS, delta=delta)
    np.testing.assert_allclose(result, GOLDEN[name], rtol=1e-5)


def test_smooth_l1_equals_the_published_test():
    rows = [
        [[2.5, 0, 0.4, 0], [0, 0, 0, 0], [0, 2.5, 0, 0.4]],
        [[3.5, 0, 0, 0], [0, 0.4, 0, 0.9], [0, 0, 1.5, 0]],
    ]
    deltas, weights = np.float32(rows), np.float32([[2, 1, 1], [0, 3, 0]])
    # Row by row: 2 (2 + .08) + 0 + (2 + .08) = 6.24; 3 (.08 + .405) = 1.455.
    result = losses.smooth_l1_loss(deltas, np.zeros((2, 3, 4)), weights)
    np.testing.assert_allclose(result, [[4.16, 0, 2.08], [0, 1.455, 0]], rtol=1e-6)
    np.testing.assert_allclose(result.sum(), 7.695, rtol=1e-6)


def test_l2_equals_the_executed_reference():
    # Second anchor: differences -.3, 2, .4, -1.5, squares 6.5 in all, half of that times .5 * .5.
    np.testing.assert_allclose(GOLDEN["l2"], [[0.0525, 0.8125]], rtol=1e-6)
    result = losses.l2_loss(DELTAS, BOX_TARGETS, BOX_WEIGHTS)
    np.testing.assert_allclose(result, GOLDEN["l2"], rtol=1e-6)


def test_l2_equals_the_published_test():
    # From the original's unit tests: 3 images, 5 of 10 anchors count, 4 deltas of 1: 3 * 5 * 4 / 2.
    weights = np.tile(np.arange(10) < 5, (3, 1)).astype(np.float32)
    result = losses.l2_loss(np.ones((3, 10, 4)), np.zeros((3, 10, 4)), weights)
    assert result.sum() == 30
    # Likewise when half of the targets are no numbers and all anchors count.
    targets = np.where(np.arange(4) < 2, np.nan, np.zeros((3, 10, 4)))
    assert losses.l2_loss(np.ones((3, 10, 4)), targets, np.ones((3, 10))).sum() == 30


def test_l1_is_the_sum_of_the_distances():
    # .05 + .1 + .05 + .3, and .3 + 2 + .4 + 1.5 at weight .5.
    np.testing.assert_allclose(
        losses.l1_loss(DELTAS, BOX_TARGETS, BOX_WEIGHTS), [[0.5, 2.1]], rtol=1e-6
    )


@pytest.mark.parametrize("name", ["iou", "giou"])
def test_overlap_losses_equal_the_executed_reference(name):
    function = {"iou": losses.iou_loss, "giou": losses.giou_loss}[name]
    result = at_once(function, BOXES, TRUE_BOXES, BOX_WEIGHTS)
    assert result.shape == (1, 2)
    np.testing.assert_allclose(result[0], np.reshape(GOLDEN[name], 2), rtol=1e-5)


def test_overlap_losses_equal_the_published_test():
    # From the original's unit tests: two equal pairs cost nothing, one apart costs 1 at weight 2.
    boxes = np.float32([[1.5, 0, 2.4, 1], [0, 0, 1, 1], [0, 0, 0.5, 0.25]])
    targets = np.float32([*boxes[:2], [50, 50, 500.5, 100.25]])
    weights = np.float32([1, 0.5, 2])
    np.testing.assert_allclose(losses.iou_loss(boxes, targets, weights), [0, 0, 2])
    # A point and a box of 25 in a hull of 100: 1 + 75 / 100, twice.
    boxes[2], targets[2] = [0, 0, 0, 0], [5, 5, 10, 10]
    np.testing.assert_allclose(losses.giou_loss(boxes, targets, weights), [0, 0, 3.5])


@pytest.mark.parametrize("dtype", [jnp.bfloat16, jnp.float16, jnp.float32])
def test_box_losses_are_float32_for_any_input_type(dtype):
    deltas, weights = jnp.ones((2, 4), dtype), jnp.ones(2, dtype)
    for name in ("smooth_l1", "l1", "l2", "iou", "giou"):
        function = getattr(losses, f"{name}_loss")
        assert jax.eval_shape(function, deltas, deltas, weights).dtype == jnp.float32


def test_targets_that_are_not_numbers_count_as_met():
    targets = jnp.asarray([[jnp.nan, 0.0, jnp.nan, 0.0]])

    def loss(deltas):
        return losses.smooth_l1_loss(deltas, targets, jnp.ones(1)).sum()

    value, gradient = at_once(jax.value_and_grad(loss), np.float32([[5.0, 2.0, -5.0, 0.5]]))
    # 2 - .5 and .5 * .25; slopes 1 and .5.
    np.testing.assert_allclose(value, 1.625)
    np.testing.assert_allclose(gradient, [[0, 1, 0, 0.5]])


@pytest.mark.parametrize("function", [losses.iou_loss, losses.giou_loss])
def test_an_edge_that_is_not_a_number_counts_as_met(function):
    targets = jnp.asarray([[jnp.nan, 0.0, jnp.nan, 1.0], [jnp.nan] * 4])

    def loss(boxes):
        return function(boxes, targets, jnp.ones(2))

    boxes = jnp.asarray([[0.0, 0.0, 1.0, 0.5], [0.2, 0.2, 0.4, 0.4]])
    # Met from top to bottom, half as wide: IoU .5, hull the target itself. All met: no loss.
    np.testing.assert_allclose(at_once(loss, boxes), [0.5, 0], atol=1e-7)
    gradient = at_once(jax.grad(lambda boxes: loss(boxes).sum()), boxes)
    # The IoU grows with the right edge, by one in one.
    np.testing.assert_allclose(gradient[0, 3], -1, rtol=1e-6)
    np.testing.assert_allclose(gradient[1], np.zeros(4), atol=1e-5)


def test_huber_bends_at_delta():
    # x = .5: .125; x = 2, delta 1: 2 - .5; delta .5: .5 * 2 - .125; slopes x, then delta.
    np.testing.assert_allclose(losses.huber(np.float32([0.5, -2]), delta=1.0), [0.125, 1.5])
    np.testing.assert_allclose(losses.huber(2.0, delta=0.5), 0.875)
    slopes = [jax.grad(lambda x: losses.huber(x, delta=1.0))(x) for x in (0.5, 1.0, 3.0, -3.0)]
    np.testing.assert_allclose(slopes, [0.5, 1, 1, -1])


@pytest.mark.parametrize(
    ("loss", "expected"),
    # Differences 2, -.5, 3, -1 with the targets 0, .5, 0, 1: only the second and fourth count.
    [
        (losses.l1_loss, 0.5 + 1),
        (losses.l2_loss, (0.25 + 1) / 2),
        (losses.smooth_l1_loss, 0.125 + 0.5),
    ],
)
def test_deltas_with_a_target_of_zero_can_be_left_out(loss, expected):
    deltas, targets = np.float32([[2, 0, 3, 0]]), np.float32([[0, 0.5, 0, 1]])
    weights = np.ones(1)
    assert float(loss(deltas, targets, weights, skip_zeros=True)[0]) == pytest.approx(expected)
    assert float(loss(deltas, targets, weights)[0]) > expected
