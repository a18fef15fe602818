"""What a training state holds, and for which parameters."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from stillbox.checkpoints.names import reference_names
from stillbox.errors import UserError
from stillbox.experiment import schema
from stillbox.experiment.resolve import resolve
from stillbox.models.build import build_detector
from stillbox.models.variables import split_detector
from stillbox.training.state import average_parameters, create_state, select_trainable
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
        # The step gives both away, and one buffer can be given away once.
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
    model = resolve("ssd_mobilenet_v1_300x300", SMALL).experiment.model
    _, params, _ = split_detector(build_detector(model))
    return params, reference_names(model, params)


@pytest.mark.parametrize(
    ("pattern", "left"),
    [
        # As people write them for the original: everything but the heads.
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
    with pytest.raises(UserError) as caught:
        select_trainable(ALL, {}, schema.Training(trainable=("c.kernel",)))
    assert caught.value.where == "train.trainable"
    assert caught.value.fix == "paths look like a.kernel, b.kernel"


def test_an_average_of_matches_is_kept_only_where_the_loss_divides_by_one(experiment):
    plain, averaged = experiment(), experiment("model.loss.normalizer_momentum=0.9")
    assert build_detector(plain.model).initial_loss_state() == {}
    state = build_detector(averaged.model).initial_loss_state()
    assert create_state(PARAMS, STATS, schema.Training(), ALL, state).loss == {"matches": 0}
