"""Update rules, rates, clipping and averages beside the executed originals, for 60 steps.

Each golden row is the rate, the 17 parameters after the step and, where there is one, their moving
average.
"""

import json
from collections.abc import Mapping
from functools import cache

import jax
import numpy as np
import optax
import pytest

from stillbox.experiment.pipeline_config import read_pipeline_config
from stillbox.experiment.resolve import resolve
from stillbox.experiment.schema import Training
from stillbox.training.optimizer import build_optimizer, build_schedule
from stillbox.training.state import average_parameters, create_state
from tests.training.test_trajectories import GOLDENS

STEPS = 60
# A model of each generation; its file gets the training of a case.
CONFIGS = {"tf1": "a_ssd_mobilenet_v1_rmsprop", "tf2": "f_ssd_mobilenet_v2_fpnlite_keras"}

_MOMENTUM = "momentum_optimizer { learning_rate { %s } momentum_optimizer_value: 0.9 }"
_RMS = (
    "rms_prop_optimizer { learning_rate { %s } momentum_optimizer_value: 0.9 decay: 0.8 "
    "epsilon: 0.01 }"
)
_ADAM = "adam_optimizer { learning_rate { %s } epsilon: 1e-4 }"
_FALL = "initial_learning_rate: 0.05 decay_steps: 7 decay_factor: 0.7 burnin_steps: 9"
_EXPONENTIAL = f"exponential_decay_learning_rate {{ {_FALL} min_learning_rate: 0.01 %s }}"
_STAIRS = _EXPONENTIAL % "burnin_learning_rate: 0.02 staircase: true"
_SMOOTH = _EXPONENTIAL % "burnin_learning_rate: 0.02 staircase: false"
_BELOW_ITS_LEAST = _EXPONENTIAL % "burnin_learning_rate: 0.004"
_COSINE = (
    "cosine_decay_learning_rate { learning_rate_base: 0.05 total_steps: 50 "
    "warmup_learning_rate: 0.01 warmup_steps: 11 hold_base_rate_steps: %d }"
)
_MANUAL = (
    "manual_step_learning_rate { initial_learning_rate: 0.01 "
    "schedule { step: 12 learning_rate: 0.05 } schedule { step: 30 learning_rate: 0.005 } "
    "schedule { step: 45 learning_rate: 0.0005 } warmup: %s }"
)
_AVERAGE, _NONE = "use_moving_average: true moving_average_decay: 0.9", "use_moving_average: false"
CASES = {
    "momentum_exp": (_MOMENTUM % _STAIRS, _AVERAGE, 0),
    "momentum_exp_smooth": (_MOMENTUM % _SMOOTH, _NONE, 0),
    "momentum_exp_floor": (_MOMENTUM % _BELOW_ITS_LEAST, _NONE, 0),
    "momentum_cosine": (_MOMENTUM % (_COSINE % 0), _NONE, 1.0),
    "momentum_cosine_hold": (_MOMENTUM % (_COSINE % 8), _AVERAGE, 1.0),
    "momentum_manual": (_MOMENTUM % (_MANUAL % "false"), _NONE, 0),
    "momentum_manual_warmup": (_MOMENTUM % (_MANUAL % "true"), _NONE, 1.5),
    "rms_exp": (_RMS % _STAIRS, _AVERAGE, 0),
    "rms_cosine": (_RMS % (_COSINE % 0), _NONE, 1.0),
    "adam_cosine": (_ADAM % (_COSINE % 0), _AVERAGE, 0),
    "adam_manual": (_ADAM % (_MANUAL % "true"), _NONE, 1.0),
}
_STEPS_OF_TPU = {
    "type": "step",
    "warmup_learning_rate": 0.004,
    "warmup_steps": 11,
    "init_learning_rate": 0.05,
    "learning_rate_levels": [0.01, 0.002],
    "learning_rate_steps": [30, 45],
}
_COSINE_OF_TPU = {
    "type": "cosine",
    "warmup_learning_rate": 0.004,
    "warmup_steps": 11,
    "init_learning_rate": 0.05,
}
TPU_CASES = {
    "momentum_step": ("momentum", _STEPS_OF_TPU, 1.0),
    "momentum_cosine": ("momentum", _COSINE_OF_TPU, 0.0),
    "momentum_one_step_of_warmup": ("momentum", _STEPS_OF_TPU | {"warmup_steps": 1}, 0.0),
    "adam_step": ("adam", _STEPS_OF_TPU, 0.0),
    "adagrad_step": ("adagrad", _STEPS_OF_TPU, 0.0),
    "adadelta_step": ("adadelta", _STEPS_OF_TPU | {"init_learning_rate": 1.0}, 0.0),
    "rmsprop_cosine": ("rmsprop", _COSINE_OF_TPU, 1.0),
}
ALL = [
    *(("tf1", name) for name in CASES),
    # TF2's RMSProp takes `decay` for the decay of the rate, which is an error of the original.
    *(("tf2", name) for name in CASES if not name.startswith("rms")),
    *(("tpu", name) for name in TPU_CASES),
]


