"""Detectors as dictionaries of arrays, and back."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from stillbox.models.build import build_detector
from stillbox.models.variables import bind_detector, read_statistics, split_detector


@pytest.fixture
def detector(experiment):
    return build_detector(experiment().model, seed=5)


def test_paths_are_dotted_and_sorted_into_parameters_and_statistics(detector):
    _, params, stats = split_detector(detector)
    assert "backbone.conv_0.kernel" in params
    assert "backbone.conv_0.norm.scale" in params
    assert "head.map_1.class_.bias" in params
    assert {path.rsplit(".", 1)[1] for path in stats} == {"mean", "var"}
    assert not params.keys() & stats.keys()
    assert {array.dtype for array in (params | stats).values()} == {jnp.dtype("float32")}


def test_a_detector_put_together_again_predicts_the_same(detector):
    images = np.random.default_rng(0).uniform(0, 255, (2, 64, 64, 3)).astype(np.float32)
    graph, params, stats = split_detector(detector)
    again = bind_detector(graph, params, stats)
    for ours, theirs in zip(again(images, train=False), detector(images, train=False), strict=True):
        np.testing.assert_array_equal(ours, theirs)


def test_other_arrays_change_predictions_and_not_the_module(detector):
    images = np.full((1, 64, 64, 3), 100, np.float32)
    graph, params, stats = split_detector(detector)
    doubled = bind_detector(graph, jax.tree.map(lambda array: 2 * array, params), stats)
    assert (doubled(images, train=False)[1] != detector(images, train=False)[1]).any()
    np.testing.assert_array_equal(split_detector(detector)[1]["head.map_0.box.bias"], 0)


def test_a_training_call_moves_the_statistics_of_its_own_copy(detector):
    images = np.random.default_rng(0).uniform(0, 255, (2, 64, 64, 3)).astype(np.float32)
    graph, params, stats = split_detector(detector)
    copy = bind_detector(graph, params, stats)
    copy(images, train=True, dropout_key=None)
    moved = read_statistics(copy)
    assert moved.keys() == stats.keys()
    assert all((moved[path] != stats[path]).any() for path in stats)
    np.testing.assert_array_equal(
        split_detector(detector)[2]["backbone.conv_0.norm.mean"],
        stats["backbone.conv_0.norm.mean"],
    )


def test_the_graph_is_static_and_equal_for_equal_detectors(detector, experiment):
    graph, *_ = split_detector(detector)
    other, *_ = split_detector(build_detector(experiment().model, seed=6))
    assert graph == other
    assert hash(graph) == hash(other)
