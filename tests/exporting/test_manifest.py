"""The manifest of an export: reading, refusals, and the input and boxes of an artefact."""

import json
import os
import random
import shutil
from dataclasses import replace

import numpy as np
import pytest

import stillbox
from stillbox import api
from stillbox.checkpoints.trained import TrainedModel
from stillbox.cli.overrides import changes_of
from stillbox.errors import UserError
from stillbox.evaluation.results import NotFiniteError
from stillbox.experiment.resolve import changed
from stillbox.exporting import backend
from stillbox.exporting.benchmarking.runner import benchmark
from stillbox.exporting.export import export_model
from stillbox.exporting.manifest import MANIFEST, Manifest
from stillbox.exporting.settings import ExportSettings
from stillbox.predicting.checkpoint_backend import CheckpointBackend
from stillbox.predicting.predictor import Predictor
from stillbox.references import Parameter
from tests.checkpoints.detectors import age, reseal
from tests.helpers import refused
from tests.small import EVERY_DETECTION
from tools.fuzz.mutations import HOSTILE

IMAGE = np.zeros((64, 64, 3), np.uint8)
MODEL = "saved_model/variables/data"


@pytest.fixture
def loaded(monkeypatch):
    """Folders that a runtime was given; it finds one object in every image."""
    folders = []

    def load(folder, manifest):
        folders.append(folder)
        return lambda images: {
            "num_detections": np.ones(1),
            "detection_boxes": np.full((1, 1, 4), 0.5),
            "detection_scores": np.ones((1, 1)),
            "detection_classes": np.ones((1, 1)),
        }

    monkeypatch.setattr(backend, "find_loader", lambda form, runtime: load)
    return folders


@pytest.fixture
def folder(trained_once, tmp_path):
    made = tmp_path / "export"
    (made / "saved_model" / "variables").mkdir(parents=True)
    (made / MODEL).write_bytes(bytes(range(256)))
    (made / "saved_model" / "saved_model.pb").write_bytes(b"program")
    for name in ("experiment.yaml", "label_map.pbtxt"):
        shutil.copy(trained_once / name, made)
    Manifest(
        settings=ExportSettings(image_size=(64, 64)),
        files={"saved_model": "the model", "experiment.yaml": "", "label_map.pbtxt": ""},
        input_size=(64, 64),
        resizer={"kind": "fixed_shape"},
        source="runs/owls, step 2",
        needs={"tensorflow": ">=2.19"},
        known_bad=("tensorflow<2.19",),
        written_with={"stillbox": "0.1.0"},
        verified={"detections": 3, "images": 1, "max_box_difference": 0.25},
    ).write(made)
    return made


def use(folder):
    """Loads an export and detects."""
    predictor = api.load(folder)
    assert predictor.backend.max_detections > 0
    return predictor.backend.run([predictor.backend.prepare(IMAGE)])


def test_a_manifest_is_read_as_it_was_written(folder, loaded):
    manifest = Manifest.read(folder)
    assert list(manifest.files) == ["saved_model", "experiment.yaml", "label_map.pbtxt"]
    assert manifest.settings == ExportSettings(image_size=(64, 64))
    assert (manifest.input_size, manifest.known_bad) == ((64, 64), ("tensorflow<2.19",))
    assert len(use(folder)) == 1
    assert loaded == [folder]


