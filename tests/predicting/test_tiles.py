"""A model with tiles: evaluation, predictions, an export and the server find the same."""

import json

import numpy as np
import pytest
from pycocotools.coco import COCO
from pycocotools.cocoeval import COCOeval
from starlette.testclient import TestClient

from stillbox import api
from stillbox.cli.overrides import changes_of
from stillbox.evaluation.coco import truths_to_coco
from stillbox.evaluation.scoring import open_evaluation
from stillbox.evaluation.tiling import Tiling
from stillbox.exporting.manifest import Manifest
from stillbox.predicting.predictor import Predictor
from stillbox.predicting.scoring import score_backend
from stillbox.serving.app import build_app
from stillbox.serving.settings import ServeSettings
from tests.serving.conftest import LOOPBACK, b64
from tests.small import EVERY_DETECTION

# Scenes have sides of 160 to 250 pixels: two or three tiles along each.
TILES = changes_of(["data.tiles={side: 96, overlap: 0.3, whole_image: true}"])


@pytest.fixture
def evaluated(trained_once, tmp_path):
    """The evaluation of the trained model with tiles."""
    output = tmp_path / "evaluation"
    return api.evaluate(trained_once, overrides=TILES, output=output)


@pytest.fixture
def predictor(trained_once):
    return api.load(trained_once, overrides=TILES, batch_size=3)


def images(evaluation):
    source = open_evaluation(evaluation.experiment).source
    return [source.example(index).encoded for index in range(len(source))]


def test_a_model_says_how_it_is_asked(predictor, trained_once):
    assert predictor.tiling == Tiling(tile=96, overlap=0.3)
    assert Predictor(predictor.backend, tiling=False).tiling is None
    assert api.load(trained_once).tiling is None
    other = Tiling(tile=64)
    assert Predictor(predictor.backend, tiling=other).tiling == other


def test_evaluation_has_the_bits_of_predictions_and_the_scores_of_pycocotools(
    evaluated, predictor, no_charts
):
    predicted = predictor.predict(images(evaluated), **EVERY_DETECTION)
    results, rows = evaluated.result.results, []
    for result, detections in zip(results, predicted, strict=True):
        height, width = detections.image.shape[:2]
        # More than a batch of the program finds in one view.
        assert len(result.scores) > predictor.backend.max_detections
        boxes = np.clip(result.boxes, 0, [height, width] * 2)
        seen = (boxes[:, 2:] > boxes[:, :2]).all(axis=1)
        assert np.array_equal(boxes[seen], detections.boxes)
        assert np.array_equal(result.scores[seen], detections.scores)
        assert np.array_equal(result.class_ids[seen], detections.class_ids)
        rows += detections.to_coco(result.image_id)
    truth = COCO()
    truth.dataset = truths_to_coco(evaluated.result.truths, evaluated.result.class_names)
    truth.createIndex()
    scored = COCOeval(truth, truth.loadRes(rows), "bbox")
    scored.evaluate()
    scored.accumulate()
    scored.summarize()
    assert evaluated.summary["AP"] == pytest.approx(scored.stats[0], abs=1e-9)
    assert evaluated.summary["AP50"] == pytest.approx(scored.stats[1], abs=1e-9)
    assert scored.stats[1] > 0


def test_whole_images_are_found_without_tiles(trained_once, predictor, tmp_path, no_charts):
    plain = api.evaluate(trained_once, output=tmp_path / "plain")
    predictor.tiling = None
    for result, file in zip(plain.result.results, images(plain), strict=True):
        detections = predictor.predict(file, **EVERY_DETECTION)
        assert np.array_equal(result.scores, detections.scores)


def test_an_export_keeps_the_tiles(trained_once, tmp_path, predictor, evaluated, no_charts):
    exported = api.export(
        trained_once,
        tmp_path / "export",
        overrides=TILES,
        format="stablehlo",
        input_type="raw_image_tensor",
    )
    tiles = Manifest.read(exported.folder).tiles
    assert {name: tiles[name] for name in ("side", "overlap", "whole_image", "merge")} == {
        "side": 96,
        "overlap": 0.3,
        "whole_image": True,
        "merge": "nms",
    }
    assert "Add the corner of its tile" in tiles["client"]
    loaded = api.load(exported.folder)
    assert loaded.tiling == predictor.tiling
    file = images(evaluated)[0]
    wanted = predictor.predict(file, **EVERY_DETECTION)
    found_here = loaded.predict(file, **EVERY_DETECTION)
    assert found_here.scores[:5] == pytest.approx(wanted.scores[:5], abs=1e-3)
    assert np.allclose(found_here.boxes[:5], wanted.boxes[:5], atol=0.5)
    scored = score_backend(
        loaded.backend, evaluated.experiment, open_evaluation(evaluated.experiment)
    )
    # Integer pixels of a client move scores a little.
    assert scored.scores.summary["AP50"] == pytest.approx(evaluated.summary["AP50"], abs=0.02)


def test_an_export_of_whole_images_says_nothing_of_tiles(trained_once, tmp_path):
    api.export(trained_once, tmp_path / "export", format="stablehlo")
    assert "tiles" not in json.loads((tmp_path / "export" / "export.json").read_text())


def test_the_server_detects_in_the_tiles(predictor, evaluated, no_charts):
    settings = ServeSettings(batch_sizes=(1, 2), max_delay_ms=0.0, runs_at_once=1)
    file = images(evaluated)[0]
    with TestClient(build_app(predictor, settings), base_url=LOOPBACK) as client:
        query = "min_score=0.05&classes_per_object=all"
        answer = client.post(f"/detect?{query}", content=file).json()
        picture = client.post(f"/detect?{query}&format=png", content=file)
        body = {"instances": [{"b64": b64(file)}]}
        served = client.post(f"/v1/models/{settings.name}:predict", json=body).json()
        outputs = client.get(f"/v2/models/{settings.name}").json()["outputs"]
    wanted = predictor.predict(file, min_score=0.05, classes_per_object="all")
    assert answer["detections"] == json.loads(json.dumps(wanted.to_dict()))["detections"]
    assert picture.headers["content-type"] == "image/png"
    everything = predictor.predict(file, **EVERY_DETECTION)
    scores = served["predictions"][0]["detection_scores"]
    assert scores == pytest.approx(everything.scores.tolist(), abs=1e-6)
    assert outputs[0]["shape"] == [-1, -1, 4]
