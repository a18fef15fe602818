"""Learning rates and update rules against the published and the executed original."""

import json
from pathlib import Path

import jax.numpy as jnp
import numpy as np
import optax
import pytest

from stillbox.experiment import schema
from stillbox.experiment.resolve import resolve
from stillbox.models.build import abstract_detector
from stillbox.training.optimizer import (
    build_optimizer,
    build_schedule,
    decay_factors,
    groups_of,
    rate_factors,
)
from tests.helpers import refusal

GOLDEN = json.loads(
    (Path(__file__).parents[1] / "goldens/training_learning_rates.json").read_text()
)


def manual(rate, *steps, warmup=False):
    schedule = tuple(schema.ScheduleStep(step=step, learning_rate=then) for step, then in steps)
    return schema.ManualStepSchedule(learning_rate=rate, schedule=schedule, warmup=warmup)


def cosine(base, total, warm, warmup_steps, hold=0):
    return schema.CosineSchedule(
        learning_rate=base,
        total_steps=total,
        warmup_learning_rate=warm,
        warmup_steps=warmup_steps,
        hold_steps=hold,
    )


GRID = {
    "ssd_mobilenet_v1_300": cosine(0.9, 20000, 0.3, 1000),
    "ppn_300": cosine(0.7, 50000, 0.1333, 2000),
    "fpn_640": cosine(0.04, 25000, 0.013333, 2000),
    "cosine_hold": cosine(0.04, 25000, 0.013333, 2000, hold=3000),
    "manual_seed": manual(0.01333, (2000, 0.04), (15000, 0.004), warmup=True),
    "manual_nowarm": manual(0.01333, (2000, 0.04), (15000, 0.004)),
    "exp": schema.ExponentialSchedule(
        learning_rate=0.004,
        decay_steps=1000,
        decay_factor=0.95,
        burnin_learning_rate=0.001,
        burnin_steps=100,
    ),
    "exp_nostair": schema.ExponentialSchedule(
        learning_rate=0.004,
        decay_steps=1000,
        decay_factor=0.95,
        staircase=False,
        min_learning_rate=0.0035,
    ),
}


def rates(schedule, steps):
    function = build_schedule(schedule)
    return np.array([float(function(step)) for step in steps])


@pytest.mark.parametrize("name", GRID)
def test_rates_equal_the_executed_original(name):
    steps = [int(step) for step in GOLDEN[name]]
    # float32 cosine near its zero: 5e-8 absolute is one part in 1e6 of the base rates.
    np.testing.assert_allclose(
        rates(GRID[name], steps), list(GOLDEN[name].values()), rtol=2e-6, atol=5e-8
    )


@pytest.mark.parametrize(
    ("schedule", "steps", "expected"),
    [
        (cosine(1.0, 100, 0.1, 9), [0, 4, 8, 9, 100, 101], [0.1, 0.5, 0.9, 1.0, 0.0, 0.0]),
        # RetinaNet for TPU: steps and cosine of its published test.
        (
            manual(0.1, (100, 0.2), (200, 0.02), (400, 0.002), warmup=True),
            [0, 50, 100, 200, 400],
            [0.1, 0.15, 0.2, 0.02, 0.002],
        ),
        (
            cosine(0.2, 1100, 0.1, 100),
            [0, 50, 100, 350, 600, 850, 1100],
            [0.1, 0.15, 0.2, 0.170710678, 0.1, 0.0292893219, 0],
        ),
        (
            cosine(1.0, 120, 0.1, 9, hold=20),
            [0, 4, 8, 9, 10, 29, 30, 50, 70, 120],
            [0.1, 0.5, 0.9, 1, 1, 1, 0.999702, 0.874255, 0.577365, 0],
        ),
        (manual(1.0, (2, 2.0), (3, 3.0), (7, 4.0)), range(10), [1, 1, 2, 3, 3, 3, 3, 4, 4, 4]),
        # The sample configs of 2017 repeat the first rate at step 0.
        (manual(0.3, (0, 0.2), (2, 0.1)), range(4), [0.2, 0.2, 0.1, 0.1]),
        (
            manual(0.02, (4, 0.1), (6, 0.01), (8, 0.001), warmup=True),
            range(9),
            [0.02, 0.04, 0.06, 0.08, 0.1, 0.1, 0.01, 0.01, 0.001],
        ),
        (
            schema.ExponentialSchedule(
                learning_rate=1.0,
                decay_steps=3,
                decay_factor=0.1,
                burnin_learning_rate=0.5,
                burnin_steps=2,
                min_learning_rate=0.05,
            ),
            range(9),
            [0.5, 0.5, 1, 1, 1, 0.1, 0.1, 0.1, 0.05],
        ),
        (schema.ConstantSchedule(learning_rate=0.5), [0, 7], [0.5, 0.5]),
        (
            schema.ConstantSchedule(learning_rate=0.5, warmup_learning_rate=0.1, warmup_steps=4),
            [0, 2, 4, 5, 10**6],
            [0.1, 0.3, 0.5, 0.5, 0.5],
        ),
    ],
)
def test_rates_equal_the_published_unit_tests(schedule, steps, expected):
    np.testing.assert_allclose(rates(schedule, steps), expected, rtol=2e-6, atol=1e-6)


