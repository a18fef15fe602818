"""Mobile backbones, Inception v3 and MnasFPN: variables, penalties, maps, logits, losses."""

from functools import cache

import jax
import numpy as np
import pytest

from stillbox.checkpoints.names import reference_names
from stillbox.models.build import abstract_detector
from stillbox.models.layers import ConvLayer
from stillbox.models.paths import named_modules
from stillbox.models.variables import bind_detector
from tests import reference
from tests.matched import loss_terms
from tests.mobile_extractors import KINDS, MNASFPN, OWN_HYPERPARAMETERS, checksum, golden, model

# One of each construction kit; the others run with the proofs.
FAST = ("ssd_mobilenet_v3_large", "ssd_mobiledet_cpu", MNASFPN)


def _slow(kind):
    return pytest.param(kind, marks=pytest.mark.slow)


@cache
def detector(kind, **which):
    """A model and its detector as shapes."""
    described = model(kind, **which)
    return described, abstract_detector(described, "float32")


@pytest.fixture(scope="module", params=KINDS)
def built(request):
    """A golden, and the names and shapes of its detector."""
    described, abstract = detector(request.param)
    return golden(request.param), abstract, variables(described, abstract)


def variables(described, abstract):
    """Shapes by the original's names."""
    arrays = abstract.params | abstract.stats
    names = reference_names(described, arrays)
    return {name: arrays[path].shape for path, name in names.items()}


def test_every_variable_has_the_name_and_shape_of_the_original(built):
    recorded, abstract, shapes = built
    kernels = {name: list(shape) for name, shape in shapes.items() if name.endswith("weights")}
    assert kernels == dict(recorded["kernels"])
    assert checksum(shapes) == recorded["variables_crc32"]
    assert len(abstract.params) + len(abstract.stats) == recorded["n_global_vars"]


def test_parameters_are_counted_as_in_the_original(built):
    recorded, abstract, _ = built
    assert len(abstract.params) == recorded["n_trainable_vars"]
    sizes = [np.prod(array.shape, dtype=int) for array in abstract.params.values()]
    assert sum(sizes) == recorded["trainable_params"]


def test_as_many_kernels_are_penalized_as_in_the_original(built):
    recorded, abstract, _ = built
    assert len(list(penalized_kernels(abstract))) == recorded["n_regularization_losses"]


def penalized_kernels(abstract):
    for path, part in named_modules(abstract.module()):
        if isinstance(part, ConvLayer) and part.regularizer is not None:
            for name in ("kernel", "depthwise_kernel"):
                if hasattr(part, name):
                    yield ".".join((*path, name)), part


def test_maps_are_those_of_the_original(built):
    recorded, abstract, _ = built
    module = abstract.module()
    shapes = [list(shape) for shape in module.feature_shapes]
    assert shapes == [shape[1:3] for shape in recorded["feature_maps"]]
    assert module.neck.channels == tuple(shape[3] for shape in recorded["feature_maps"])
    assert len(module.anchors) == recorded["num_anchors"]


@pytest.mark.parametrize("kind", KINDS)
def test_a_thin_network_has_the_widths_of_the_original(kind):
    shapes = variables(*detector(kind, small=True, override=True))
    assert checksum(shapes) == golden(kind)["small"]["variables_crc32"]


def weights(described, abstract):
    """Parameters and moving statistics as the goldens derive them from names."""
    arrays = abstract.params | abstract.stats
    names = reference_names(described, arrays)
    return tuple(
        {
            path: reference.deterministic_weight(names[path], array.shape)
            for path, array in arrays.items()
        }
        for arrays in (abstract.params, abstract.stats)
    )


