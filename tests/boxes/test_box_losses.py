import jax
import jax.numpy as jnp
import numpy as np
import pytest

from stillbox.boxes import box_losses
from tests.boxes import golden

GOLDEN = golden.load("boxes_losses.json")
CODES, TARGETS, WEIGHTS = (
    np.float32(GOLDEN["inputs"][key]) for key in ("box_pred", "box_target", "box_weights")
)
BOXES, TRUE_BOXES = (np.float32(GOLDEN["inputs"][key]) for key in ("iou_b1", "iou_b2"))


@pytest.mark.parametrize("name, delta", [("smooth_l1_d1", 1.0), ("smooth_l1_d.11", 1 / 9)])
def test_smooth_l1_equals_the_executed_reference(name, delta):
    result = box_losses.smooth_l1_loss(CODES, TARGETS, WEIGHTS, delta=delta)
    np.testing.assert_allclose(result, GOLDEN[name], rtol=1e-5)


def test_smooth_l1_equals_the_published_test():
    codes = [
        [[2.5, 0, 0.4, 0], [0, 0, 0, 0], [0, 2.5, 0, 0.4]],
        [[3.5, 0, 0, 0], [0, 0.4, 0, 0.9], [0, 0, 1.5, 0]],
    ]
    weights = [[2, 1, 1], [0, 3, 0]]
    # Row by row: 2 (2 + .08) + 0 + (2 + .08) = 6.24; 3 (.08 + .405) = 1.455.
    result = box_losses.smooth_l1_loss(codes, np.zeros((2, 3, 4)), weights)
    np.testing.assert_allclose(result, [[4.16, 0, 2.08], [0, 1.455, 0]], rtol=1e-6)
    np.testing.assert_allclose(result.sum(), 7.695, rtol=1e-6)


def test_l2_equals_the_executed_reference():
    # Second anchor: differences -.3, 2, .4, -1.5, squares 6.5 in all, half of that times .5 * .5.
    np.testing.assert_allclose(GOLDEN["l2"], [[0.0525, 0.8125]], rtol=1e-6)
    result = box_losses.l2_loss(CODES, TARGETS, WEIGHTS)
    np.testing.assert_allclose(result, GOLDEN["l2"], rtol=1e-6)


def test_l2_equals_the_published_test():
    # From the original's unit tests: 3 images, 5 of 10 anchors count, 4 codes of 1: 3 * 5 * 4 / 2.
    weights = np.tile(np.arange(10) < 5, (3, 1))
    result = box_losses.l2_loss(np.ones((3, 10, 4)), np.zeros((3, 10, 4)), weights)
    assert result.sum() == 30
    # Likewise when half of the targets are no numbers and all anchors count.
    targets = np.where(np.arange(4) < 2, np.nan, np.zeros((3, 10, 4)))
    assert box_losses.l2_loss(np.ones((3, 10, 4)), targets, np.ones((3, 10))).sum() == 30


def test_l1_is_the_sum_of_the_distances():
    # .05 + .1 + .05 + .3, and .3 + 2 + .4 + 1.5 at weight .5.
    np.testing.assert_allclose(box_losses.l1_loss(CODES, TARGETS, WEIGHTS), [[0.5, 2.1]], rtol=1e-6)


@pytest.mark.parametrize("name", ["iou", "giou"])
def test_overlap_losses_equal_the_executed_reference(name):
    function = {"iou": box_losses.iou_loss, "giou": box_losses.giou_loss}[name]
    result = function(BOXES, TRUE_BOXES, WEIGHTS)
    assert result.shape == (1, 2)
    np.testing.assert_allclose(result[0], np.reshape(GOLDEN[name], 2), rtol=1e-5)


