"""What the builder refuses, and that every part of the schema is implemented.

Detectors as dictionaries of arrays, and back.

The four published models: variables, penalties, anchors .
"""

from dataclasses import dataclass, replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from stillbox.errors import UserError
from stillbox.experiment import schema
from stillbox.experiment.variants import RegisteredConfig, implementation_of, implements
from stillbox.inputs import resize  # noqa: F401 - registers resizers
from stillbox.models.build import abstract_detector, build_detector
from stillbox.models.layers.hyperparams import Penalized
from stillbox.models.paths import named_modules, variables_of
from stillbox.models.variables import bind_detector, read_statistics, split_detector
from stillbox.training import optimizer  # noqa: F401 - registers optimisers and schedules
from tests import reference
from tests.models.conftest import CONFIG1
from tests.reference import FPN, INCEPTION, PPN, RESNET


def test_anchors_for_another_number_of_maps_are_refused():
    model = replace(CONFIG1, anchors=schema.SsdAnchors(num_layers=5))
    with pytest.raises(UserError, match="anchors are described for 5 feature maps") as caught:
        build_detector(model)
    assert caught.value.where == "model.anchors"


FAMILIES = [
    family
    for family in RegisteredConfig.__subclasses__()
    # tests/inputs/augment checks augmentations.
    if family is not schema.Augmentation
]


@pytest.mark.parametrize(
    "member",
    [
        member
        for family in FAMILIES
        for member in family.variants.values()
        if member.__module__.startswith("stillbox.")
    ],
    ids=lambda member: f"{member.__base__.__name__}-{member.kind}",
)
def test_every_member_of_every_family_has_an_implementation(member):
    assert callable(implementation_of(member()))


@dataclass(frozen=True, kw_only=True)
class Unimplemented(schema.ClassificationLoss, kind="sigmoid_focul"):
    """A loss without a function."""


# Otherwise it would be part of the schema in all tests of this process.
del schema.ClassificationLoss.variants["sigmoid_focul"]


def test_a_kind_without_an_implementation_is_refused_with_the_nearest_name():
    with pytest.raises(UserError) as caught:
        implementation_of(Unimplemented())
    assert "the kind 'sigmoid_focul' has no implementation" in caught.value.what
    assert "did you mean 'sigmoid_focal'" in caught.value.fix


@pytest.fixture
def detector(experiment):
    return build_detector(experiment().model, seed=5)


def test_a_detector_is_described_once_until_an_implementation_is_replaced():
    first = abstract_detector(CONFIG1, "float32")
    assert abstract_detector(replace(CONFIG1), "float32") is first
    implements(type(CONFIG1.backbone))(implementation_of(CONFIG1.backbone))
    assert abstract_detector(CONFIG1, "float32") is not first


def test_paths_are_dotted_and_sorted_into_parameters_and_statistics(detector):
    _, params, stats = split_detector(detector)
    assert "backbone.conv_0.kernel" in params
    assert "backbone.conv_0.norm.scale" in params
    assert "head.map_1.class_.bias" in params
    assert {path.rsplit(".", 1)[1] for path in stats} == {"mean", "var"}
    assert not params.keys() & stats.keys()
    assert {array.dtype for array in (params | stats).values()} == {jnp.dtype("float32")}


def test_a_detector_put_together_again_predicts_the_same(detector):
    images = jnp.asarray(np.random.default_rng(0).uniform(0, 255, (2, 64, 64, 3)), jnp.float32)
    graph, params, stats = split_detector(detector)
    again = bind_detector(graph, params, stats)
    for ours, theirs in zip(again(images, train=False), detector(images, train=False), strict=True):
        np.testing.assert_array_equal(ours, theirs)


def test_other_arrays_change_predictions_and_not_the_module(detector):
    images = jnp.full((1, 64, 64, 3), 100, jnp.float32)
    graph, params, stats = split_detector(detector)
    doubled = bind_detector(graph, jax.tree.map(lambda array: 2 * array, params), stats)
    assert (doubled(images, train=False)[1] != detector(images, train=False)[1]).any()
    np.testing.assert_array_equal(split_detector(detector)[1]["head.map_0.box.bias"], 0)


def test_a_training_call_moves_the_statistics_of_its_own_copy(detector):
    images = jnp.asarray(np.random.default_rng(0).uniform(0, 255, (2, 64, 64, 3)), jnp.float32)
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


@pytest.fixture(scope="module", params=[PPN, FPN, RESNET, INCEPTION])
def built(request):
    """A recipe's name, its golden, and the detector with fresh weights."""
    name = request.param
    return name, reference.golden(name), build_detector(reference.model(name))


def test_every_variable_has_the_name_and_shape_of_the_original(built):
    name, golden, detector = built
    arrays = variables_of(detector)
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
    assert sum(v.size for v in variables_of(detector).values()) == golden["global_params"]


def test_as_many_kernels_are_penalized_as_in_the_original(built):
    _, golden, detector = built
    layers = [m for _, m in named_modules(detector) if isinstance(m, Penalized)]
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
