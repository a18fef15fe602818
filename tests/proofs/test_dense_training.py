"""Update rules, averages and schedules of mmengine, mmdet, torchvision and rfdetr, executed.

The numbers come from float64 runs; our arithmetic is float32.
"""

from typing import Any

import jax.numpy as jnp
import numpy as np
import optax
import pytest

from stillbox.experiment import schema
from stillbox.training.optimizer import build_optimizer, build_schedule, decay_factors, rate_factors
from stillbox.training.state import average_parameters
from tests.proofs.test_dense_parts import cases, drawn, expected, names
from tests.small import needs_shared

pytestmark = [needs_shared, pytest.mark.proof]

# Modules of the original, and what ours have in their place.
OUR_NAMES = {
    "bn.weight": "conv.norm.scale",
    "bn.bias": "conv.norm.bias",
    "gn.weight": "conv.norm.scale",
    "gn.bias": "conv.norm.bias",
    "scale.scale": "scale_0",
    "conv.weight": "conv.kernel",
    "fc.weight": "fc.kernel",
}


def our_path(name: str) -> str:
    part, _, rest = name.partition(".")
    return f"{part}.{OUR_NAMES.get(rest, rest)}"


def groups(case: dict[str, Any]) -> tuple[schema.ParameterGroup, ...]:
    keys = (case["inputs"]["paramwise_cfg"] or {}).get("custom_keys", {})
    return tuple(
        schema.ParameterGroup(
            pattern=key,
            learning_rate_multiplier=given.get("lr_mult", 1.0),
            decay_multiplier=given.get("decay_mult", 1.0),
        )
        for key, given in sorted(keys.items(), key=lambda item: (-len(item[0]), item[0]))
    )


def adamw(case: dict[str, Any]) -> schema.AdamW:
    given, only = case["inputs"]["optimizer"], case["inputs"]["paramwise_cfg"] or {}
    torchvision = case["source"].startswith("torchvision")
    return schema.AdamW(
        schedule=schema.ConstantSchedule(learning_rate=given["lr"]),
        weight_decay=given["weight_decay"],
        beta1=given["betas"][0],
        beta2=given["betas"][1],
        epsilon=given["eps"],
        norm_decay_multiplier=0 if torchvision else only.get("norm_decay_mult", 1.0),
        bias_decay_multiplier=only.get("bias_decay_mult", 1.0),
        # The original's scales are neither norms nor biases.
        scale_decay_multiplier=1.0,
        groups=groups(case),
    )


def coupled_sgd(case: dict[str, Any]) -> schema.Momentum:
    given = case["inputs"]["optimizer"]
    schedule = schema.ConstantSchedule(learning_rate=given["lr"])
    return schema.Momentum(schedule=schedule, momentum=given["momentum"], groups=groups(case))


@pytest.mark.parametrize("name", names("optimiser"))
def test_update_rules(name: str) -> None:
    case = cases()[name]
    given, out = case["inputs"], case["out"]
    shapes = {our_path(path): shape for path, shape in given["parameters_in_order"]}
    first, later = (np.random.RandomState(given["seed"] + n) for n in (0, 1))
    params = {path: normal(first, shape) for path, shape in shapes.items()}
    clip = (given["clip_grad"] or {}).get("max_norm", 0.0)
    sgd = given["optimizer"]["type"] == "SGD"
    config = coupled_sgd(case) if sgd else adamw(case)
    train = schema.Training(optimizer=config, gradient_clip_norm=clip)
    optimizer = build_optimizer(train)
    state = optimizer.init(params)
    for step in range(given["steps"]):
        gradient = {path: normal(later, shape) for path, shape in shapes.items()}
        norm = np.sqrt(sum(float(jnp.sum(array**2)) for array in gradient.values()))
        assert norm == pytest.approx(out["gradient_norm_before_clip"][step], rel=1e-6)
        if sgd:  # our penalties are in the loss
            for path, group in out["groups"].items():
                ours = our_path(path)
                gradient[ours] = gradient[ours] + group["weight_decay"] * params[ours]
        updates, state = optimizer.update(gradient, state, params)
        params = optax.apply_updates(params, updates)
        for path, wanted in out.get(f"after_step_{step + 1}", {}).items():
            got = np.asarray(params[our_path(path)])
            np.testing.assert_allclose(got, expected(wanted), atol=1e-6, rtol=1e-6, err_msg=path)