RATE = schema.ConstantSchedule(learning_rate=0.1)


def descend(rule, start, steps, **training):
    """Minimises v**2 / 2, which has the gradient v."""
    optimizer = build_optimizer(schema.Training(optimizer=rule, **training))
    value = {"v": jnp.asarray(start)}
    state = optimizer.init(value)
    trace = []
    for _ in range(steps):
        updates, state = optimizer.update(value, state, value)
        value = optax.apply_updates(value, updates)
        trace.append(np.asarray(value["v"]))
    return np.array(trace)


def test_momentum_accumulates_gradients_and_applies_the_rate_afterwards():
    rule = schema.Momentum(schedule=RATE, momentum=0.9)
    # a = 1 -> v = .9; a = .9 + .9 = 1.8 -> v = .72; a = 1.62 + .72 = 2.34 -> v = .486
    np.testing.assert_allclose(
        descend(rule, [1.0, 2.0], 3), [[0.9, 1.8], [0.72, 1.44], [0.486, 0.972]], rtol=1e-6
    )


def test_rms_prop_starts_its_mean_square_at_one_with_epsilon_inside_the_root():
    # ms = .9 + .1 = 1; update = .1 * 1 / sqrt(1 + 1) = .0707 -> .9293
    values = descend(schema.RmsProp(schedule=RATE), [1.0], 3)[:, 0]
    np.testing.assert_allclose(values, [0.9293, 0.7997, 0.6259], atol=5e-5)


def test_adam_moves_by_the_rate_at_first():
    rule = schema.Adam(schedule=RATE)
    np.testing.assert_allclose(descend(rule, [1.0], 1), [[0.9]], rtol=1e-6)


def adam_of_tf1(value, rate, epsilon, steps):
    """`lr_t = lr * sqrt(1 - b2^t) / (1 - b1^t)`, `v -= lr_t * m / (sqrt(s) + eps)`, in float64."""
    m = s = 0.0
    trace = []
    for t in range(1, steps + 1):
        m, s = 0.9 * m + 0.1 * value, 0.999 * s + 0.001 * value**2
        value -= rate * np.sqrt(1 - 0.999**t) / (1 - 0.9**t) * m / (np.sqrt(s) + epsilon)
        trace.append(value)
    return trace


def test_adam_adds_epsilon_before_the_bias_is_taken_out():
    rule = schema.Adam(schedule=RATE, epsilon=0.1)
    # m = .1, s = .001; lr_1 = .1 * sqrt(.001) / .1 = .0316228; root of s .0316228, with epsilon
    # .1316228: 1 - .0316228 * .1 / .1316228 = .975975. The paper's first form would give .909091.
    trace = descend(rule, [1.0], 30)[:, 0]
    assert trace[0] == pytest.approx(0.975975, abs=1e-6)
    np.testing.assert_allclose(trace, adam_of_tf1(1.0, 0.1, 0.1, 30), atol=1e-6)


def test_adam_with_the_epsilon_of_the_format():
    trace = descend(schema.Adam(schedule=RATE), [1.0], 12)[:, 0]
    np.testing.assert_allclose(trace, adam_of_tf1(1.0, 0.1, 1e-8, 12), atol=1e-6)


def test_biases_have_a_factor_of_their_own_and_shifts_of_batch_norm_do_not():
    train = schema.Training(
        optimizer=schema.Momentum(schedule=RATE, momentum=0.0), bias_gradient_multiplier=2.0
    )
    optimizer = build_optimizer(train)
    paths = ("head.map_0.box.bias", "head.box.norm_3.bias", "neck.a.norm.bias", "neck.a.kernel")
    gradient = dict.fromkeys(paths, jnp.ones(1))
    updates, _ = optimizer.update(gradient, optimizer.init(gradient), gradient)
    assert {path: round(float(update[0]), 6) for path, update in updates.items()} == {
        "head.map_0.box.bias": -0.2,
        "head.box.norm_3.bias": -0.1,
        "neck.a.norm.bias": -0.1,
        "neck.a.kernel": -0.1,
    }


