"""The detector of config 1 with its deterministic weights, built and run once for all tests."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from stillbox.models.build import build_detector
from stillbox.models.one_stage.detector import postprocess
from stillbox.models.variables import bind_detector, read_statistics, split_detector
from tests import reference

CONFIG1 = reference.model(reference.SSD)


@pytest.fixture(scope="session")
def fresh():
    """Config 1 with fresh weights; tests leave it as it is."""
    return build_detector(CONFIG1)


@pytest.fixture(scope="session")
def weighted():
    """Config 1 with deterministic weights; tests leave it as it is."""
    detector = build_detector(CONFIG1)
    reference.load_deterministic_weights(detector, CONFIG1)
    return detector


@pytest.fixture(scope="session")
def evaluated(weighted):
    """Feature maps, predictions and detections of the two test images in evaluation."""
    graph, params, stats = split_detector(weighted)

    def run(params, stats, images):
        detector = bind_detector(graph, params, stats)
        maps = detector.features(images, train=False)
        predictions = detector.head(maps, train=False, dropout_key=None)
        sizes = jnp.full((2, 2), 300, jnp.int32)
        return maps, predictions, postprocess(predictions, weighted.anchors, sizes, CONFIG1)

    return jax.tree.map(np.asarray, jax.jit(run)(params, stats, reference.images(300)))


@pytest.fixture(scope="session")
def trained(weighted):
    """Feature maps, predictions and new moving statistics of the test images in training."""
    graph, params, stats = split_detector(weighted)

    def run(params, stats, images):
        detector = bind_detector(graph, params, stats)
        maps = detector.features(images, train=True)
        predictions = detector.head(maps, train=True, dropout_key=None)
        return maps, predictions, read_statistics(detector)

    return jax.tree.map(np.asarray, jax.jit(run)(params, stats, reference.images(300)))
