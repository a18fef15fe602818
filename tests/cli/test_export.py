"""`stillbox export` and the exporters of the originals: flags, refusals, what is printed."""

import json
import re
from pathlib import Path

import pytest

from stillbox import api
from stillbox.cli import detection_api_exports
from stillbox.cli.overrides import changes_of
from stillbox.experiment.resolve import resolve
from stillbox.exporting.export import Exported
from stillbox.exporting.manifest import Manifest
from stillbox.exporting.settings import ExportSettings
from stillbox.exporting.verification import Verification
from tests.experiment.sample import SAMPLE


@pytest.fixture
def asked(monkeypatch):
    """What a command line asks `stillbox.api.export` for; nothing is exported."""
    calls = []

    def export(**arguments):
        calls.append(arguments)
        files = {"model.bin": "the model"}
        manifest = Manifest(
            settings=ExportSettings(format=arguments["format"]),
            files=files,
            input_size=(64, 64),
            resizer={},
            source="test",
        )
        same = Verification(
            images=3, detections=9, max_box_difference=0.01, max_score_difference=1e-6
        )
        return Exported(Path("out"), manifest, same)

    monkeypatch.setattr(api, "export", export)
    return calls


@pytest.fixture
def config_file(tmp_path):
    path = tmp_path / "configs" / "pets.config"
    path.parent.mkdir()
    path.write_text(SAMPLE)
    return path


def test_an_export_is_used_in_place_of_its_model_directory(stillbox, trained, here, scenes):
    out, err = stillbox("export", trained, "--format", "stablehlo", "--platforms", "cpu").ended()
    folder = trained / "export" / "stablehlo"
    assert f"{folder}: stablehlo" in out
    assert "model.stablehlo: " in out
    assert re.search(r"^  expires \d{4}-\d\d-\d\d: later", out, re.MULTILINE)
    assert err.endswith(f"next: stillbox serve {folder}\n")
    assert "compared with the checkpoint on 6 images" in out
    assert json.loads((folder / "export.json").read_text())["verified"]["detections"] > 10

    photo = sorted((scenes / "images/val").iterdir())[0]
    out, err = stillbox("predict", folder, photo, "--min-score", "0.001").ended()
    assert json.loads(Path("predictions/predictions.json").read_text())[0]["detections"]
    assert err.endswith(f"next: stillbox serve {folder}\n")

    out, err = stillbox("evaluate", folder, "--output", "report").ended()
    scored = json.loads(Path("report/metrics.json").read_text())
    stillbox("evaluate", trained, "--output", "own")
    exported = json.loads(Path("own/metrics.json").read_text())
    assert scored["images"] == exported["images"] == 6
    assert scored["summary"]["AP"] == pytest.approx(exported["summary"]["AP"], abs=1e-3)


def test_all_options_reach_the_export(stillbox, trained, asked):
    out, _ = stillbox(
        *("export", trained, "--format", "tflite", "--input-type", "image_bytes"),
        *("--input-name", "photo", "--image-size", "48,80", "--batch-size", "0"),
        *("--max-detections", "7", "--no-image-info", "--float-count", "--quantize", "int8"),
        *("--postprocess", "detection_op"),
        *("--signature", "tpu", "--platforms", "cpu,tpu", "--overwrite", "--output", "there"),
        *("--any-size", "--images", "a.jpg", "b.jpg", "--raw"),
    ).ended()
    (arguments,) = asked
    assert arguments["source"] == str(trained)
    assert arguments["output"] == Path("there")
    wanted = {
        "format": "tflite",
        "input_type": "encoded_image_string_tensor",
        "input_name": "photo",
        "image_size": (48, 80),
        "any_size": True,
        "images": [Path("a.jpg"), Path("b.jpg")],
        "batch_size": 0,
        "max_detections": 7,
        "image_info": False,
        "normalized_coordinates": False,
        "float_count": True,
        "float_classes": False,
        "quantize": "int8",
        "postprocess": "detection_op",
        "signature": "tpu",
        "platforms": ("cpu", "tpu"),
        "raw": True,
        "overwrite": True,
    }
    assert {name: arguments[name] for name in wanted} == wanted
    of_the_model = {"source", "weights", "step", "overrides"}
    assert arguments.keys() == wanted.keys() | of_the_model | {"output", "say"}
    assert "boxes within 0.01 pixels, scores within 1e-06" in out


def test_the_signature_is_the_experiment_s_unless_it_is_given(stillbox, trained, asked):
    stillbox("export", trained)
    assert "signature" not in asked[0]


