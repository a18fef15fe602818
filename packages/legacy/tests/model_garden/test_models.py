"""RetinaNet of TensorFlow Model Garden is what the executed original was.

`packages/legacy/tools/model_garden_runs.py` makes the goldens from the same experiment, weights,
images and boxes. Deviations are rounding in float32.
"""

import json
from collections.abc import Mapping
from functools import cache
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from packages.legacy.tools.model_garden_runs import (
    BOXES,
    GOLDENS,
    LABELS,
    STEPS,
    images,
    samples,
    weight,
)
from stillbox.boxes.structures import Batch
from stillbox.checkpoints.names import object_paths
from stillbox.devices.mesh import build_mesh
from stillbox.experiment.schema import Experiment
from stillbox.models.build import abstract_detector
from stillbox.models.one_stage.detector import postprocess
from stillbox.models.one_stage.loss import initial_loss_state
from stillbox.models.variables import bind_detector
from stillbox.training.plan import plan_training
from stillbox.training.program import train_program
from stillbox.training.state import create_state
from stillbox_legacy.model_garden import read_garden
from tests.batches import batch_of

CASES = (
    *("resnet", "mobilenet_v2", "mobiledet_cpu", "nasfpn", "per_level"),
    *("spinenet", "spinenet_mobile"),
)
# The others are behind the slow mark: each compiles a network of a hundred convolutions.
FAST = ("resnet", "mobilenet_v2")
SIDE = 128


@cache
def experiment(name: str) -> Experiment:
    """The experiment of a case, as users give it."""
    path = GOLDENS / f"{name}.yaml"
    start = path.read_text().splitlines()[0].removeprefix("# ")
    return read_garden(experiment=start, config_files=(path,)).experiment


@cache
def golden(name: str) -> Mapping[str, np.ndarray]:
    """What the original computed."""
    with np.load(GOLDENS / f"{name}.npz") as arrays:
        return dict(arrays)


def variables(name: str) -> dict[str, list[int]]:
    """The original's variables in the order of its file, and their shapes."""
    return dict(json.loads((GOLDENS / f"{name}.json").read_text()))


@cache
def described(name: str) -> tuple[Any, Mapping[str, Any], Mapping[str, Any], Mapping[str, str]]:
    """Graph, parameters, statistics, and names by path."""
    model = experiment(name).model
    graph, params, stats = abstract_detector(model, "float32")
    return graph, params, stats, object_paths(model, {**params, **stats})


def weights(name: str) -> tuple[dict[str, jax.Array], dict[str, jax.Array]]:
    """Parameters and statistics with the original's values."""
    _, params, stats, names = described(name)
    first, second = (
        {path: jnp.asarray(weight(names[path], arrays[path].shape)) for path in arrays}
        for arrays in (params, stats)
    )
    return first, second


def batch(room: int) -> Batch:
    """The images with their boxes."""
    boxes, classes = np.zeros((len(BOXES), room, 4), np.float32), np.zeros((len(BOXES), room), int)
    given = np.zeros((len(BOXES), room), np.float32)
    boxes[:, : BOXES.shape[1]], classes[:, : BOXES.shape[1]] = BOXES, LABELS - 1
    given[:, : BOXES.shape[1]] = 1
    return batch_of(images(SIDE), boxes, given, classes.astype(np.int32))


# The original has a block that no detector reads: it is trained by its penalty alone.
UNREAD = {"mobilenet_v2": "backbone/layer_with_weights-18/"}


@pytest.mark.parametrize("name", CASES)
def test_variables_are_those_of_the_original(name: str) -> None:
    """By their keys in checkpoints, and with their shapes."""
    _, params, stats, names = described(name)
    ours = {names.get(path, path): list(array.shape) for path, array in {**params, **stats}.items()}
    unread = UNREAD.get(name, "nothing")
    assert ours == {
        key: shape for key, shape in variables(name).items() if not key.startswith(unread)
    }


def slow_but(fast: tuple[str, ...], cases: tuple[str, ...] = CASES) -> list[Any]:
    """The cases, with a mark on all but the fast ones."""
    return [name if name in fast else pytest.param(name, marks=pytest.mark.slow) for name in cases]


@pytest.mark.parametrize("name", slow_but(FAST))
def test_predictions_are_those_of_the_original(name: str) -> None:
    """Raw outputs of all levels, and what is left after suppression."""
    graph, expected = described(name)[0], golden(name)

    @jax.jit
    def run(params: Any, stats: Any, pixels: Any) -> Any:
        detector = bind_detector(graph, params, stats)
        predictions = detector(pixels, train=False)
        sizes = jnp.full((len(BOXES), 2), SIDE, jnp.int32)
        network = detector.model, detector.level_sizes
        return predictions, postprocess(predictions, detector.anchors, sizes, *network)

    predictions, detections = run(*weights(name), images(SIDE))
    for key, ours in (
        ("cls_outputs", predictions.class_logits),
        ("box_outputs", predictions.box_encodings),
    ):
        levels = sorted(part for part in expected if part.startswith(key))
        theirs = [expected[part].reshape(len(BOXES), -1, ours.shape[-1]) for part in levels]
        np.testing.assert_allclose(ours, np.concatenate(theirs, axis=1), rtol=0, atol=2e-4)
    for image, count in enumerate(expected["num_detections"]):
        # The original takes four zeros for padding: a box above and left of the image is lost.
        shown = np.asarray(detections.boxes[image]).any(axis=1)
        assert shown.sum() == count
        for ours, theirs, tolerance in (
            (detections.scores[image], "detection_scores", 2e-5),
            (SIDE * detections.boxes[image], "detection_boxes", 2e-3),
        ):
            wanted = expected[theirs][image][:count]
            np.testing.assert_allclose(ours[shown], wanted, rtol=0, atol=tolerance)


# Of both SpineNets the losses differ by 2e-5 in the first step, and by 2 % in the third.
@pytest.mark.parametrize("name", slow_but(FAST[:1], CASES[:5]))
def test_three_steps_are_those_of_the_original(name: str) -> None:
    """Losses, penalty, and the variables after the last step."""
    built, expected = experiment(name), golden(name)
    program = train_program(plan_training(built, build_mesh(len(BOXES), built.devices)))
    _, _, _, names = described(name)
    loss_state = initial_loss_state(built.model.loss)
    first = create_state(*weights(name), built.train, program.trainable, loss_state)
    compiled, state = program.lower().compile(), program.put_state(first)
    data, rows = program.put_batch(batch(program.batch.boxes.shape[1])), []
    for _ in range(STEPS):
        state, metrics = compiled(state, data)
        rows.append({name: float(value) for name, value in metrics.items()})
    classification, boxes, model, total = expected["losses"].T
    ours = {key: np.array([row[key] for row in rows]) for key in rows[0]}
    np.testing.assert_allclose(ours["classification_loss"], classification, rtol=2e-5)
    np.testing.assert_allclose(ours["localization_loss"], 50 * boxes, rtol=2e-5)
    if name not in UNREAD:
        np.testing.assert_allclose(ours["regularization_loss"], total - model, rtol=2e-5)
    theirs = dict(zip(variables(name), expected["trained"], strict=True))
    for path, array in (state.params | state.stats).items():
        wanted = theirs[names[path]]
        np.testing.assert_allclose(
            samples(np.asarray(array)), wanted, rtol=0, atol=2e-5 * wanted[0], err_msg=path
        )
