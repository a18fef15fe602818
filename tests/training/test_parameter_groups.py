"""Which learning rate and which weight decay a parameter has."""

import jax.numpy as jnp
import numpy as np
import pytest

from stillbox.experiment import schema
from stillbox.experiment.resolve import resolve
from stillbox.models.build import abstract_detector
from stillbox.training.optimizer import build_optimizer
from stillbox.training.parameter_groups import decay_factors, groups_of, rate_factors
from tests.helpers import refusal

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
    found = rate_factors(optimizer, PATHS, RESNET)
    assert list(found.values()) == pytest.approx([0.0125, 0.025, 0.05, 0.1, 1, 1, 1])


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
    found = rate_factors(schema.Adam(backbone_layer_decay=0.5), paths, model.backbone.layers)
    factors = sorted({factor for path, factor in found.items() if path.startswith("backbone.")})
    np.testing.assert_allclose(factors, 0.5 ** np.arange(number)[::-1])
    for layer, factor in ((first, factors[0]), (last, 1.0)):
        held = [found[path] for path in paths if path.startswith(f"backbone.{layer}.")]
        assert held and set(held) == {factor}


def test_the_first_group_that_matches_counts():
    optimizer = schema.Adam(groups=(group("bias$", 3), group("^head", 2)))
    found = rate_factors(optimizer, PATHS, ())
    assert [found[path] for path in PATHS[-3:]] == [3, 3, 2]


def test_norms_biases_and_scales_do_not_decay_unless_they_are_told_to():
    assert list(decay_factors(schema.AdamW(), PATHS).values()) == [1, 1, 0, 1, 0, 0, 0]
    told = schema.AdamW(norm_decay_multiplier=2, bias_decay_multiplier=3, scale_decay_multiplier=4)
    assert list(decay_factors(told, PATHS).values()) == [1, 1, 2, 1, 3, 2, 4]


def test_a_factor_of_a_group_takes_the_place_of_that_of_the_kind():
    groups = group("^backbone", rate=0.1), group("^head", decay=0.5)
    found = decay_factors(schema.AdamW(groups=groups), PATHS)
    assert list(found.values()) == [1, 1, 0, 1, 0.5, 0.5, 0.5]


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