def test_overlap_losses_equal_the_published_test():
    # From the original's unit tests: two equal pairs cost nothing, one apart costs 1 at weight 2.
    boxes = [[1.5, 0, 2.4, 1], [0, 0, 1, 1], [0, 0, 0.5, 0.25]]
    targets = [[1.5, 0, 2.4, 1], [0, 0, 1, 1], [50, 50, 500.5, 100.25]]
    np.testing.assert_allclose(box_losses.iou_loss(boxes, targets, [1, 0.5, 2]), [0, 0, 2])
    # A point and a box of 25 in a hull of 100: 1 + 75 / 100, twice.
    boxes[2], targets[2] = [0, 0, 0, 0], [5, 5, 10, 10]
    np.testing.assert_allclose(box_losses.giou_loss(boxes, targets, [1, 0.5, 2]), [0, 0, 3.5])


@pytest.mark.parametrize("dtype", [jnp.bfloat16, jnp.float16, jnp.float32])
def test_losses_are_float32_for_any_input_type(dtype):
    codes, weights = jnp.ones((2, 4), dtype), jnp.ones(2, dtype)
    for name in ("smooth_l1", "l1", "l2", "iou", "giou"):
        function = getattr(box_losses, f"{name}_loss")
        assert function(codes, codes, weights).dtype == jnp.float32


def test_targets_that_are_not_numbers_count_as_met():
    targets = jnp.asarray([[jnp.nan, 0.0, jnp.nan, 0.0]])

    def loss(codes):
        return box_losses.smooth_l1_loss(codes, targets, [1.0]).sum()

    value, gradient = jax.value_and_grad(loss)(jnp.asarray([[5.0, 2.0, -5.0, 0.5]]))
    # 2 - .5 and .5 * .25; slopes 1 and .5.
    np.testing.assert_allclose(value, 1.625)
    np.testing.assert_allclose(gradient, [[0, 1, 0, 0.5]])


@pytest.mark.parametrize("function", [box_losses.iou_loss, box_losses.giou_loss])
def test_an_edge_that_is_not_a_number_counts_as_met(function):
    targets = jnp.asarray([[jnp.nan, 0.0, jnp.nan, 1.0], [jnp.nan] * 4])

    def loss(boxes):
        return function(boxes, targets, [1.0, 1.0])

    boxes = jnp.asarray([[0.0, 0.0, 1.0, 0.5], [0.2, 0.2, 0.4, 0.4]])
    # Met from top to bottom, half as wide: IoU .5, hull the target itself. All met: no loss.
    np.testing.assert_allclose(loss(boxes), [0.5, 0], atol=1e-7)
    gradient = jax.grad(lambda boxes: loss(boxes).sum())(boxes)
    # The IoU grows with the right edge, by one in one.
    np.testing.assert_allclose(gradient[0, 3], -1, rtol=1e-6)
    np.testing.assert_allclose(gradient[1], np.zeros(4), atol=1e-5)


def test_huber_bends_at_delta():
    # x = .5: .125; x = 2, delta 1: 2 - .5; delta .5: .5 * 2 - .125; slopes x, then delta.
    np.testing.assert_allclose(box_losses.huber([0.5, -2.0], delta=1.0), [0.125, 1.5])
    np.testing.assert_allclose(box_losses.huber([2.0], delta=0.5), [0.875])
    slopes = [jax.grad(lambda x: box_losses.huber(x, delta=1.0))(x) for x in (0.5, 1.0, 3.0, -3.0)]
    np.testing.assert_allclose(slopes, [0.5, 1, 1, -1])


@pytest.mark.parametrize(
    ("loss", "expected"),
    # Differences 2, -.5, 3, -1 with the targets 0, .5, 0, 1: only the second and fourth count.
    [
        (box_losses.l1_loss, 0.5 + 1),
        (box_losses.l2_loss, (0.25 + 1) / 2),
        (box_losses.smooth_l1_loss, 0.125 + 0.5),
    ],
)
def test_codes_with_a_target_of_zero_can_be_left_out(loss, expected):
    codes, targets = [[2.0, 0.0, 3.0, 0.0]], [[0.0, 0.5, 0.0, 1.0]]
    assert float(loss(codes, targets, [1.0], skip_zeros=True)[0]) == pytest.approx(expected)
    assert float(loss(codes, targets, [1.0])[0]) > expected