@pytest.mark.parametrize(
    "words, message",
    [
        (("--format", "stablhlo"), "did you mean 'stablehlo'?"),
        (("--format", "onnx", "--input-type", "tf_example"), "cannot decode image files"),
        (("--image-size", "640"), "'640' is no size"),
        (("--format", "stablehlo", "--platforms", "gpu"), "there is no platform 'gpu'"),
    ],
)
def test_invalid_settings_are_refused(refused, trained, words, message):
    assert message in refused("export", trained, *words)
    assert not (trained / "export").exists() or not list((trained / "export").iterdir())


def test_a_folder_without_a_checkpoint_is_refused(refused, tmp_path):
    assert "this is not a model directory" in refused("export", tmp_path)


PAGE = (
    "--use_tpu=true",
    "--params_override=",
    "--batch_size=1",
    "--input_type=image_bytes",
    "--input_name=input",
    "--input_image_size=128,96",
    "--output_image_info=true",
    "--output_normalized_coordinates=false",
    "--cast_num_detections_to_float=true",
)


def test_the_flags_of_the_tpu_page(stillbox, trained, asked):
    _, err = stillbox(
        "export_saved_model.py", "--export_dir=out", f"--checkpoint_path={trained}", *PAGE
    ).ended()
    (arguments,) = asked
    assert arguments["source"] == trained
    assert arguments["overrides"] == {"model.resizer.height": 128, "model.resizer.width": 96}
    wanted = {
        "output": Path("out"),
        "format": "saved_model",
        "signature": "tpu",
        "input_type": "encoded_image_string_tensor",
        "input_name": "input",
        "image_size": None,
        "batch_size": 1,
        "image_info": True,
        "normalized_coordinates": False,
        "float_count": True,
        "float_classes": False,
        "overwrite": False,
    }
    assert {name: arguments[name] for name in wanted} == wanted
    assert "--use_tpu" in err


def test_parameters_of_the_tpu_page_build_the_model_for_a_checkpoint(stillbox, asked):
    stillbox(
        *("export_saved_model", "--export_dir=out", "--checkpoint_path=model.ckpt-9"),
        *("--params_override=architecture.num_classes=7", "--batch_size=-1"),
        *("--input_type=image_tensor", "--override_export_dir", "--nooutput_image_info"),
    ).ended()
    (arguments,) = asked
    assert arguments["weights"] == "model.ckpt-9"
    assert arguments["source"].model.num_classes == 6  # without the background
    assert arguments["source"].model.resizer.input_size == (640, 640)
    assert arguments["source"].export.signature == "tpu"
    assert arguments["image_size"] == (640, 640)
    assert arguments["batch_size"] == 0
    assert arguments["overwrite"] and not arguments["image_info"]


def test_parameters_cannot_change_a_model_of_another_kind(refused, trained):
    message = refused(
        *("export_saved_model", "--export_dir=out", f"--checkpoint_path={trained}"),
        "--params_override=architecture.num_classes=7",
    )
    assert "was not trained from a parameter dictionary" in message


def test_the_flags_of_the_detection_api(stillbox, asked, tmp_path, trained, config_file):
    stillbox(
        *("exporter_main_v2.py", "--input_type", "tf_example", "--pipeline_config_path"),
        *(config_file, "--trained_checkpoint_dir", tmp_path, "--output_directory", tmp_path),
        *("--config_override", "model { ssd { num_classes: 5 } }"),
    ).ended()
    (arguments,) = asked
    assert arguments["source"].model.num_classes == 5
    assert arguments["weights"] == tmp_path
    assert (arguments["format"], arguments["signature"]) == ("saved_model", "detection_api")
    assert arguments["input_type"] == "tf_example"
    written = (tmp_path / "pipeline.config").read_text()
    assert resolve(tmp_path / "pipeline.config").experiment.model.num_classes == 5
    assert written.count("num_classes") == 1


