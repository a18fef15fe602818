"""Suppression inside an ONNX graph finds what `batched_nms` finds."""

import dataclasses

import jax
import numpy as np
import pytest

from stillbox.errors import UserError
from stillbox.experiment.resolve import resolve
from stillbox.exporting.onnx import nms as nms_nodes
from stillbox.exporting.onnx.graph import FLOAT, INT64, Graph
from stillbox.exporting.onnx.nms import add_suppression
from stillbox.models.one_stage.postprocess import postprocess
from stillbox.models.predictions import Predictions
from tests.exporting.onnx.runtimes import RUNTIMES, loaded

ANCHORS, CLASSES, IMAGES = 700, 4, 2
TRUE_SIZE = np.array([300, 200], np.float32)
SETTINGS = {
    "plain": {},
    "clip first": {"clip_first": True},
    "at the threshold": {"drop_at_threshold": True, "iou_threshold": 0.5},
    "few of a class": {"max_per_class": 3},
    "few candidates": {"max_candidates_per_class": 20},
    "class agnostic": {"class_agnostic": True},
    "combined": {"combined": True},
    "not clipped": {"clip": False, "change_coordinate_frame": False},
    "margin": {"clip_to": "input", "clip_margin": 1.0},
    "more places than boxes": {"max_total": 3000, "score_threshold": 0.5},
    "nothing": {"score_threshold": 2.0},
}


def described(**settings):
    model = resolve("ssd_mobilenet_v1_300x300", [f"model.num_classes={CLASSES}"]).experiment.model
    settings = {"score_threshold": 0.1, "max_total": 30, **settings}
    nms = dataclasses.replace(model.postprocessing.nms, **settings)
    processing = dataclasses.replace(model.postprocessing, score_converter="identity", nms=nms)
    return dataclasses.replace(model, postprocessing=processing, background_class=False)


def suppression(model, runtime="onnxruntime"):
    graph, most = Graph(), model.postprocessing.nms.max_total
    found = add_suppression(graph, model, ANCHORS, "boxes", "scores", "true_size")
    inputs = {
        "boxes": (FLOAT, ("batch", ANCHORS, 4)),
        "scores": (FLOAT, ("batch", ANCHORS, CLASSES)),
        "true_size": (FLOAT, (2,)),
    }
    outputs = {
        found.boxes: (FLOAT, ("batch", most, 4)),
        found.scores: (FLOAT, ("batch", most)),
        found.classes: (INT64, ("batch", most)),
        found.anchors: (INT64, ("batch", most)),
        found.counts: (INT64, ("batch",)),
    }
    return loaded(graph.model(inputs, outputs, ""), runtime)


def inputs(*, coarse=False):
    """Boxes and scores; coarse ones are equal to each other again and again."""
    rng = np.random.default_rng(3)
    centres = rng.uniform(-0.1, 1.1, (IMAGES, ANCHORS, 2))
    sizes = rng.uniform(0.02, 0.4, (IMAGES, ANCHORS, 2))
    boxes = np.concatenate([centres - sizes / 2, centres + sizes / 2], axis=-1)
    scores = rng.random((IMAGES, ANCHORS, CLASSES)) ** 3
    if coarse:
        boxes, scores = np.round(boxes * 16) / 16, np.round(scores * 20) / 20
    return boxes.astype(np.float32), scores.astype(np.float32)


def compare(model, runtime, boxes, scores, monkeypatch):
    got = suppression(model, runtime)({"boxes": boxes, "scores": scores, "true_size": TRUE_SIZE})
    monkeypatch.setattr(
        "stillbox.models.one_stage.postprocess.decode_boxes", lambda codes, *_: codes
    )
    sizes = np.tile(TRUE_SIZE.astype(np.int32), (IMAGES, 1))
    wanted = jax.jit(lambda *arrays: postprocess(Predictions(*arrays), None, sizes, model))(
        boxes, scores
    )
    fields = ("boxes", "scores", "classes", "anchors", "count")
    for array, field in zip(got, fields, strict=True):
        np.testing.assert_allclose(array, getattr(wanted, field), atol=1e-6, err_msg=field)
    return wanted


@pytest.mark.parametrize("name", SETTINGS)
def test_equals_the_detectors_own(name, monkeypatch):
    boxes, scores = inputs(coarse=True)
    wanted = compare(described(**SETTINGS[name]), "onnxruntime", boxes, scores, monkeypatch)
    assert (np.asarray(wanted.count) >= 5).all() or name == "nothing"


@pytest.mark.parametrize("name", ["plain", "few candidates", "class agnostic", "nothing"])
def test_in_openvino_where_scores_differ(name, monkeypatch):
    compare(described(**SETTINGS[name]), "openvino", *inputs(), monkeypatch)


@pytest.mark.parametrize("runtime", RUNTIMES)
def test_all_anchors_are_searched_where_the_best_do_not_suffice(runtime, monkeypatch):
    # The best 30 anchors of the second image are one and the same place.
    monkeypatch.setattr(nms_nodes, "_FIRST", 1)
    boxes, scores = inputs()
    boxes[1, :200], scores[1, :200, 0] = boxes[1, 0], 1 - np.arange(200) / 1000
    wanted = compare(described(), runtime, boxes, scores, monkeypatch)
    np.testing.assert_array_equal(wanted.count, 30)


def test_soft_suppression_is_refused():
    with pytest.raises(UserError, match="fade") as caught:
        suppression(described(soft_sigma=0.5))
    assert "soft_sigma" in str(caught.value)
