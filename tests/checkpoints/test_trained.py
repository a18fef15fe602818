"""Loading a trained model from its model directory, and writing its weights."""

import shutil
import subprocess
import sys
from contextlib import closing
from dataclasses import replace

import jax
import numpy as np
import pytest

from stillbox.checking.doctor import examine_folder
from stillbox.checkpoints.array_files import NpzFile, write_npz
from stillbox.checkpoints.importer import load_weights
from stillbox.checkpoints.model_directory import ModelDirectory
from stillbox.checkpoints.packed import find_model, open_model, pack_model, results_folder
from stillbox.checkpoints.saving import save_weights
from stillbox.checkpoints.tf1 import write_tf1_checkpoint
from stillbox.checkpoints.trained import load_trained
from stillbox.checkpoints.weights_file import open_weights
from stillbox.cli.overrides import changes_of
from stillbox.errors import UserError
from stillbox.evaluation.program import predict_program
from stillbox.experiment import schema
from stillbox.experiment.yaml_config import to_yaml
from stillbox.models.build import build_detector
from stillbox.models.variables import split_detector
from tests.checkpoints.detectors import age, reseal, ssd, write_trained
from tests.helpers import refused
from tests.records.test_files import files_up_to


def filled(arrays, value):
    return {path: np.full(array.shape, value, np.float32) for path, array in arrays.items()}


@pytest.fixture
def settings(experiment):
    return experiment("model.postprocessing.nms.score_threshold=0.0", evaluated=False)


@pytest.fixture
def directory(settings, scenes, tmp_path):
    """Checkpoints of steps 1 to 3; all values are the step, averages a hundred times that."""
    _, params, stats = split_detector(build_detector(settings.model))
    with closing(
        ModelDirectory.create(
            tmp_path / "model",
            experiment=to_yaml(settings),
            label_map=(scenes / "label_map.pbtxt").read_text(),
            versions={},
        )
    ) as writing:
        for step in (1, 2, 3):
            arrays = {"params": filled(params, step), "stats": filled(stats, step)}
            writing.save(step, arrays | {"ema": filled(params, 100 * step)}, {})
        writing.mark_best(2, "AP", 0.5)
    return tmp_path / "model"


def values(model):
    return {float(array.max()) for array in model.params.values()}


def test_a_model_directory_is_loaded_without_what_reads_the_weights_of_others():
    code = "import stillbox.checkpoints.trained, sys; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    others = ("importer", "weights_file", "graphs", "tf1", "tf2", "torch_file", "names")
    assert not {f"stillbox.checkpoints.{name}" for name in others} & set(done.stdout.split())


def test_the_average_of_the_best_checkpoint_is_loaded(directory, settings):
    model = load_trained(directory)
    assert model.step == 2
    assert model.experiment == settings
    assert values(model) == {200.0}
    assert {float(array.max()) for array in model.stats.values()} == {2.0}
    assert model.source == f"{directory}, step 2"
    assert model.class_names()[1] == "disc"


def test_a_checkpoint_can_be_chosen_and_the_newest_is_loaded_where_none_was_marked(directory):
    for step, loaded in (("latest", 300.0), (1, 100.0), ("best", 200.0)):
        assert values(load_trained(directory, step=step)) == {loaded}
    (directory / "best.json").unlink()
    assert load_trained(directory).step == 3


def test_overrides_change_the_stored_experiment(directory):
    model = load_trained(directory, overrides=changes_of(["evaluation.use_ema=false", "name=mine"]))
    assert values(model) == {2.0}
    assert model.experiment.name == "mine"


def test_overrides_that_the_weights_do_not_fit_are_refused(directory):
    for override, message in (
        ("model.num_classes=7", r"4 of 33 arrays differ: head.map_0.class_.bias: \[32\] .* \[28\]"),
        ("model.backbone.conv.batch_norm=", r"backbone.conv_0.bias: \[8\] wanted, nothing stored"),
        ("model.num_classes=0", "model.num_classes is 0"),
        ("model.classes=3", "has no field 'classes'"),
    ):
        with pytest.raises(UserError, match=message):
            load_trained(directory, overrides=changes_of([override]))


def test_a_loaded_model_detects_in_batches_of_any_size(settings, directory):
    model = load_trained(directory, overrides=changes_of(["evaluation.use_ema=false"]))
    _, params, stats = split_detector(build_detector(settings.model, seed=1))
    model.params.update(params)
    model.stats.update(stats)
    for count in (1, 2):
        detect = predict_program(model.experiment, batch_size=count).bind(model.params, model.stats)
        detections = detect(
            np.full((count, 64, 64, 3), 128, np.float32), np.full((count, 2), 64, np.int32)
        )
        assert detections.boxes.shape[0] == count
        assert np.isfinite(jax.device_get(detections.scores)).all()