@pytest.mark.parametrize(
    "name",
    [name for name in names("optimiser") if cases()[name]["inputs"]["optimizer"]["type"] != "SGD"],
)
def test_groups(name: str) -> None:
    case = cases()[name]
    config, wanted = adamw(case), case["out"]["groups"]
    paths = [our_path(path) for path in wanted]
    rates, decays = rate_factors(config, paths, ()), decay_factors(config, paths)
    for path, group in wanted.items():
        ours, rate = our_path(path), case["inputs"]["optimizer"]["lr"]
        assert rates[ours] * rate == pytest.approx(group["lr"])
        assert decays[ours] * config.weight_decay == pytest.approx(group["weight_decay"])


def normal(rng: np.random.RandomState, shape: list[int]) -> jnp.ndarray:
    return jnp.asarray(rng.standard_normal(shape), jnp.float32)


def averaging(case: dict[str, Any]) -> schema.Training:
    given = case["inputs"]["arguments"]
    if case["source"].startswith("rfdetr"):
        ramp = {"ema_decay": given["decay"], "ema_tau": given["tau"], "ema_statistics": True}
        return schema.Training(**ramp)
    ramped = case["source"].endswith("ExpMomentumEMA")
    return schema.Training(
        ema_decay=1 - given.get("momentum", 2e-4),
        ema_tau=given.get("gamma", 2000) if ramped else 0.0,
        ema_copy_first=True,
        ema_interval=given.get("interval", 1),
        ema_statistics=given.get("update_buffers", False),
    )


@pytest.mark.parametrize("name", names("ema"))
def test_averages(name: str) -> None:
    case = cases()[name]
    weights, buffers = (
        jnp.asarray(drawn(case["inputs"][key]), jnp.float32)
        for key in ("source_weights", "source_buffers")
    )
    train = averaging(case)
    average = {"weight": weights[0], "buffer": buffers[0]}
    for step in range(case["inputs"]["steps"]):
        now = {"weight": weights[step + 1], "buffer": buffers[step + 1]}
        average = average_parameters(average, now, jnp.asarray(step), train)
        if not train.ema_statistics:
            average["buffer"] = now["buffer"]
        for key, array in average.items():
            wanted = case["out"][f"averaged_{key}_after_each"][step]
            np.testing.assert_allclose(array, wanted, rtol=1e-6, atol=1e-6, err_msg=key)


def piecewise(case: dict[str, Any]) -> schema.ManualStepSchedule:
    given, each = case["inputs"], case["inputs"]["iterations_per_epoch"]
    base, (*warm, steps) = given["base_lr"], given["schedulers"]
    drops = [epoch * each for epoch in steps["milestones"]]
    rates = [base * steps["gamma"] ** (n + 1) for n in range(len(drops))]
    pairs = list(zip(drops, rates, strict=True))
    start = base
    if warm:
        # The rate of the warm-up's last iteration is the full one.
        pairs.insert(0, (warm[0]["end"] - 1, base))
        start = base * warm[0]["start_factor"]
    boundaries = tuple(schema.ScheduleStep(step=s, learning_rate=r) for s, r in pairs)
    return schema.ManualStepSchedule(learning_rate=start, schedule=boundaries, warmup=bool(warm))


def cosine(case: dict[str, Any]) -> schema.CosineSchedule:
    warm, fall = case["inputs"]["schedulers"]
    base, length = case["inputs"]["base_lr"], warm["end"] - 1
    return schema.CosineSchedule(
        learning_rate=base,
        warmup_learning_rate=base * warm["start_factor"],
        warmup_steps=length,
        hold_steps=fall["begin"] - length,
        total_steps=fall["begin"] + fall["T_max"],
        final_learning_rate=fall["eta_min"],
    )


@pytest.mark.parametrize("name", names("schedule"))
def test_schedules(name: str) -> None:
    case = cases()[name]
    falls = case["inputs"]["schedulers"][-1]["type"] == "CosineAnnealingLR"
    rate = build_schedule((cosine if falls else piecewise)(case))
    got = [float(rate(step)) for step in range(case["inputs"]["steps"])]
    np.testing.assert_allclose(got, case["out"]["lr_at_iteration"], rtol=2e-6)
