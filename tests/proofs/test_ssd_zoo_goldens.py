"""Detectors of the zoo compute what the original computed.

Tolerances: maps, logits and codes 5e-4; losses 1e-3 of their value; with batch statistics ten times
as much. The penalty 2e-6 of its value. With batch statistics, maps of less than 50 values a channel
are not compared by themselves: two values have a variance that rounding alone decides.
"""

from functools import cache, partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from stillbox.experiment.pipeline_config import read_pipeline_config
from stillbox.models.build import build_detector
from stillbox.models.one_stage.detector import postprocess
from stillbox.models.one_stage.loss import batch_targets
from stillbox.models.paths import variables_of
from stillbox.models.variables import bind_detector, split_detector
from tests import ssd_zoo as zoo
from tests.matched import loss_terms
from tests.small import needs_shared

pytestmark = [pytest.mark.proof, pytest.mark.slow, needs_shared]

CONFIGS = (
    zoo.EFFICIENTDET,
    zoo.FPNLITE,
    "ssd_mobilenet_v2_coco",
    "ssdlite_mobilenet_v2_coco",
    "ssd_inception_v2_coco",
)
ALL = pytest.mark.parametrize("config", CONFIGS)
BOTH = pytest.mark.parametrize("mode", ["eval", "train"])


@cache
def detector(config):
    text = (zoo.GOLDENS / "configs" / f"{config}.config").read_text()
    model = zoo.without_randomness(read_pipeline_config(text, config).experiment.model)
    built = build_detector(model)
    held = variables_of(built)
    names = zoo.names_of(config, model, held)
    for path, variable in held.items():
        assert variable.shape == zoo.variables_of(config)[names[path]], path
        variable[...] = jnp.asarray(zoo.weight(names[path], variable.shape), jnp.float32)
    return built, set(names.values())


@cache
def computed(config, mode):
    built, _ = detector(config)
    graph, params, stats = split_detector(built)
    batch = zoo.batch(built.model)

    def run(params, stats, batch):
        bound = bind_detector(graph, params, stats)
        train = mode == "train"
        maps = bound.features(batch.images, train=train)
        predictions = bound.head(maps, train=train, dropout_key=None)
        losses = loss_terms(predictions, batch, built.anchors, built.model)
        sizes = batch.true_sizes
        detections = None if train else postprocess(predictions, built.anchors, sizes, built.model)
        return maps, predictions, losses, bound.regularization(), detections

    return jax.tree.map(np.asarray, jax.jit(run)(params, stats, batch))


@ALL
@BOTH
def test_maps_and_predictions_equal_the_executed_original(config, mode):
    maps, (boxes, logits), *_ = computed(config, mode)
    golden, atol = zoo.forward()[f"{config}/{mode}"], 5e-4 if mode == "eval" else 5e-3
    close = partial(np.testing.assert_allclose, atol=atol, rtol=0)
    close([(x.mean(), x.std()) for x in maps], golden["fm_stats"])
    for values, theirs in zip(maps, golden["fm_samples8"], strict=True):
        if mode == "train" and values[..., 0].size < 50:
            continue
        close(values.ravel()[[i * values.size // 8 for i in range(8)]], theirs)
    for values, name in ((boxes, "box"), (logits, "cls")):
        assert list(values.shape) == golden[f"{name}_shape"]
        close(
            values.ravel()[[i * values.size // 16 for i in range(16)]], golden[f"{name}_samples16"]
        )
        close([values.mean(), values.std()], [golden[f"{name}_mean"], golden[f"{name}_std"]])
    if mode == "eval":
        close(boxes[1, -2:], golden["box_img1_last2"])
        close(logits[1, -1, :6], golden["cls_img1_last_first6"])


@ALL
@BOTH
def test_losses_equal_the_executed_original(config, mode):
    _, _, losses, penalty, _ = computed(config, mode)
    golden, rtol = zoo.forward()[f"{config}/{mode}"], 1e-3 if mode == "eval" else 1e-2
    for ours, name in ((losses.localization, "localization"), (losses.classification, "class")):
        theirs = next(v for k, v in golden["loss"].items() if name in k)
        np.testing.assert_allclose(ours, theirs, rtol=rtol)
    theirs = golden["regularization_loss"] - penalty_of_unused(config)
    np.testing.assert_allclose(penalty, theirs, rtol=2e-6)


def penalty_of_unused(config):
    """The penalty of the layers behind EfficientNet's features, which the original keeps."""
    _, names = detector(config)
    unused = zoo.variables_of(config).keys() - names
    if config != zoo.EFFICIENTDET:
        assert not unused
        return 0.0
    kinds = ("top_conv2d/kernel", "logits/kernel", "logits/bias")
    assert set(kinds) <= unused
    shapes = zoo.variables_of(config)
    return 5e-6 * sum(np.sum(np.square(zoo.weight(k, shapes[k]), dtype=float)) for k in kinds)


@ALL
def test_targets_equal_the_executed_original(config):
    built, _ = detector(config)
    targets = batch_targets(zoo.batch(built.model), built.anchors, built.model)
    matches, golden = np.asarray(targets.matches), zoo.forward()[f"{config}/eval"]
    assert (matches >= 0).sum(axis=1).tolist() == golden["num_pos"]
    assert (matches == -1).sum(axis=1).tolist() == golden["num_neg"]
    first = np.flatnonzero(matches[0] >= 0)
    assert first[:10].tolist() == golden["first_pos_idx_img0"][:10]
    codes = np.asarray(targets.box_targets)[0, first[:3]]
    np.testing.assert_allclose(codes, golden["regt_first_pos_img0"], atol=1e-5)


@ALL
def test_detections_equal_the_executed_original(config):
    detections, golden = computed(config, "eval")[-1], zoo.forward()[f"{config}/eval"]["det"]
    assert detections.count.tolist() == golden["num"]
    np.testing.assert_allclose(detections.scores[:, :20], golden["scores20"], rtol=1e-3)
    same = detections.classes[:, :20] == np.asarray(golden["classes20"])
    # Neighbours in the order of scores may be exchanged.
    assert same.mean() > 0.9
    shifted = np.abs(detections.boxes[:, :20] - np.asarray(golden["boxes20"])).max(axis=-1)
    assert (shifted[same] < 1e-3).mean() > 0.9
