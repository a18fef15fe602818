"""Notebooks run, and their files run in LiteRT and in MediaPipe's ObjectDetector."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import cv2
import numpy as np
import pytest

from packages.legacy.tests.model_maker import notebooks

pytest.importorskip("litert_converter")
interpreter = pytest.importorskip("ai_edge_litert.interpreter")

COCO = ("AP", "AP50", "AP75", "APs", "APm", "APl", "ARmax1", "ARmax10", "ARmax100", "ARs")
COCO += ("ARm", "ARl")
# Python of another environment, where mediapipe is not installed beside stillbox.
MEDIAPIPE_PYTHON = os.environ.get("MEDIAPIPE_PYTHON", "")
SCRIPT = """
import sys
import mediapipe
tasks = mediapipe.tasks
for path in sys.argv[2:]:
    options = tasks.vision.ObjectDetectorOptions(
        tasks.BaseOptions(model_asset_path=path), max_results=5
    )
    with tasks.vision.ObjectDetector.create_from_options(options) as detector:
        found = detector.detect(mediapipe.Image.create_from_file(sys.argv[1])).detections
    for one in found:
        print(path, one.categories[0].category_name, one.categories[0].score)
"""


def run(cells, **names):
    exec(compile(cells, "notebook", "exec"), names)
    return names


def check_file(path, dtype, side, most):
    runtime = interpreter.Interpreter(str(path))
    (image,) = runtime.get_input_details()
    assert (image["shape"].tolist(), np.dtype(image["dtype"])) == ([1, side, side, 3], dtype)
    outputs = runtime.get_signature_runner()(images=np.zeros((1, side, side, 3), dtype))
    shapes = [outputs[f"output_{index}"].shape for index in range(4)]
    assert shapes == [(1,), (1, most), (1, most), (1, most, 4)]
    assert (outputs["output_1"] >= 0).all()
    return path.stat().st_size


def check_mediapipe(image, *paths):
    """Loads the files and detects in an image; labels are inside."""
    python = MEDIAPIPE_PYTHON or sys.executable
    command = [python, "-c", SCRIPT, str(image), *map(str, paths)]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    rows = [line.split(" ") for line in done.stdout.splitlines()]
    assert {name for _, name, _ in rows} <= {"small", "large"}
    assert all(0 <= float(value) <= 1 for *_, value in rows)
    return rows


def tflite_notebook(photographs, side):
    shutil.copy(photographs / "table.csv", "salads_ml_use.csv")
    # Classes are numbered in the order of their first rows.
    rows = Path("salads_ml_use.csv").read_text().splitlines()
    classes = list(dict.fromkeys(row.split(",")[2] for row in rows))
    assert sorted(classes) == ["large", "small"]
    made = run(notebooks.TFLITE)
    for metrics in (made["metrics"], made["tflite_metrics"]):
        assert list(metrics) == [*COCO, *(f"AP_/{name}" for name in classes)]
        assert all(-1 <= value <= 1 for value in metrics.values())
    image = sorted((photographs / "images").iterdir())[4]
    shown = run(notebooks.TFLITE_INFERENCE, **made, TEMP_FILE=image, DETECTION_THRESHOLD=0.0)
    drawn, plain = shown["detection_result_image"], cv2.imread(str(image))[..., ::-1]
    assert drawn.shape == plain.shape
    assert (drawn != plain).any()
    run(notebooks.TFLITE_ADVANCED, **made)
    assert Path("labels.txt").read_text().splitlines() == classes
    assert Path("saved_model/saved_model.pb").is_file()
    integers = check_file(Path("model.tflite"), np.uint8, side, 25)
    halves = check_file(Path("model_fp16.tflite"), np.float32, side, 25)
    assert integers < halves
    return image


def mediapipe_notebook(photographs, side):
    for part in ("train", "validation"):
        shutil.copytree(photographs, Path("android_figurine") / part)
    made = run(notebooks.MEDIAPIPE)
    assert made["train_data"].label_names == ["background", "small", "large"]
    for loss, metrics in (
        (made["loss"], made["coco_metrics"]),
        (made["qat_loss"], made["qat_coco_metrics"]),
    ):
        total, classes, boxes, model = loss
        assert model == pytest.approx(classes + 50 * boxes)
        assert total >= model > 0
        assert list(metrics)[:12] == list(COCO)
        assert "Precision mAP ByCategory@50IoU/2" in metrics
        assert len(metrics) == 12 + 2 * 12
    assert made["loss"][0] > made["loss"][3]
    # Without penalties.
    assert made["qat_loss"][0] == pytest.approx(made["qat_loss"][3])
    folder = Path("exported_model")
    floats = check_file(folder / "model.tflite", np.float32, side, 100)
    halves = check_file(folder / "model_fp16.tflite", np.float32, side, 100)
    check_file(folder / "model_int8_qat.tflite", np.uint8, side, 100)
    assert halves < floats
    return folder


@pytest.mark.slow
def test_tflite_notebook_with_small_networks(photographs, folder, small_networks, short_runs):
    tflite_notebook(photographs, 160)


@pytest.mark.slow
def test_mediapipe_notebook_with_small_networks(photographs, folder, small_networks, short_runs):
    mediapipe_notebook(photographs, 128)


@pytest.mark.slow
@pytest.mark.proof
def test_tflite_notebook(photographs, folder, short_runs):
    image = tflite_notebook(photographs, 320)
    if not MEDIAPIPE_PYTHON:
        pytest.importorskip("mediapipe", reason="mediapipe is part of the extra proof")
    assert check_mediapipe(image, "model.tflite", "model_fp16.tflite")


@pytest.mark.slow
@pytest.mark.proof
def test_mediapipe_notebook(photographs, folder, short_runs):
    made = mediapipe_notebook(photographs, 256)
    if not MEDIAPIPE_PYTHON:
        pytest.importorskip("mediapipe", reason="mediapipe is part of the extra proof")
    image = sorted((photographs / "images").iterdir())[4]
    check_mediapipe(image, *sorted(made.glob("*.tflite")))
