import jax
import numpy as np

from stillbox.boxes.calibration import (
    class_curve_scores,
    class_platt_scores,
    curve_scores,
    platt_scores,
)


def test_a_curve_is_straight_between_its_points_and_flat_beyond_them():
    # Between (.2, .1) and (.6, .9) a score of .3 is a quarter of the way: .1 + .2.
    scores = np.float32([[0.0, 0.2, 0.3], [0.6, 0.7, 1.0]])
    result = curve_scores(scores, inputs=[0.2, 0.6], outputs=[0.1, 0.9])
    np.testing.assert_allclose(result, [[0.1, 0.1, 0.3], [0.9, 0.9, 0.9]], rtol=1e-6)


def test_a_curve_of_one_point_is_constant():
    np.testing.assert_allclose(curve_scores([0.1, 0.9], inputs=[0.5], outputs=[0.4]), [0.4, 0.4])


def test_slots_have_separate_curves_and_others_stay():
    scores = np.float32([[0.25, 0.5, 0.75, 0.5]])
    # Slot 3: (0, 0) to (1, .5), whose last point is repeated; slot 1: through (.5, .8).
    result = jax.jit(class_curve_scores)(
        scores,
        slots=[3, 1],
        inputs=[[0, 1, 1], [0, 0.5, 1]],
        outputs=[[0, 0.5, 0.5], [0, 0.8, 1]],
    )
    np.testing.assert_allclose(result, [[0.25, 0.8, 0.75, 0.25]], rtol=1e-6)
    # Beyond a repeated point its value holds.
    result = class_curve_scores([[0.7]], slots=[0], inputs=[[0, 0.5, 0.5]], outputs=[[0, 0.2, 0.2]])
    np.testing.assert_allclose(result, [[0.2]], rtol=1e-6)


def test_platt_scaling_by_hand():
    # 1 / (1 + e^(-1 * 0 + 0)); 1 / (1 + e^(-2 * .5 + 1)); 1 / (1 + e^(-2 * 1 + 1)) = .731059.
    np.testing.assert_allclose(platt_scores([0.0], a=-1.0, b=0.0), [0.5])
    np.testing.assert_allclose(platt_scores([0.5, 1.0], a=-2.0, b=1.0), [0.5, 0.731059], rtol=1e-6)


def test_platt_scaling_of_some_slots_leaves_the_others():
    scores = np.float32([[0.3, 1.0, 0.6], [0.3, 0.5, 0.6]])
    result = class_platt_scores(scores, slots=[1], a=[-2.0], b=[1.0])
    np.testing.assert_allclose(result, [[0.3, 0.731059, 0.6], [0.3, 0.5, 0.6]], rtol=1e-6)
