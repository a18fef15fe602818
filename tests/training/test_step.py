"""The training state, one step, the guard of its metrics, and the memory of targets and losses."""

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from stillbox.checkpoints.names import reference_names
from stillbox.cli.overrides import changes_of
from stillbox.errors import UserError
from stillbox.experiment import schema
from stillbox.experiment.resolve import resolve
from stillbox.inputs.dataset import open_dataset
from stillbox.inputs.loader import EvalLoader, TrainLoader
from stillbox.models.anchors import build_anchors
from stillbox.models.build import build_detector
from stillbox.models.detector import Predictions, detect_function
from stillbox.models.one_stage.loss import batch_targets
from stillbox.models.variables import split_detector
from stillbox.training.guard import MetricsGuard, NonFiniteLossError
from stillbox.training.state import average_parameters, create_state
from stillbox.training.step import make_train_step
from stillbox.training.trainable import select_trainable
from tests.batches import batch_of
from tests.helpers import refusal
from tests.matched import loss_terms
from tests.small import SMALL

PARAMS = {name: jnp.full(3, value) for name, value in [("a.kernel", 1.0), ("b.kernel", 2.0)]}
STATS = {"a.norm.mean": jnp.zeros(3)}
ALL = frozenset(PARAMS)


def accumulators(state):
    return [leaf for leaf in jax.tree.leaves(state.optimizer) if leaf.shape]


def test_a_fresh_state_is_at_step_0_with_an_accumulator_for_each_parameter():
    state = create_state(PARAMS, STATS, schema.Training(), ALL, {})
    assert state.step == 0
    assert state.params is PARAMS
    assert state.stats is STATS
    assert len(accumulators(state)) == 2


def test_frozen_parameters_are_kept_but_have_no_accumulator():
    state = create_state(PARAMS, STATS, schema.Training(), frozenset(["a.kernel"]), {})
    assert state.params.keys() == PARAMS.keys()
    assert len(accumulators(state)) == 1


def test_an_average_starts_as_a_copy_and_is_there_only_where_it_is_wanted():
    assert create_state(PARAMS, STATS, schema.Training(), ALL, {}).ema == {}
    ema = create_state(PARAMS, STATS, schema.Training(ema_decay=0.9), ALL, {}).ema
    assert ema.keys() == PARAMS.keys()
    for name, array in ema.items():
        np.testing.assert_array_equal(array, PARAMS[name])
        # The step donates both, and a buffer can be donated only once.
        assert array.unsafe_buffer_pointer() != PARAMS[name].unsafe_buffer_pointer()


def test_an_average_from_zero_leaves_frozen_parameters_as_they_are():
    train = schema.Training(ema_decay=0.9, ema_warmup=True, ema_from_zero=True)
    state = create_state(PARAMS, STATS, train, frozenset(["a.kernel"]), {})
    np.testing.assert_array_equal(state.ema["a.kernel"], np.zeros(3))
    # 9 / 11 of the first value that is counted: d = 2 / 11. Frozen ones stay their own average.
    for step in range(3):
        ema = average_parameters(state.ema, PARAMS, jnp.asarray(step), train)
        np.testing.assert_array_equal(ema["b.kernel"], PARAMS["b.kernel"])
        if step == 0:
            np.testing.assert_allclose(ema["a.kernel"], np.full(3, 9 / 11), rtol=1e-6)
        state = state._replace(ema=ema)


def test_a_warm_up_from_the_first_parameters_counts_the_steps_before():
    train = schema.Training(ema_decay=0.9, ema_warmup=True)
    zeros = {name: array * 0 for name, array in PARAMS.items()}
    # d = min(.9, 1 / 10) and min(.9, 2 / 11), of stored experiments too.
    for step, left in ((0, 0.9), (1, 9 / 11)):
        ema = average_parameters(zeros, PARAMS, jnp.asarray(step), train)
        np.testing.assert_allclose(ema["a.kernel"], np.full(3, left), rtol=1e-6)


@pytest.mark.parametrize(
    ("trainable", "freeze", "trained"),
    [
        ((), (), {"a.kernel", "b.kernel", "head.bias"}),
        ((r"kernel$",), (), {"a.kernel", "b.kernel"}),
        ((), ("^a", "^head"), {"b.kernel"}),
        ((r"kernel$",), ("^a",), {"b.kernel"}),
        (("OriginalHead",), (), {"head.bias"}),
    ],
)
def test_trainable_chooses_and_freeze_takes_away(trainable, freeze, trained):
    settings = schema.Training(trainable=trainable, freeze=freeze)
    names = {"head.bias": "OriginalHead/biases"}
    assert select_trainable(["a.kernel", "b.kernel", "head.bias"], names, settings) == trained


@pytest.fixture(scope="module")
def ssd():
    """Paths and TF1 names of the parameters of an SSD MobileNet v1."""
    model = resolve("ssd_mobilenet_v1_300x300", changes_of(SMALL)).experiment.model
    _, params, _ = split_detector(build_detector(model))
    return params, reference_names(model, params)