def test_biases_are_multiplied_before_the_gradient_is_clipped():
    train = schema.Training(
        optimizer=schema.Momentum(schedule=RATE, momentum=0.0),
        bias_gradient_multiplier=4.0,
        gradient_clip_norm=1.0,
    )
    optimizer = build_optimizer(train)
    gradient = {"a.kernel": jnp.asarray([3.0]), "a.bias": jnp.asarray([1.0])}
    updates, _ = optimizer.update(gradient, optimizer.init(gradient), gradient)
    # (3, 4 * 1) has norm 5 and becomes (.6, .8).
    np.testing.assert_allclose([updates["a.kernel"], updates["a.bias"]], [[-0.06], [-0.08]], 1e-6)


def test_clipping_scales_to_the_global_norm():
    rule = schema.Momentum(schedule=RATE, momentum=0.0)
    # |(3, 4)| = 5, so the gradient becomes (.6, .8)
    updated = descend(rule, [3.0, 4.0], 1, gradient_clip_norm=1.0)
    np.testing.assert_allclose(updated, [[2.94, 3.92]], rtol=1e-6)


@pytest.mark.parametrize("beta2", [0.0, 0.999])
def test_adamw_keeps_nothing_of_a_mean_whose_beta_is_zero(beta2):
    rule = schema.AdamW(schedule=RATE, weight_decay=0.0, beta1=0.0, beta2=beta2)
    # g / |g| at the first step.
    np.testing.assert_allclose(descend(rule, [1.0, -2.0], 1), [[0.9, -1.9]], rtol=1e-6)


def test_adagrad_divides_by_the_root_of_all_squares_so_far():
    rule = schema.Adagrad(schedule=RATE)
    # a = .1 + 1 = 1.1: v = 1 - .1 / sqrt(1.1) = .904654; a = 1.1 + .904654^2 = 1.918399:
    # v = .904654 - .1 * .904654 / sqrt(1.918399) = .839339.
    np.testing.assert_allclose(descend(rule, [1.0], 2)[:, 0], [0.904654, 0.839339], atol=2e-6)
    # A zero gradient divides by the start alone, .1, and moves nothing.
    assert descend(rule, [0.0], 1) == [[0.0]]
    # From another start: a = 3 + 1 = 4: v = 1 - .1 / 2.
    rule = schema.Adagrad(schedule=RATE, initial_accumulator=3.0)
    np.testing.assert_allclose(descend(rule, [1.0], 1), [[0.95]])


def adadelta_of_tf1(value, rate, rho, epsilon, steps):
    """`a = r a + (1 - r) g^2; u = sqrt((b + e) / (a + e)) g; b = r b + (1 - r) u^2; v -= lr u`."""
    squares = updates = 0.0
    trace = []
    for _ in range(steps):
        squares = rho * squares + (1 - rho) * value**2
        update = np.sqrt(updates + epsilon) / np.sqrt(squares + epsilon) * value
        updates = rho * updates + (1 - rho) * update**2
        value -= rate * update
        trace.append(value)
    return trace


def test_adadelta_moves_by_the_root_of_its_latest_updates():
    rule = schema.Adadelta(schedule=schema.ConstantSchedule(learning_rate=1.0), epsilon=0.01)
    # a = .05, u = sqrt(.01) / sqrt(.06) = .408248: v = .591752. b = .05 * .166667 = .0083333;
    # a = .0475 + .05 * .350170 = .0650085; u = sqrt(.0183333) / sqrt(.0750085) * .591752 =
    # .292555: v = .299196.
    trace = descend(rule, [1.0], 20)[:, 0]
    np.testing.assert_allclose(trace[:2], [0.591752, 0.299197], atol=2e-6)
    np.testing.assert_allclose(trace, adadelta_of_tf1(1.0, 1.0, 0.95, 0.01, 20), atol=1e-5)


def test_adadelta_with_the_values_of_the_original():
    # sqrt(1e-8) / sqrt(.05 + 1e-8) = 4.472135e-4, times the rate.
    updated = descend(schema.Adadelta(schedule=RATE), [1.0], 1)
    np.testing.assert_allclose(updated, [[1 - 4.472135e-5]], rtol=1e-7)


# ---- Which learning rate and which weight decay a parameter has ----------------------------------


RESNET = ("stem", "group_1", "group_2")
PATHS = (
    "backbone.stem.kernel",
    "backbone.group_1.block_1.conv_1.kernel",
    "backbone.group_1.block_2.conv_1.norm.scale",
    "backbone.group_2.block_1.conv_2.kernel",
    "head.box.bias",
    "head.box_tower.layer_0.norm_3.bias",
    "head.scale_0",
)


def group(pattern, rate=1.0, decay=None):
    return schema.ParameterGroup(
        pattern=pattern, learning_rate_multiplier=rate, decay_multiplier=decay
    )


def test_rates_fall_block_by_block_towards_the_image():
    optimizer = schema.Adam(backbone_multiplier=0.1, backbone_layer_decay=0.5)
    factors = rate_factors(optimizer, PATHS, RESNET)
    assert list(factors.values()) == pytest.approx([0.0125, 0.025, 0.05, 0.1, 1, 1, 1])