def training_of_pipeline(program: str, name: str) -> Training:
    rule, average, clip = CASES[name]
    text = (GOLDENS / f"{CONFIGS[program]}.config").read_text()
    model, inputs = text[: text.index("train_config")], text[text.index("train_input_reader") :]
    clipping = f"gradient_clipping_by_norm: {clip}" * bool(clip)
    train = f"train_config {{ num_steps: {STEPS} optimizer {{ {rule} {average} }} {clipping} }}"
    return read_pipeline_config(f"{model}\n{train}\n{inputs}", name).experiment.train


def training_of_tpu(folder, name: str) -> Training:
    rule, rate, clip = TPU_CASES[name]
    train = {
        "total_steps": STEPS,
        "gradient_clip_norm": clip,
        "optimizer": {"type": rule, "momentum": 0.8},
        "learning_rate": rate,
    }
    file = folder / f"{name}.yaml"
    given = {"type": "retinanet", "architecture": {"use_bfloat16": False}, "train": train}
    file.write_text(json.dumps(given))
    return resolve(file).experiment.train


@cache
def golden(program: str) -> Mapping[str, np.ndarray]:
    with np.load(GOLDENS / f"optim_{program}.npz") as file:
        return dict(file)


def trajectories(trains: Mapping[str, Training]) -> dict[str, np.ndarray]:
    """Rows as in the goldens; one program updates the parameters of all cases."""
    rng = np.random.RandomState(5)
    kernel, bias = rng.randn(4, 3).astype(np.float32), rng.randn(5).astype(np.float32)
    first = {"a.kernel": kernel, "b.bias": bias}
    states = {
        name: create_state(first, {}, train, frozenset(first), {}) for name, train in trains.items()
    }

    @jax.jit
    def step(states, gradients):
        after = {}
        for name, train in trains.items():
            state, gradient = states[name], gradients[name]
            updates, accumulators = build_optimizer(train).update(
                gradient, state.optimizer, state.params
            )
            params = optax.apply_updates(state.params, updates)
            ema = average_parameters(state.ema, params, state.step, train)
            after[name] = state._replace(
                step=state.step + 1, params=params, optimizer=accumulators, ema=ema
            )
        rates = {
            name: build_schedule(train.optimizer.schedule)(states[name].step)
            for name, train in trains.items()
        }
        return after, rates

    rows = {name: [] for name in trains}
    for number in range(STEPS):
        # The gradients depend on the parameters, so that an error would grow.
        gradients = {
            name: _gradient(number, jax.device_get(state.params)) for name, state in states.items()
        }
        states, rates = step(states, gradients)
        for name, state in jax.device_get(states).items():
            arrays = [*state.params.values(), *state.ema.values()]
            rows[name].append(np.concatenate([[rates[name]], *map(np.ravel, arrays)]))
    return {name: np.array(lines) for name, lines in rows.items()}


def _gradient(number: int, params: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    rng = np.random.RandomState(1000 + number)
    return {
        path: (0.5 * rng.randn(*array.shape) + 0.3 * array).astype(np.float32)
        for path, array in sorted(params.items())
    }


@pytest.fixture(scope="module")
def ours(tmp_path_factory):
    """Rows of every case, by program and name."""
    folder = tmp_path_factory.mktemp("tpu")
    return trajectories(
        {
            f"{program} {name}": training_of_tpu(folder, name)
            if program == "tpu"
            else training_of_pipeline(program, name)
            for program, name in ALL
        }
    )


@pytest.mark.parametrize(("program", "name"), ALL)
def test_sixty_updates_equal_those_of_the_executed_original(ours, program, name):
    computed, expected = ours[f"{program} {name}"], golden(program)[name]
    assert computed.shape == expected.shape
    assert len(computed) == STEPS
    # A float32 cosine near its zero is exact to some units of 1e-9.
    np.testing.assert_allclose(computed[:, 0], expected[:, 0], rtol=1e-6, atol=5e-9)
    for part in (slice(1, 18), slice(18, 35)):
        distance = np.linalg.norm(computed[:, part] - expected[:, part], axis=1)
        assert np.all(distance <= 5e-7 * np.linalg.norm(expected[:, part], axis=1))
