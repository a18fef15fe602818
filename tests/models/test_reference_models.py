"""The four published models: variables, penalties, anchors ."""

import jax
import numpy as np
import pytest
from flax import nnx

from stillbox.models.build import build_detector
from tests import reference
from tests.reference import FPN, INCEPTION, PPN, RESNET


@pytest.fixture(scope="module", params=[PPN, FPN, RESNET, INCEPTION])
def built(request):
    """A recipe's name, its golden, and the detector with fresh weights."""
    name = request.param
    return name, reference.golden(name), build_detector(reference.model(name))


def test_every_variable_has_the_name_and_shape_of_the_original(built):
    name, golden, detector = built
    arrays = reference.variables(detector)
    ours = {
        tf1: list(arrays[path].shape)
        for path, tf1 in reference.names(detector, reference.model(name)).items()
    }
    assert ours == dict(golden["variables"])
    assert len(arrays) == golden["n_global_vars"]


def test_parameters_are_counted_as_in_the_original(built):
    _, golden, detector = built
    params = jax.tree.leaves(nnx.state(detector, nnx.Param))
    assert len(params) == golden["n_trainable_vars"]
    assert sum(p.size for p in params) == golden["trainable_params"]
    assert sum(v.size for v in reference.variables(detector).values()) == golden["global_params"]


def test_as_many_kernels_are_penalized_as_in_the_original(built):
    _, golden, detector = built
    layers = [m for _, m in nnx.iter_modules(detector) if hasattr(m, "penalty")]
    penalized = [layer for layer in layers if layer.regularizer is not None]
    # A separable convolution has two.
    kernels = ("kernel", "depthwise_kernel")
    counted = sum(hasattr(layer, kernel) for layer in penalized for kernel in kernels)
    assert counted == golden["n_regularization_losses"]


def test_maps_and_anchors_are_those_of_the_original(built):
    _, golden, detector = built
    assert [list(s) for s in detector.feature_shapes] == [m[1:3] for m in golden["feature_maps"]]
    assert detector.neck.channels == tuple(m[3] for m in golden["feature_maps"])
    assert detector.anchors.shape == (golden["num_anchors"], 4)
    np.testing.assert_allclose(detector.anchors[:12], golden["anchors_first12"], atol=1e-6)
    np.testing.assert_allclose(detector.anchors[-6:], golden["anchors_last6"], atol=1e-6)