def computed(described, abstract, mode, *, everything):
    """Maps and predictions; losses and penalty if `everything`."""
    anchors = abstract.module().anchors

    def forward(params, stats, batch):
        bound, train = bind_detector(abstract.graph, params, stats), mode == "train"
        maps = bound.features(batch.images, train=train)
        predictions = bound.head(maps, train=train, dropout_key=None)
        if not everything:
            return maps, predictions
        losses = loss_terms(predictions, batch, anchors, described)
        return maps, predictions, losses, bound.regularization()

    batch = reference.batch(described.resizer.input_size[0])
    batch = batch._replace(classes=batch.classes % described.num_classes)
    outputs = jax.jit(forward)(*weights(described, abstract), batch)
    return jax.tree.map(np.asarray, outputs)


def check_features(maps, predictions, recorded, mode):
    """Moments of everything, and in evaluation the first and last predictions."""
    boxes, logits = predictions
    # The last map has one pixel: in training the two values of a channel are normalised by their
    # own difference, which rounding changes where it is small.
    atol, rtol = (1e-5, 1e-7) if mode == "eval" else (2e-4, 5e-3)
    moments = [(m.mean(), m.std()) for m in maps]
    np.testing.assert_allclose(moments[:-1], recorded["fm_stats"][:-1], atol=atol)
    np.testing.assert_allclose(moments[-1], recorded["fm_stats"][-1], atol=atol, rtol=rtol)
    for array, key in ((boxes, "box_moments"), (logits, "cls_moments")):
        np.testing.assert_allclose([array.mean(), array.std()], recorded[key], atol=atol)
    if mode == "train":
        return
    np.testing.assert_allclose(boxes[0, :3], recorded["box_img0_anchor0_3"], atol=2e-5)
    np.testing.assert_allclose(boxes[1, -2:], recorded["box_img1_last2"], atol=2e-5)
    np.testing.assert_allclose(logits[0, 0, :6], recorded["cls_img0_anchor0_first6"], atol=2e-5)
    np.testing.assert_allclose(logits[1, -1, :6], recorded["cls_img1_last_first6"], atol=2e-5)


@pytest.mark.parametrize("kind", [kind if kind in FAST else _slow(kind) for kind in KINDS])
def test_a_thin_network_computes_what_the_original_computes(kind):
    outputs = computed(*detector(kind, small=True, override=True), "eval", everything=False)
    check_features(*outputs, golden(kind)["small"]["eval"], "eval")


@pytest.mark.slow
def test_max_pooling_sees_explicit_padding_as_the_original_s_does():
    outputs = computed(*detector(MNASFPN, small=True, padding=True), "eval", everything=False)
    check_features(*outputs, golden(MNASFPN)["small_explicit_padding"]["eval"], "eval")


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["eval", "train"])
@pytest.mark.parametrize("kind", KINDS)
def test_the_whole_network_computes_what_the_original_computes(kind, mode):
    *outputs, losses, penalty = computed(*detector(kind), mode, everything=True)
    recorded = golden(kind)[mode]
    check_features(*outputs, recorded, mode)
    for name in ("localization", "classification"):
        ours, theirs = getattr(losses, name), recorded["loss"][f"Loss/{name}_loss"]
        np.testing.assert_allclose(ours, theirs, rtol=1e-4)
    np.testing.assert_allclose(penalty, recorded["regularization_loss"], rtol=2e-6)


@pytest.mark.parametrize(
    ("kind", "overridden"),
    # Inception v3 has no hyperparameters but the config's.
    [
        (kind, overridden)
        for kind in KINDS
        for overridden in (False, True)
        if overridden or "inception" not in kind
    ],
)
def test_the_penalty_is_the_original_s_with_and_without_the_override(kind, overridden):
    described, abstract = detector(kind, small=True, override=overridden)
    params, _ = weights(described, abstract)
    penalty = sum(
        layer.regularizer.weight / 2 * np.sum(np.square(params[path], dtype=np.float64))
        for path, layer in penalized_kernels(abstract)
    )
    small = golden(kind)["small"]
    flipped = overridden != (kind not in OWN_HYPERPARAMETERS)
    key = "penalty_with_override_flipped"
    expected = small[key] if flipped else small["eval"]["regularization_loss"]
    np.testing.assert_allclose(penalty, expected, rtol=2e-6)
