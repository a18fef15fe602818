"""The program that detects, against the detector that it is made of."""

import jax
import numpy as np
import pytest

from stillbox.evaluation.program import predict_program
from stillbox.experiment.resolve import resolve
from stillbox.experiment.updating import apply_overrides
from stillbox.models.build import build_detector
from stillbox.models.detector import detect_function
from stillbox.models.variables import split_detector

# Two convolutions of 24 x 24 pixels are of tiles of 4, one of 12 x 12 is of tiles of 2.
_RESNET = (
    "model.resizer={height: 96, width: 96}",
    "model.backbone={kind: resnet, depth: 10}",
    "model.neck={kind: ssd_layers, taps: [group_2, group_3], extra_depths: [16]}",
    "model.anchors={num_layers: 3, scales: [0.1, 0.3, 0.6]}",
)
_TOWERS = (
    "model.resizer={height: 160, width: 160}",
    "model.backbone={kind: resnet, depth: 10}",
    "model.neck={kind: retinanet_fpn, min_level: 2, max_level: 3, depth: 64}",
    "model.head={kind: weight_shared, depth: 64, layers_before: 1}",
    "model.anchors={kind: multiscale, min_level: 2, max_level: 3}",
)


def _experiment(*overrides):
    return apply_overrides(resolve("demo_scenes").experiment, overrides, {})


def _batch(count, side=96):
    rng = np.random.default_rng(1)
    images = rng.uniform(0, 255, (count, side, side, 3)).astype(np.float32)
    return images, np.array([[side, side], [side, side // 2], [50, side]], np.int32)[:count]


@pytest.fixture(scope="module")
def resnet():
    experiment = _experiment(*_RESNET)
    return experiment, *split_detector(build_detector(experiment.model))


@pytest.fixture(scope="module")
def together(resnet):
    """The program for three images."""
    return predict_program(resnet[0], batch_size=3)


def test_detections_are_those_of_the_detector(resnet, together):
    _, graph, params, stats = resnet
    images, sizes = _batch(3)
    found = together.bind(params, stats)(images, sizes)
    expected = jax.jit(detect_function(graph))(params, stats, images, sizes)
    assert expected.count.min() > 0
    np.testing.assert_array_equal(found.count, expected.count)
    np.testing.assert_array_equal(found.classes, expected.classes)
    np.testing.assert_allclose(found.scores, expected.scores, atol=1e-5)
    np.testing.assert_allclose(found.boxes, expected.boxes, atol=1e-5)


def test_detections_do_not_depend_on_the_other_images_of_a_batch(resnet, together):
    experiment, _, params, stats = resnet
    images, sizes = _batch(3)
    expected = together.bind(params, stats)(images, sizes)
    single = predict_program(experiment)
    alone = single.bind(params, stats)
    for row in range(3):
        found = alone(images[row : row + 1], sizes[row : row + 1])
        for one, other in zip(found, expected, strict=True):
            np.testing.assert_array_equal(one[0], other[row])
    shared = together.bind_weights(single.prepare(params, stats))
    for one, other in zip(shared(images, sizes), expected, strict=True):
        np.testing.assert_array_equal(one, other)


def test_kernels_are_prepared_for_a_single_cpu(resnet):
    experiment = resnet[0]

    def kernels(*overrides):
        changed = apply_overrides(experiment, overrides, {})
        prepared = predict_program(changed)._preparation.out_info
        return {key: [array.shape for array in one] for key, one in prepared.items()}

    # By the layer, the number of its map, and the tile.
    assert kernels() == {
        ("backbone.group_1.block_1.conv_1", 0, 4): [(6, 64, 64)] * 6,
        ("backbone.group_1.block_1.conv_2", 0, 4): [(6, 64, 64)] * 6,
        ("backbone.group_2.block_1.conv_2", 0, 2): [(4, 128, 128)] * 4,
    }
    assert kernels("devices.cpu_convolutions=exact") == {}


def test_a_kernel_of_several_maps_is_prepared_once():
    # Two of the backbone, one for each of two maps of the pyramid, one for each of two towers.
    kernels = predict_program(_experiment(*_TOWERS))._preparation.out_info
    assert [one[0].shape for one in kernels.values()].count((6, 64, 64)) == 6
