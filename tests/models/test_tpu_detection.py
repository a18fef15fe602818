"""RetinaNet as "Object Detection Models on TPU" builds it: its size, and what it computes."""

import jax
import numpy as np
import pytest

from stillbox.experiment import schema
from stillbox.models.variables import bind_detector, split_detector
from tests.small import needs_shared
from tests.tpu_detection import (
    count_parameters,
    golden,
    pixels,
    resnet,
    retinanet,
    swish,
    weighted,
)


@pytest.mark.parametrize(
    ("model", "parameters"),
    # Counted in the original's graphs.
    [
        (retinanet(), 34_091_159),
        (retinanet(backbone=resnet(101)), 53_083_287),
        (retinanet(backbone=resnet(152)), 68_726_935),
        (retinanet(schema.NasFpn()), 51_810_455),
        (retinanet(schema.NasFpn(num_repeats=7)), 60_078_743),
    ],
)
def test_there_are_as_many_parameters_as_in_the_original(model, parameters):
    assert count_parameters(model) == parameters


def test_parts_are_as_large_as_in_the_original():
    sizes = [count_parameters(retinanet(), part) for part in ("backbone", "neck", "head")]
    assert sizes == [23_508_032, 3_871_232, 6_711_895]


GOLDEN = {
    "r50fpn_128": retinanet(),
    "r50nasfpn5_128": retinanet(schema.NasFpn()),
    "spinenet49_swish_128": swish(retinanet(schema.Identity(), schema.SpineNet())),
}


@needs_shared
@pytest.mark.parametrize("name", GOLDEN)
def test_feature_maps_and_predictions_are_those_of_the_original(name):
    maps, logits, boxes = _run(name)
    for level, (features, classes, codes) in enumerate(zip(maps, logits, boxes, strict=True), 3):
        for part, array in (("f", features), ("c", classes), ("x", codes)):
            expected = golden("forward")[name][part][str(level)]
            assert list(array.shape) == expected["shape"]
            values = array.astype(np.float64).ravel()
            computed = [values.mean(), values.std(), *values[:4]]
            wanted = [expected["mean"], expected["std"], *expected["first4"]]
            # Values are up to .4, and float32 sums of up to 4608 products differ by 1.5e-7.
            np.testing.assert_allclose(
                computed, wanted, rtol=0, atol=1e-6, err_msg=f"{part}{level}"
            )


def _run(name):
    """Feature maps, logits and codes of each level, as `[1, H, W, channels]`."""
    graph, params, stats = split_detector(weighted(GOLDEN[name]))

    def run(params, stats, images):
        detector = bind_detector(graph, params, stats)
        maps = detector.neck(detector.backbone(images, train=False), train=False)
        return maps, detector.head(maps, train=False, dropout_key=None)

    maps, predictions = jax.tree.map(np.asarray, jax.jit(run)(params, stats, pixels()))
    anchors = [9 * m.shape[1] * m.shape[2] for m in maps]
    logits, boxes = (
        [
            part.reshape(*m.shape[:3], -1)
            for part, m in zip(np.split(array, np.cumsum(anchors)[:-1], axis=1), maps, strict=True)
        ]
        for array in (predictions.class_logits, predictions.box_encodings)
    )
    return maps, logits, boxes
