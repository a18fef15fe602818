"""Files for Frigate's OpenVINO and ONNX detectors.

`read_ssd` and `read_yolonas` read an output as the detectors of Frigate 0.16 to 0.18 do.
"""

import argparse
import re
from pathlib import Path

import numpy as np
import pytest
import yaml

import stillbox
from stillbox.cli.export import add_export
from stillbox.experiment.updating import apply_changes
from stillbox.exporting.export import export_model
from stillbox.exporting.onnx.format import openvino_core
from stillbox.exporting.settings import ExportSettings
from stillbox.references import Parameter
from tests.exporting.programs import assert_verified
from tests.helpers import refused
from tests.small import EVERY_DETECTION

onnxruntime = pytest.importorskip("onnxruntime")
LAYOUTS = {"frigate_ssd": "ssd", "frigate_yolonas": "yolonas"}


@pytest.fixture(scope="module", params=LAYOUTS)
def exported(request, model, images, tmp_path_factory):
    folder = tmp_path_factory.mktemp("frigate") / request.param
    settings = ExportSettings(format="onnx", postprocess=request.param)
    return export_model(model, folder, settings, images)


def read_ssd(output, side):
    """Rows of class, score, ymin, xmin, ymax, xmax; the output has one fixed shape."""
    assert output.shape[:2] == (1, 1)
    assert output.shape[3] == 7
    rows = [
        (class_id, score, ymin, xmin, ymax, xmax)
        for _, class_id, score, xmin, ymin, xmax, ymax in output[0][0][:20]
    ]
    return np.array(rows)


def read_yolonas(output, side):
    """The same of pixels; a class below 0 ends the list."""
    rows = []
    for _, xmin, ymin, xmax, ymax, score, class_id in output[:20]:
        if class_id < 0:
            break
        rows.append((class_id, score, ymin / side, xmin / side, ymax / side, xmax / side))
    return np.array(rows)


def test_the_detectors_of_frigate_read_what_the_checkpoint_detects(exported, checkpoint, images):
    assert_verified(exported, images)
    layout = exported.manifest.settings.postprocess
    config = yaml.safe_load((exported.folder / "frigate.yml").read_text())
    side = config["model"]["width"]
    assert config["model"]["model_type"] == LAYOUTS[layout]
    lines = (exported.folder / "labelmap.txt").read_text().splitlines()
    names = {int(number): name for number, name in (line.split(maxsplit=1) for line in lines)}
    # Noise: equal scores have no order.
    pixels = np.random.default_rng(0).integers(0, 256, (side, side, 3), np.uint8)
    session = onnxruntime.InferenceSession(exported.folder / "model.onnx")
    (taken,), (given,) = session.get_inputs(), session.get_outputs()
    assert (taken.type, taken.shape) == ("tensor(uint8)", [1, side, side, 3])
    (output,) = session.run(None, {taken.name: pixels[None]})
    assert list(output.shape) == given.shape
    compiled = openvino_core().compile_model(
        exported.folder / "model.onnx", "CPU", {"INFERENCE_PRECISION_HINT": "f32"}
    )
    assert len(compiled.inputs) == len(compiled.outputs) == 1
    read = read_ssd if layout == "frigate_ssd" else read_yolonas
    wanted = checkpoint.predict(pixels, **EVERY_DETECTION)
    for array in (output, compiled(pixels[None])[0]):
        got = read(array, side)[: len(wanted)]
        np.testing.assert_allclose(got[:, 1], wanted.scores[:20], atol=1e-5)
    got = read(output, side)[: len(wanted)]
    assert [names[int(number)] for number in got[:, 0]] == wanted.names[:20]
    np.testing.assert_allclose(got[:, 2:] * side, wanted.boxes[:20], atol=1e-2)


def test_rows_of_padding_are_no_detections(exported, images):
    """A score threshold that nothing reaches leaves rows of padding."""
    predictor = stillbox.load(exported.folder)
    assert len(predictor.predict(images[0], min_score=1.0)) == 0


@pytest.mark.parametrize(
    ("settings", "place"),
    [
        ({"format": "tflite", "postprocess": "frigate_ssd"}, "postprocess"),
        ({"postprocess": "frigate_ssd", "batch_size": 2}, "batch_size"),
        ({"postprocess": "frigate_yolonas", "signature": "tpu"}, "signature"),
        ({"postprocess": "detection_op"}, "postprocess"),
    ],
)
def test_what_frigate_does_not_take_is_refused(settings, place):
    with refused(Parameter(place)):
        ExportSettings(**{"format": "onnx", **settings}).checked()


@pytest.mark.parametrize(
    ("resizer", "layout"),
    [
        ({"height": 64, "width": 96}, "frigate_ssd"),
        (
            {"kind": "keep_aspect_ratio", "min_dimension": 64, "max_dimension": 96},
            "frigate_yolonas",
        ),
    ],
)
def test_a_resizer_that_frigate_does_not_repeat_is_refused(model, resizer, layout):
    changes = {f"model.resizer.{name}": value for name, value in resizer.items() if name != "kind"}
    if "kind" in resizer:
        changes = {"model.resizer": resizer}
    experiment = apply_changes(model.experiment, changes)
    settings = ExportSettings(format="onnx", postprocess=layout).checked()
    with refused(Parameter("postprocess")):
        settings.with_sizes(experiment.model.resizer)


def test_the_commands_and_the_configuration_of_the_page(exported):
    page = (Path(__file__).parents[2] / "docs" / "frigate.md").read_text(encoding="utf-8")
    parser = argparse.ArgumentParser()
    add_export(parser)
    commands = re.findall(r"^stillbox export (.*)$", page, re.MULTILINE)
    layouts = [parser.parse_args(command.split()).postprocess for command in commands]
    assert layouts == list(LAYOUTS)
    (shown,) = re.findall(r"```yaml\n(detectors:.*?)```", page, re.DOTALL)
    model_type = LAYOUTS[exported.manifest.settings.postprocess]
    if model_type == "ssd":
        side = str(exported.manifest.input_size[0])
        assert (exported.folder / "frigate.yml").read_text().replace(side, "320") == shown