@pytest.mark.parametrize(
    "name", [MODEL, "saved_model/saved_model.pb", "experiment.yaml", "label_map.pbtxt"]
)
@pytest.mark.parametrize("change", ["bit", "removed", "outwards", "sparse"])
def test_a_changed_file_reaches_no_runtime(folder, loaded, tmp_path, name, change):
    path = folder / name
    if change == "bit":
        content = bytearray(path.read_bytes())
        content[len(content) // 2] ^= 1
        path.write_bytes(content)
    elif change == "sparse":
        os.truncate(path, 2**34)
    else:
        path.rename(tmp_path / "other")
        if change == "outwards":
            path.symlink_to(tmp_path / "other")
    with pytest.raises(UserError) as caught:
        use(folder)
    assert str(path) in str(caught.value)
    assert f"stillbox doctor {folder}" in caught.value.fix
    assert loaded == []


def test_a_changed_manifest_is_refused(folder, loaded):
    path = folder / MANIFEST
    path.write_text(path.read_text().replace('"batch_size": 1', '"batch_size": 2'))
    with refused("export/export.json"):
        use(folder)


def test_an_export_of_the_version_without_checksums_is_read(folder, loaded):
    age(folder, MANIFEST, version=1)
    assert len(use(folder)) == 1
    assert {state for _, state in Manifest.read(folder).checksums.states()} == {"unknown"}


def test_the_setting_of_a_former_version_is_passed_over(folder):
    wanted = Manifest.read(folder).settings
    stored = json.loads((folder / MANIFEST).read_text())["settings"]
    reseal(folder, MANIFEST, settings=stored | {"web": True})
    assert Manifest.read(folder).settings == wanted


def test_a_file_without_a_checksum_beside_others_is_refused(folder, loaded, tmp_path):
    hidden = (folder / "saved_model").rename(tmp_path / "hidden")
    reseal(folder, MANIFEST)
    hidden.rename(folder / "saved_model")
    with refused("export/export.json", "saved_model"):
        use(folder)


@pytest.mark.parametrize(
    ("field", "value", "says"),
    [
        ("version", 3, "a later stillbox wrote this export"),
        ("version", [], "a later stillbox wrote this export"),
        ("version", True, "a later stillbox wrote this export"),
        ("version", 1, "checksums is not what its version has"),
        ("settings", None, r"settings: settings is a section with named fields"),
        ("settings", {"format": "exe"}, r"settings\.format is one of saved_model, frozen_graph"),
        ("settings", {"formt": "onnx"}, r"settings: settings has no field 'formt'"),
        ("settings", {"batch_size": -1}, "settings: -1 is out of range"),
        ("settings", {"batch_size": 1.0}, r"settings: settings\.batch_size is a whole number"),
        ("settings", {"batch_size": True}, r"settings: settings\.batch_size is a whole number"),
        ("settings", {"max_detections": 10**400}, "settings: 1000"),
        ("settings", {"image_size": [64]}, r"settings: \(64,\) is not a height and a width"),
        ("settings", {"image_size": [64, 10**9]}, "is not a height and a width"),
        ("settings", {"platforms": ["gpu"]}, "settings: there is no platform 'gpu'"),
        ("settings", {"quantize": "int8"}, "settings: saved_model artefacts have no int8"),
        ("input_size", [64, 0], "input_size is not of sides from 1 to 16,384"),
        ("input_size", [64, 64, 3], "input_size is not a height and a width"),
        ("input_size", "64", "input_size is not a height and a width"),
        ("files", {"../../x": "model"}, r"files is not one of files with checksums"),
        ("files", {"saved_model": 1}, "files is not text"),
        ("needs", [], "needs is not a section"),
        ("known_bad", "x", "known_bad is not a list"),
        ("verified", 3, "verified is not a section"),
        ("colour", "red", "colour is not present where it should be"),
    ],
)
def test_a_field_without_a_sensible_value_is_named(folder, loaded, field, value, says):
    reseal(folder, MANIFEST, **{field: value})
    with pytest.raises(UserError, match=says):
        use(folder)


def places(content, path=()):
    for name, value in content.items():
        yield (*path, name)
        if isinstance(value, dict):
            yield from places(value, (*path, name))


@pytest.mark.parametrize("version", [1, 2])
def test_any_value_in_any_field_is_read_or_refused(folder, loaded, version):
    if version == 1:
        age(folder, MANIFEST, version=1)
    sound = json.loads((folder / MANIFEST).read_text())
    sound.pop("sha256", None)
    values, rng = [*HOSTILE, [1, 2, 3], "a" * 100_000, 1e308], random.Random(version)
    tried = 0
    for *above, last in [place for place in places(sound) if place[:-1] != ("checksums",)]:
        for value in ["removed", *rng.sample(values, 6)]:
            content = json.loads(json.dumps(sound))
            holder = content
            for name in above:
                holder = holder[name]
            holder[last] = value
            if value == "removed":
                del holder[last]
            (folder / MANIFEST).write_text(json.dumps(content))
            tried += 1
            try:
                use(folder)
            except UserError as error:
                assert len(str(error)) < 4000
    assert tried > 200


@pytest.mark.parametrize(
    "text",
    ["[]", "null", "1", '"x"', "{}", "[" * 200_000, '{"version":2}', "9" * 5000, "\xff"],
    ids=range(9),
)
def test_a_file_that_is_no_manifest_is_refused(folder, loaded, text):
    (folder / MANIFEST).write_bytes(text.encode("latin-1"))
    with pytest.raises(UserError):
        use(folder)


def test_a_failing_runtime_is_reported_in_a_sentence(folder, monkeypatch):
    def fail(images):
        raise KeyError("serving_default")

    for run in (fail, lambda images: {}, lambda images: {"num_detections": np.array([np.nan])}):
        monkeypatch.setattr(backend, "find_loader", lambda *names, run=run: lambda *where: run)
        with pytest.raises(UserError, match="the model does not detect in these images"):
            use(folder)


@pytest.mark.parametrize(
    ("form", "runtime"),
    [
        *(("onnx", "jax"), ("stablehlo", "openvino")),
        *(("saved_model", "openvino"), ("tflite", "openvino")),
    ],
)
def test_another_runtime_is_refused(folder, form, runtime):
    with refused(Parameter("runtime"), runtime, form):
        backend.find_loader(form, runtime)
    with refused(Parameter("runtime"), "saved_model"):
        backend.ExportBackend(folder, "openvino")


@pytest.mark.parametrize(
    "use",
    [
        lambda folder: api.load(folder, step=1),
        lambda folder: api.evaluate(folder, step="latest"),
        lambda folder: benchmark(folder, step=1),
        lambda folder: api.evaluate(folder, overrides=changes_of(["model.resizer.height=48"])),
    ],
    ids=["load", "evaluate", "benchmark", "evaluate a changed model"],
)
def test_a_step_or_changes_of_the_model_are_refused(folder, loaded, use):
    with pytest.raises(UserError, match="an export is finished: it takes no weights, no step"):
        use(folder)
    assert not loaded


@pytest.fixture(scope="module")
def padded(model):
    """The tiny model with a resizer that keeps the aspect ratio and pads."""
    changes = {"model.resizer": {"kind": "scale_jitter", "height": 64, "width": 64}}
    return replace(model, experiment=changed(model.experiment, changes))


@pytest.fixture(scope="module")
def exported(padded: TrainedModel, tmp_path_factory):
    """The artefact of the padding model, of one input size."""
    settings = ExportSettings(
        format="stablehlo", input_type="float_image_tensor", platforms=("cpu",)
    )
    return export_model(padded, tmp_path_factory.mktemp("export") / "out", settings, [])


def test_detections_in_the_padding_are_left_out(padded: TrainedModel, exported):
    image = np.random.default_rng(0).integers(0, 256, (40, 80, 3), np.uint8)
    got = stillbox.load(exported.folder).predict(image, **EVERY_DETECTION)
    wanted = Predictor(CheckpointBackend(padded)).predict(image, **EVERY_DETECTION)
    assert exported.manifest.settings.image_size == (64, 64)
    assert len(got) > 10
    assert (got.boxes >= 0).all() and (got.boxes <= [40, 80, 40, 80]).all()
    # The checkpoint takes the size of the image; the artefact finds boxes in the padding too.
    same = [np.abs(wanted.boxes - box).max(axis=1).min() < 0.5 for box in got.boxes]
    assert np.mean(same) > 0.8


def test_a_note_names_the_program_that_runs(exported):
    said = []
    stillbox.load(exported.folder, say=said.append)
    assert said == [
        f"{exported.folder} (stablehlo): an export, a program that runs with your rights"
    ]


def test_raw_predictions_that_are_not_finite_are_refused(exported, monkeypatch):
    predictor = stillbox.load(exported.folder)
    run = predictor.backend._run

    def spoilt(images):
        outputs = run(images)
        return outputs | {"raw_detection_scores": outputs["raw_detection_scores"] * np.nan}

    monkeypatch.setattr(predictor.backend, "_run", spoilt)
    with refused("image", kind=NotFiniteError):
        predictor.predict(np.zeros((40, 80, 3), np.uint8))
