"""What a training state holds, and for which parameters."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from stillbox.errors import UserError
from stillbox.experiment import schema
from stillbox.training.state import create_state, select_trained

PARAMS = {name: jnp.full(3, value) for name, value in [("a.kernel", 1.0), ("b.kernel", 2.0)]}
STATS = {"a.norm.mean": jnp.zeros(3)}
ALL = frozenset(PARAMS)


def accumulators(state):
    return [leaf for leaf in jax.tree.leaves(state.optimizer) if leaf.shape]


def test_a_fresh_state_is_at_step_0_with_an_accumulator_for_each_parameter():
    state = create_state(PARAMS, STATS, schema.Training(), ALL)
    assert state.step == 0
    assert state.params is PARAMS
    assert state.stats is STATS
    assert len(accumulators(state)) == 2


def test_frozen_parameters_are_kept_but_have_no_accumulator():
    state = create_state(PARAMS, STATS, schema.Training(), frozenset(["a.kernel"]))
    assert state.params.keys() == PARAMS.keys()
    assert len(accumulators(state)) == 1


def test_an_average_starts_as_a_copy_and_is_there_only_where_it_is_wanted():
    assert create_state(PARAMS, STATS, schema.Training(), ALL).ema == {}
    ema = create_state(PARAMS, STATS, schema.Training(ema_decay=0.9), ALL).ema
    assert ema.keys() == PARAMS.keys()
    for name, array in ema.items():
        np.testing.assert_array_equal(array, PARAMS[name])
        # The step gives both away, and one buffer can be given away once.
        assert array.unsafe_buffer_pointer() != PARAMS[name].unsafe_buffer_pointer()


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
    assert select_trained(["a.kernel", "b.kernel", "head.bias"], names, settings) == trained


def test_a_pattern_without_a_match_shows_what_paths_look_like():
    with pytest.raises(UserError) as caught:
        select_trained(ALL, {}, schema.Training(trainable=("c.kernel",)))
    assert caught.value.where == "train.trainable"
    assert caught.value.fix == "paths look like a.kernel, b.kernel"