def test_frozen_layers_do_not_shift_the_others():
    optimizer = schema.Adam(backbone_layer_decay=0.5)
    every, some = (rate_factors(optimizer, paths, RESNET) for paths in (PATHS, PATHS[1:]))
    assert every == {PATHS[0]: 0.125, **some}


@pytest.mark.parametrize(
    ("recipe", "number", "first", "last"),
    [
        ("gfl_resnet50", 17, "stem", "group_4.block_3"),
        ("ssd_mobilenet_v2_fpnlite_320x320", 19, "conv_0", "conv_1"),
        ("ssdlite_mobilenet_v3_large_320x320", 17, "conv_0", "conv_1"),
        ("efficientdet_lite0", 17, "stem", "stack_6_block_0"),
        ("ssd_mobilenet_v1_300x300", 14, "conv_0", "conv_13_pointwise"),
        ("faster_rcnn_inception_v2_coco", 10, "conv_1a", "mixed_4e"),
    ],
)
def test_layers_of_recipes(recipe, number, first, last):
    model = resolve(recipe).experiment.model
    paths = abstract_detector(model, "float32").params
    factors_by_path = rate_factors(
        schema.Adam(backbone_layer_decay=0.5), paths, model.backbone.layers
    )
    factors = sorted(
        {factor for path, factor in factors_by_path.items() if path.startswith("backbone.")}
    )
    np.testing.assert_allclose(factors, 0.5 ** np.arange(number)[::-1])
    for layer, factor in ((first, factors[0]), (last, 1.0)):
        held = [factors_by_path[path] for path in paths if path.startswith(f"backbone.{layer}.")]
        assert held and set(held) == {factor}


def test_the_first_group_that_matches_counts():
    optimizer = schema.Adam(groups=(group("bias$", 3), group("^head", 2)))
    factors = rate_factors(optimizer, PATHS, ())
    assert [factors[path] for path in PATHS[-3:]] == [3, 3, 2]


def test_norms_biases_and_scales_do_not_decay_by_default():
    assert list(decay_factors(schema.AdamW(), PATHS).values()) == [1, 1, 0, 1, 0, 0, 0]
    told = schema.AdamW(norm_decay_multiplier=2, bias_decay_multiplier=3, scale_decay_multiplier=4)
    assert list(decay_factors(told, PATHS).values()) == [1, 1, 2, 1, 3, 2, 4]


def test_a_factor_of_a_group_takes_the_place_of_that_of_the_kind():
    groups = group("^backbone", rate=0.1), group("^head", decay=0.5)
    factors = decay_factors(schema.AdamW(groups=groups), PATHS)
    assert list(factors.values()) == [1, 1, 0, 1, 0.5, 0.5, 0.5]


@pytest.mark.parametrize("patterns", [["^nose"], ["^head", "scale_0"]])
def test_a_group_without_parameters_is_refused_before_the_first_step(patterns):
    optimizer = schema.Adam(groups=tuple(group(pattern, 2) for pattern in patterns))
    caught = refusal(groups_of, optimizer, PATHS)
    assert f"the pattern '{patterns[-1]}' matches no parameter that is trained" in str(caught)
    train = schema.Training(optimizer=optimizer)
    params = dict.fromkeys(PATHS, jnp.zeros(2))
    assert str(refusal(build_optimizer(train).init, params)) == str(caught)


RULES = {
    "momentum": schema.Momentum,
    "late rates": lambda **given: schema.Momentum(rate_in_accumulator=True, **given),
    "rms_prop": schema.RmsProp,
    "adam": schema.Adam,
    "adamw": schema.AdamW,
    "adagrad": schema.Adagrad,
    "adadelta": schema.Adadelta,
}


@pytest.mark.parametrize("name", RULES)
def test_every_rule_moves_a_parameter_as_with_its_own_rate(name):
    def moved(rate, **given):
        schedule = schema.ConstantSchedule(learning_rate=rate)
        train = schema.Training(optimizer=RULES[name](schedule=schedule, **given))
        optimizer = build_optimizer(train, RESNET)
        params = dict.fromkeys(PATHS, jnp.arange(1.0, 4.0))
        state = optimizer.init(params)
        for step in range(3):
            gradient = dict.fromkeys(PATHS, jnp.asarray([1.0, -2.0, 0.5 * step]))
            updates, state = optimizer.update(gradient, state, params)
        return updates

    slow, usual = moved(0.01), moved(0.02)
    mixed = moved(0.02, backbone_multiplier=0.5)
    for path in PATHS:
        expected = slow if path.startswith("backbone") else usual
        np.testing.assert_allclose(mixed[path], expected[path], rtol=1e-6)