@pytest.fixture
def weights(settings, tmp_path):
    """A file with all arrays under our own paths."""
    _, params, stats = split_detector(build_detector(settings.model))
    path = tmp_path / "w.npz"
    arrays = filled(params, 1) | filled(stats, 2)
    write_npz(path, arrays)
    return path, arrays


def test_a_weights_file_is_loaded_completely_or_refused(settings, weights):
    path, arrays = weights
    model = load_weights(settings, str(path))
    assert values(model) == {1.0}
    assert (model.label_map, model.class_names(), model.report.loaded_share) == (None, {}, 1)
    arrays.pop("head.map_1.box.bias")
    write_npz(path, arrays)
    with refused("w.npz"):
        load_weights(settings, str(path))


@pytest.mark.parametrize(("use_ema", "loaded"), [("true", 200.0), ("false", 2.0)])
def test_the_average_of_a_model_directory_is_taken_where_it_is_wanted(
    experiment, directory, use_ema, loaded
):
    settings = experiment(f"evaluation.use_ema={use_ema}", evaluated=False)
    model = load_weights(settings, str(directory))
    assert values(model) == {loaded}


def test_weights_below_the_home_folder_have_their_label_map(directory, settings, monkeypatch):
    monkeypatch.setenv("HOME", str(directory.parent))
    assert load_weights(settings, "~/model").class_names()[1] == "disc"


def test_weights_that_are_not_finite_are_refused_by_name(directory):
    path = directory / "checkpoints" / "2" / "ema.npz"
    arrays = dict(NpzFile(path))
    name = min(arrays)
    arrays[name].flat[0] = np.nan
    write_npz(path, arrays)
    reseal(path.parent)
    with pytest.raises(UserError, match="values that are not finite") as caught:
        load_trained(directory)
    assert repr(name) in caught.value.what
    assert "an earlier checkpoint" in caught.value.fix
    # The parameters themselves are sound.
    assert load_trained(directory, overrides=changes_of(["evaluation.use_ema=false"])).step == 2


STEM, NECK = "backbone.stem.kernel", "neck.projection_1.kernel"


@pytest.fixture
def untrained_directory(tmp_path):
    """A model with a neck that has no names beside its backbone's."""
    arrays = {STEM: np.ones((7, 7, 3, 4), np.float32), NECK: np.ones((1, 1, 4, 2), np.float32)}
    return write_trained(tmp_path / "model", replace(ssd(), neck=schema.Fpn()), arrays)


def test_a_part_without_a_name_table_is_refused_in_a_tf1_checkpoint(untrained_directory, tmp_path):
    with refused("model.ckpt", "TF1", "fpn"):
        save_weights(untrained_directory, tmp_path / "model.ckpt")
    assert [entry.name for entry in tmp_path.iterdir()] == ["model"]


@pytest.mark.parametrize("ending", [".npz", ".safetensors"])
def test_a_part_without_a_name_table_keeps_its_paths_in_other_formats(
    untrained_directory, tmp_path, ending
):
    saved = save_weights(untrained_directory, tmp_path / f"model{ending}")
    assert (saved.named, saved.unnamed) == (1, (NECK,))
    assert "own names     1\n                  neck.projection_1.kernel\n" in saved.render()
    arrays = open_weights(tmp_path / f"model{ending}").arrays
    assert set(arrays) == {"resnet34/conv2d/kernel", NECK}


@pytest.mark.parametrize("name", ["w.npz", "w.safetensors", "model.ckpt"])
def test_on_a_full_disk_the_file_is_named_and_nothing_is_left(untrained_directory, tmp_path, name):
    before = sorted(tmp_path.iterdir())
    with files_up_to(1000), pytest.raises(OSError, match="File too large") as caught:
        if name == "model.ckpt":
            write_tf1_checkpoint(tmp_path / name, {"a": np.ones(5000, np.float32)})
        else:
            save_weights(untrained_directory, tmp_path / name)
    assert name in caught.value.filename
    assert sorted(tmp_path.iterdir()) == before


@pytest.fixture(scope="module")
def packed(trained_once, tmp_path_factory):
    """The folder with `model.stillbox` and `model`, packed from one model directory."""
    folder = tmp_path_factory.mktemp("packed")
    for name in ("model.stillbox", "model"):
        written = pack_model(trained_once, folder / name)
        # Names and texts, whatever the size of the weights: 2 % of the demo's model.
        assert written.size < written.weights + 30_000
    return folder


