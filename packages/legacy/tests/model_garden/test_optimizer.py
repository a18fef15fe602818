"""Update rules and rates of Model Garden's experiments beside the executed originals."""

import json

import jax
import numpy as np
import optax
import pytest

from packages.legacy.tools.model_garden_runs import (
    GOLDENS,
    OPTIMIZER_STEPS,
    OPTIMIZERS,
    STARTS,
    gradients,
    parts,
)
from stillbox.experiment.schema import Training
from stillbox.training.optimizer import build_optimizer, build_schedule
from stillbox_legacy.model_garden import read_garden

NAMES = ("neck.a.kernel", "neck.b.kernel")


def training(name: str) -> Training:
    """The training of a case, over an experiment with an optimiser of its own."""
    fields, rate, warmup = OPTIMIZERS[name]
    kind = name.partition(" ")[0]
    given = {
        "optimizer": {"type": kind, kind: fields},
        "learning_rate": rate,
        "warmup": warmup or {"type": None},
    }
    override = json.dumps(
        {"task": {"model": {"num_classes": 2}}, "trainer": {"optimizer_config": given}}
    )
    return read_garden(
        experiment="retinanet_spinenet_coco", params_override=override
    ).experiment.train


@pytest.fixture(scope="module")
def ours() -> dict[str, np.ndarray]:
    """Rows as in the golden; one program updates the numbers of all cases."""
    trains = {name: training(name) for name in OPTIMIZERS}
    start = dict(zip(NAMES, parts(STARTS), strict=True))
    # The program also clips by the norm.
    rules = {name: build_optimizer(train) for name, train in trains.items()}
    params = dict.fromkeys(trains, start)
    states = {name: rule.init(start) for name, rule in rules.items()}

    @jax.jit
    def step(number, params, states, gradient):
        after, rates = {}, {}
        for name, rule in rules.items():
            updates, state = rule.update(gradient, states[name], params[name])
            after[name] = optax.apply_updates(params[name], updates), state
            rates[name] = build_schedule(trains[name].optimizer.schedule)(number)
        return {k: v[0] for k, v in after.items()}, {k: v[1] for k, v in after.items()}, rates

    rows: dict[str, list[np.ndarray]] = {name: [] for name in trains}
    for number in range(OPTIMIZER_STEPS):
        gradient = dict(zip(NAMES, parts(gradients(number)), strict=True))
        params, states, rates = step(number, params, states, gradient)
        for name, row in rows.items():
            row.append(np.array([rates[name], *np.concatenate([params[name][n] for n in NAMES])]))
    return {name: np.array(row) for name, row in rows.items()}


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_updates_are_those_of_the_original(ours: dict[str, np.ndarray], name: str) -> None:
    """Twelve steps: rates and parameters."""
    with np.load(GOLDENS / "optimizers.npz") as golden:
        np.testing.assert_allclose(ours[name], golden[name], rtol=2e-5, atol=2e-6)