@pytest.mark.parametrize("config", ["demo_scenes", "e.yaml", "p.config"])
def test_an_export_has_a_pipeline_config_of_its_own_or_none(
    stillbox, asked, tmp_path, config, config_file, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    Path("p.config").write_text(config_file.read_text())
    Path("e.yaml").write_text("recipe: demo_scenes\n")
    Path("out").mkdir()
    change = ("--set", "evaluation.batch_size=3") if config == "p.config" else ()
    _, err = stillbox(
        *("exporter_main_v2", "--pipeline_config_path", config, "--output_directory", "out"),
        *("--trained_checkpoint_dir", tmp_path, *change),
    ).ended()
    if config == "p.config":
        first = "# changed by --set evaluation.batch_size=3\n"
        assert Path("out/pipeline.config").read_text() == first + config_file.read_text()
    else:
        assert not Path("out/pipeline.config").exists()
        assert f"no pipeline.config is written: {config} is none" in err


@pytest.mark.parametrize("with_config", [False, True])
def test_the_checkpoints_folder_of_a_model_directory_is_taken_for_it(
    stillbox, asked, trained, config_file, with_config
):
    config = ("--pipeline_config_path", config_file) if with_config else ()
    stillbox(
        *("exporter_main_v2", "--trained_checkpoint_dir", trained / "checkpoints", *config),
        *("--output_directory", trained.parent),
    ).ended()
    (arguments,) = asked
    assert arguments["weights" if with_config else "source"] == trained


@pytest.mark.parametrize("regular", [False, True])
def test_the_flags_of_the_tflite_exporter(stillbox, asked, trained, regular, monkeypatch):
    # The convertible graph goes into the folder of the export, which is not written here.
    module = "stillbox.cli.detection_api_exports"
    monkeypatch.setattr(f"{module}._write_convertible", lambda model, arguments: None)
    words = ["--ssd_use_regular_nms", "--overwrite"] * regular
    stillbox(
        *("export_tflite_graph_tf2", "--trained_checkpoint_dir", trained),
        *("--output_directory", "out", "--max_detections", "20", *words),
    ).ended()
    (arguments,) = asked
    assert (arguments["format"], arguments["max_detections"]) == ("tflite", 20)
    assert arguments["overwrite"] is regular
    # TFLite_Detection_PostProcess keeps only the best class of each box by default.
    agnostic = arguments["overrides"].get("model.postprocessing.nms.class_agnostic", False)
    assert agnostic is not regular


@pytest.mark.parametrize(
    "words, message",
    [
        (("--use_side_inputs=True",), "side inputs belong to context models"),
        (("--input_type", "image_and_boxes_tensor"), "image_and_boxes_tensor is not supported"),
        (("--config_override", "model {}"), "there is no CONFIG to merge it into"),
    ],
)
def test_unsupported_flags_of_the_exporter_are_refused(refused, trained, words, message):
    command = ("exporter_main_v2", "--trained_checkpoint_dir", trained, "--output_directory", "x")
    assert message in refused(*command, *words)


def test_exports_in_the_way_and_checkpoints_without_a_config_are_refused(
    refused, trained, tmp_path
):
    (tmp_path / "export.json").write_text("{}")
    words = ("--trained_checkpoint_dir", trained, "--output_directory", tmp_path)
    said = refused("exporter_main_v2", *words)
    assert "add --overwrite, or give another --output_directory" in said
    command = ("exporter_main_v2", "--trained_checkpoint_dir", tmp_path, "--output_directory", "x")
    assert "give the pipeline.config of the checkpoint" in refused(*command)


@pytest.mark.parametrize("inside", ["--pipeline_config_path", "--trained_checkpoint_dir"])
def test_an_export_does_not_replace_its_own_input(refused, asked, config_file, tmp_path, inside):
    inputs = {"--pipeline_config_path": config_file, "--trained_checkpoint_dir": tmp_path / "a/b"}
    words = [word for option in inputs.items() for word in option]
    output = ("--output_directory", inputs[inside].parent)
    message = refused("exporter_main_v2", *words, *output, "--overwrite")
    assert f"{inside}: {inputs[inside]} is in {inputs[inside].parent}" in message
    assert not asked


def test_a_placeholder_stands_for_the_label_map_of_coco(capsys):
    place = "label_map=PATH_TO_BE_CONFIGURED/mscoco_label_map.pbtxt"
    words = [f"data.train.{place}", "data.evaluation.label_map=own.pbtxt"]
    experiment = resolve("ssd_mobilenet_v1_300x300", changes_of(words)).experiment
    data = detection_api_exports._with_classes(experiment)
    assert (data.data.train.label_map, data.data.evaluation.label_map) == ("coco", "own.pbtxt")
    assert "the label map of the config is a placeholder" in capsys.readouterr().err
    few = resolve(
        "ssd_mobilenet_v1_300x300", changes_of([*words, "model.num_classes=3"])
    ).experiment
    assert detection_api_exports._with_classes(few) == few