@pytest.mark.parametrize(
    ("pattern", "left"),
    [
        # Users write such patterns for the original: everything but the heads.
        ("FeatureExtractor", ("head.",)),
        (".*FeatureExtractor.*", ("head.",)),
        ("^FeatureExtractor/", ("head.",)),
        ("BoxPredictor_", ("backbone.", "neck.")),
    ],
)
def test_patterns_of_real_configs_mean_the_names_in_tf1_checkpoints(ssd, pattern, left):
    params, names = ssd
    trained = select_trainable(params, names, schema.Training(freeze=(pattern,)))
    assert trained == {path for path in params if path.startswith(left)}
    opposite = select_trainable(params, names, schema.Training(trainable=(pattern,)))
    assert opposite == params.keys() - trained


def test_a_single_layer_is_frozen_by_its_name_in_tf1(ssd):
    params, names = ssd
    pattern = "FeatureExtractor/MobilenetV1/Conv2d_1_(depthwise|pointwise)/"
    trained = select_trainable(params, names, schema.Training(freeze=(pattern,)))
    frozen = {path.rpartition(".")[0].removesuffix(".norm") for path in params.keys() - trained}
    assert frozen == {"backbone.conv_1_depthwise", "backbone.conv_1_pointwise"}


def test_a_pattern_without_a_match_shows_what_paths_look_like():
    error = refusal(select_trainable, ALL, {}, schema.Training(trainable=("c.kernel",)))
    assert error.where == "train.trainable"
    assert error.fix == "paths look like a.kernel, b.kernel"


def test_an_average_of_matches_is_kept_only_where_the_loss_divides_by_one(experiment):
    plain, averaged = experiment(), experiment("model.loss.normalizer_momentum=0.9")
    assert build_detector(plain.model).initial_loss_state() == {}
    state = build_detector(averaged.model).initial_loss_state()
    assert create_state(PARAMS, STATS, schema.Training(), ALL, state).loss == {"matches": 0}


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
def test_useless_patterns_are_refused(settings, message):
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
    # bfloat16 has 8 bits of mantissa: a sum of many terms is exact to about 1 %.
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


def metrics(loss, finite=True):
    return {"loss": jnp.float32(loss), "finite": jnp.asarray(finite)}


@pytest.fixture
def guard():
    return MetricsGuard(lambda records: [f"image {record}" for record in records])


def test_the_newest_step_is_not_waited_for(guard):
    assert guard.pop() == []
    for step in (1, 2, 3):
        guard.push(step, metrics(step / 2), np.array([0]))
    assert guard.pop() == [(1, {"loss": 0.5}), (2, {"loss": 1.0})]
    assert guard.pop() == []
    assert guard.pop(leave=0) == [(3, {"loss": 1.5})]


def test_the_first_bad_step_is_named_though_later_ones_are_bad_too(guard):
    guard.push(1, metrics(1.0), np.array([0]))
    guard.push(2, metrics(np.nan, finite=False), np.array([4, 5]))
    guard.push(3, metrics(np.nan, finite=False), np.array([6, 7]))
    with pytest.raises(NonFiniteLossError, match="step 2: ") as caught:
        guard.pop(leave=0)
    assert "  loss nan\n  images of the batch:\n    image 4\n    image 5\n" in str(caught.value)


def test_a_bad_gradient_under_a_sound_loss_is_bad(guard):
    guard.push(9, metrics(1.25, finite=False), jnp.array([3]))
    with pytest.raises(NonFiniteLossError, match=r"step 9(.|\n)*loss 1.25(.|\n)*image 3"):
        guard.pop(leave=0)


IMAGES, BOXES, SLOTS = 4, 60, 31
MODEL = schema.OneStage(
    num_classes=SLOTS - 1,
    anchors=schema.MultiscaleAnchors(min_level=3, max_level=3, scales_per_octave=3),
    matcher=schema.ArgmaxMatcher(force_match_for_each_row=True),
    loss=schema.Loss(
        classification=schema.SigmoidFocalLoss(alpha=0.25), encode_background_as_zeros=True
    ),
)
# 16 x 16 locations with nine anchors each.
ANCHORS = build_anchors(MODEL.anchors, ((16, 16),), (128, 128))
FLOAT = 4


def large_batch():
    images = np.zeros((IMAGES, 1, 1, 3), np.float32)
    return batch_of(images, np.zeros((IMAGES, BOXES, 4)), np.zeros((IMAGES, BOXES)))


def temporary_bytes(function, *arguments):
    return jax.jit(function).lower(*arguments).compile().memory_analysis().temp_size_in_bytes


@pytest.mark.parametrize(
    "similarity", [schema.IouSimilarity(), schema.IoaSimilarity(), schema.NegSqDistSimilarity()]
)
def test_targets_hold_no_matrix_of_boxes_and_anchors(similarity):
    model = replace(MODEL, similarity=similarity)
    size = temporary_bytes(lambda batch: batch_targets(batch, ANCHORS, model), large_batch())
    # The matrix would have 60 numbers for each anchor; a few numbers for the best box are enough.
    assert size < IMAGES * len(ANCHORS) * BOXES * FLOAT / 4


def test_the_focal_loss_keeps_nothing_as_large_as_the_logits_for_its_gradient():
    predictions = Predictions(
        jnp.zeros((IMAGES, len(ANCHORS), 4)), jnp.zeros((IMAGES, len(ANCHORS), SLOTS))
    )

    def loss(predictions, batch):
        parts = loss_terms(predictions, batch, ANCHORS, MODEL)
        return parts.classification + parts.localization

    size = temporary_bytes(jax.value_and_grad(loss), predictions, large_batch())
    assert size < IMAGES * len(ANCHORS) * SLOTS * FLOAT