@pytest.mark.parametrize("name", ["model.stillbox", "model"])
def test_a_packed_model_is_the_trained_one(trained_once, packed, name):
    trained, model = load_trained(trained_once), load_trained(packed / name)
    assert (model.step, model.label_map) == (trained.step, trained.label_map)
    assert model.experiment.model == trained.experiment.model
    for ours, theirs in ((model.params, trained.params), (model.stats, trained.stats)):
        assert ours.keys() == theirs.keys()
        assert all(np.array_equal(ours[path], theirs[path]) for path in ours)
    assert not examine_folder(packed / name).problems


def test_the_weights_of_a_packed_model_are_averages_as_those_of_its_run(
    trained_once, packed, tmp_path
):
    for source in (trained_once, packed / "model", packed / "model.stillbox"):
        assert save_weights(source, tmp_path / "w.npz", overwrite=True).averaged


def test_a_checkpoint_is_opened_by_its_own_folder(trained_once):
    step = open_model(trained_once).step
    folder = trained_once / "checkpoints" / str(step)
    assert load_trained(folder).step == step
    assert results_folder(folder) == results_folder(trained_once) == trained_once
    with refused("model/checkpoints/2", step, 7):
        open_model(folder, 7)


def test_a_link_out_of_a_foreign_checkpoint_is_not_packed(trained_once, tmp_path):
    step = open_model(trained_once).step
    foreign = shutil.copytree(trained_once / "checkpoints" / str(step), tmp_path / "foreign")
    # The manifest of the checkpoint lists no files.
    age(foreign)
    (tmp_path / "secret").write_text("a key")
    (foreign / "label_map.pbtxt").unlink()
    (foreign / "label_map.pbtxt").symlink_to(tmp_path / "secret")
    with pytest.raises(UserError, match="leads out of"):
        pack_model(foreign, tmp_path / "packed")
    assert not (tmp_path / "packed").exists()


def test_nothing_is_replaced_unasked(trained_once, packed):
    for name in ("model.stillbox", "model"):
        with pytest.raises(UserError, match="overwrite"):
            pack_model(trained_once, packed / name)
        pack_model(trained_once, packed / name, overwrite=True)
    with refused("model.stillbox"):
        pack_model(packed / "model.stillbox", packed / "again.stillbox")
    assert sorted(path.name for path in packed.iterdir()) == ["model", "model.stillbox"]


def test_files_beside_a_packed_model_stay_when_it_is_replaced(trained_once, packed):
    target = packed / "model"
    names = sorted(path.name for path in target.iterdir())
    (target / "notes").mkdir()
    (target / "notes/q.txt").write_text("mine")
    pack_model(trained_once, target, overwrite=True)
    assert sorted(path.name for path in target.iterdir()) == sorted([*names, "notes"])
    assert (target / "notes/q.txt").read_text() == "mine"


def test_a_folder_that_is_no_packed_model_is_not_replaced(tmp_path):
    run = tmp_path / "run"
    with closing(ModelDirectory.create(run, experiment="", label_map="", versions={})) as made:
        made.save(1, {}, {})
    (tmp_path / "photos").mkdir()
    (tmp_path / "photos/owl.jpg").touch()
    for target in (run, run / "checkpoints/1", tmp_path / "photos"):
        with pytest.raises(UserError, match="no packed model, and is not replaced"):
            pack_model(run, target, overwrite=True)


def test_a_file_that_is_no_packed_model_is_not_replaced(trained_once, tmp_path):
    target = tmp_path / "mine.stillbox"
    target.write_text("mine")
    with refused("mine.stillbox"):
        pack_model(trained_once, target, overwrite=True)
    assert target.read_text() == "mine"


def test_damaged_files_are_refused_by_name(packed, tmp_path):
    content = (packed / "model.stillbox").read_bytes()
    header = 8 + int.from_bytes(content[:8], "little")
    random, damaged = np.random.default_rng(0), tmp_path / "damaged.stillbox"
    places = [*random.integers(0, header, 60), *random.integers(header, len(content), 3)]
    for place in places:
        bytes_now = bytearray(content)
        bytes_now[place] ^= 1 << int(random.integers(8))
        damaged.write_bytes(bytes_now)
        try:
            model = find_model(damaged)
            model.parameters()
            model.read_experiment()
        except UserError as error:
            assert "damaged.stillbox" in str(error)
        else:
            # A letter of a text, such as a name in the label map.
            assert 8 <= place < header
    damaged.write_bytes(content[: header + 100])
    with pytest.raises(UserError, match="damaged"):
        find_model(damaged)


def test_another_safetensors_is_no_packed_model(tmp_path):
    from safetensors.numpy import save_file

    path = tmp_path / "other.stillbox"
    save_file({"a": np.zeros(3, np.float32)}, path)
    with refused("other.stillbox"):
        find_model(path)
