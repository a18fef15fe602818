"""One step: what it changes, what it refuses, how often it compiles."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from stillbox.errors import UserError
from stillbox.experiment import schema
from stillbox.inputs.dataset import open_dataset
from stillbox.inputs.loader import EvalLoader, TrainLoader
from stillbox.models.build import build_detector
from stillbox.models.detector import detect_function
from stillbox.models.variables import split_detector
from stillbox.training.guard import MetricsGuard, NonFiniteLossError
from stillbox.training.state import create_state, select_trainable
from stillbox.training.step import make_train_step


class Parts:
    """A small detector with its state and its compiled step."""

    def __init__(self, experiment, *, freeze=()):
        train = experiment.train
        self.detector = build_detector(experiment.model, seed=3)
        self.graph, params, stats = split_detector(self.detector)
        patterns = schema.Training(freeze=freeze)
        self.trainable = select_trainable(params, {}, patterns)
        self.state = create_state(
            params, stats, train, self.trainable, self.detector.initial_loss_state()
        )
        self.step = jax.jit(make_train_step(self.graph, train, self.trainable))


@pytest.fixture
def small(experiment):
    return experiment(evaluated=False)


@pytest.fixture
def batch(small):
    dataset = open_dataset(small.data, small.data.train, small.model)
    return TrainLoader(dataset, batch_size=4, workers=0).batch(0)


def test_train_and_eval_step_compile_once_over_an_epoch_of_varying_boxes(experiment):
    small = experiment("data.train.num_epochs=1")
    parts = Parts(small)
    train_set = open_dataset(small.data, small.data.train, small.model)
    eval_set = open_dataset(small.data, small.data.evaluation, small.model)
    detect = jax.jit(detect_function(parts.graph))
    state, box_counts, fillers = parts.state, set(), 0
    for batch in TrainLoader(train_set, batch_size=4, workers=0).iterate():
        box_counts.add(int((batch.weights > 0).sum()))
        fillers += int((batch.records < 0).sum())
        state, _ = parts.step(state, batch)
    for batch in EvalLoader(eval_set, batch_size=4, workers=0):
        fillers += int((batch.records < 0).sum())
        detect(state.params, state.stats, batch.images, batch.true_sizes)
    assert len(box_counts) > 1
    assert fillers == 2 + 2  # 10 and 6 images in batches of 4
    assert parts.step._cache_size() == 1
    assert detect._cache_size() == 1


def test_a_batch_without_any_box_still_teaches(small, batch):
    parts = Parts(small)
    background = batch._replace(weights=np.zeros_like(batch.weights), boxes=batch.boxes * 0)
    state, metrics = parts.step(parts.state, background)
    assert metrics["matched_anchors"] == 0
    assert metrics["localization_loss"] == 0
    assert metrics["classification_loss"] > 0
    head = "head.map_0.class_.kernel"
    assert np.abs(np.asarray(state.params[head] - parts.state.params[head])).max() > 0


def test_rows_that_only_fill_up_change_nothing(small, batch):
    parts = Parts(small)
    kept = np.array([1, 1, 0, 0], np.float32)
    masked = batch._replace(image_weights=kept)
    other = masked._replace(boxes=np.concatenate([batch.boxes[:2], 1 - batch.boxes[2:, :, ::-1]]))
    assert parts.step(parts.state, masked)[1]["loss"] == parts.step(parts.state, other)[1]["loss"]


def test_frozen_parameters_keep_their_bits_and_others_move(small, batch):
    parts = Parts(small, freeze=("^backbone",))
    state, _ = parts.step(parts.state, batch)
    for path, before in parts.state.params.items():
        same = np.array_equal(before, state.params[path])
        assert same == path.startswith("backbone"), path


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (schema.Training(freeze=("bakbone",)), r"'bakbone' matches no parameter"),
        (schema.Training(freeze=(".",)), "no parameter is left to train"),
    ],
)
def test_patterns_that_cannot_be_meant_are_refused(settings, message):
    with pytest.raises(UserError, match=message):
        select_trainable(["backbone.conv_0.kernel"], {}, settings)


def test_patterns_also_match_the_names_of_the_original():
    names = {"backbone.conv_0.kernel": "FeatureExtractor/MobilenetV1/Conv2d_0/weights"}
    settings = schema.Training(trainable=("FeatureExtractor/",))
    paths = ["backbone.conv_0.kernel", "head.map_0.box.bias"]
    assert select_trainable(paths, names, settings) == {"backbone.conv_0.kernel"}


def test_a_loss_that_is_not_finite_leaves_the_state_and_names_the_images(small, batch):
    parts = Parts(small)
    poisoned = batch._replace(images=batch.images * np.float32("nan"))
    state, metrics = parts.step(parts.state, poisoned)
    assert not metrics["finite"]
    for before, after in zip(jax.tree.leaves(parts.state), jax.tree.leaves(state), strict=True):
        np.testing.assert_array_equal(before, after)
    guard = MetricsGuard(lambda records: [f"image {record}" for record in records])
    guard.push(7, metrics, batch.records)
    assert guard.pop() == []  # the newest step is not waited for
    with pytest.raises(NonFiniteLossError) as caught:
        guard.pop(leave=0)
    message = str(caught.value)
    assert message.startswith(
        "step 7: the loss, its gradient or the new parameters are not finite\n  "
    )
    assert "classification_loss nan" in message
    assert f"image {batch.records[0]}" in message


def test_bfloat16_computes_close_to_float32_with_float32_parameters(small, batch):
    exact = Parts(small)
    detector = build_detector(small.model, seed=3, dtype=jnp.bfloat16)
    graph, params, _ = split_detector(detector)
    step = jax.jit(make_train_step(graph, small.train, exact.trainable))
    state, metrics = step(exact.state, batch)
    assert {array.dtype for array in params.values()} == {jnp.dtype("float32")}
    assert {array.dtype for array in state.params.values()} == {jnp.dtype("float32")}
    # bfloat16 has 8 bits of mantissa: 1 % on a sum of many terms is what it can do.
    np.testing.assert_allclose(
        metrics["loss"], exact.step(exact.state, batch)[1]["loss"], rtol=2e-2
    )


def test_the_step_keeps_the_average_of_matches(experiment, batch):
    parts = Parts(experiment("model.loss.normalizer_momentum=0.75", evaluated=False))
    state, first = parts.step(parts.state, batch)
    fewer = batch._replace(weights=batch.weights * (np.arange(4) < 2)[:, None])
    after, second = parts.step(state, fewer)
    ones, twos = float(first["matched_anchors"]), float(second["matched_anchors"])
    assert 0 < twos < ones
    # 0 and a quarter of the first, three quarters of that and a quarter of the second.
    assert float(state.loss["matches"]) == pytest.approx(ones / 4)
    assert float(after.loss["matches"]) == pytest.approx(ones * 3 / 16 + twos / 4)
