"""Model directories, and one that version 0.1.0 wrote before `model.kind` existed.

`before_the_seam` was trained 300 steps on the scenes of the fixture `scenes`; `expected.json`
holds what the same version found in a synthetic image and the losses of its next two steps.
"""

import json
import os
import shutil
import threading
from functools import partial
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import stillbox
from stillbox.checkpoints.array_files import write_npz
from stillbox.checkpoints.model_directory import ModelDirectory, is_model_directory
from stillbox.cli.main import main
from stillbox.devices.announcing import announcing
from stillbox.errors import UserError
from stillbox.experiment.yaml_config import from_yaml
from tests.checkpoints.detectors import age, reseal
from tests.helpers import refused
from tests.small import EVERY_DETECTION

VERSIONS = {"stillbox": "0.1.0", "jax": "0.10.0"}


def _create(path, **options):
    return ModelDirectory.create(
        path, experiment="name: cells\n", label_map="item {}\n", versions=VERSIONS, **options
    )


@pytest.fixture
def directory(tmp_path):
    return _create(tmp_path / "run")


def _state(seed=0):
    """A training state with everything that one may hold."""
    generator = np.random.default_rng(seed)
    params = {
        "backbone.conv_0.kernel": jnp.asarray(generator.standard_normal((3, 3, 3, 8)), jnp.float32),
        "head.map_0.box.bias": jnp.asarray(generator.standard_normal(12), jnp.bfloat16),
    }
    optimizer = optax.chain(optax.clip_by_global_norm(1.0), optax.adam(1e-3)).init(params)
    return {
        "step": jnp.asarray(seed, jnp.int32),
        "params": params,
        "stats": {"backbone.conv_0.norm.mean": jnp.asarray([np.nan, -0.0, 1e-40], jnp.float32)},
        "optimizer": optimizer,
        "ema": jax.tree.map(lambda array: array * 2, params),
        "key": jnp.asarray([0xFFFFFFFF, seed], jnp.uint32),
    }


def _assert_same_bits(a, b):
    assert jax.tree.structure(a) == jax.tree.structure(b)
    for left, right in zip(jax.tree.leaves(a), jax.tree.leaves(b), strict=True):
        assert left.dtype == right.dtype
        assert left.shape == right.shape
        assert np.asarray(left).tobytes() == np.asarray(right).tobytes()


def test_a_state_comes_back_bit_for_bit_in_its_own_structure(directory):
    state = _state(5)
    with jax.transfer_guard("disallow"):
        directory.save(5, state, {})
    restored = directory.restore(5, _state(0))
    _assert_same_bits(restored, state)
    assert isinstance(restored["params"]["backbone.conv_0.kernel"], jax.Array)
    # Shapes are enough.
    restored = directory.restore(5, jax.eval_shape(lambda: _state(0)))
    _assert_same_bits(restored, state)
    assert isinstance(restored["params"]["backbone.conv_0.kernel"], np.ndarray)
    # Sections that are not asked for are not read.
    assert directory.restore(5, {"step": np.zeros((), np.int32)}) == {"step": 5}


def test_parameters_are_found_without_knowing_the_optimizer(directory):
    state = _state(5)
    directory.save(5, state, {})
    arrays = directory.checkpoint().parameters()
    assert arrays.keys() == state["params"].keys() | state["stats"].keys()
    averages = directory.checkpoint("latest").parameters(prefer_ema=True)
    name = "backbone.conv_0.kernel"
    assert np.array_equal(arrays[name], state["params"][name])
    assert np.array_equal(averages[name], state["ema"][name])
    assert averages.keys() == arrays.keys()
    # Without an average the parameter is returned.
    directory.save(6, {"params": {"w": np.ones(2)}, "stats": {}, "ema": {}}, {})
    assert list(directory.checkpoint().parameters(prefer_ema=True)) == ["w"]


def test_a_checkpoint_folder_is_self_contained(directory):
    metadata = {"loader": {"next_step": 5, "seed": 3}, "best": None, "scores": {"AP": 0.25}}
    directory.save(5, _state(5), metadata)
    folder = directory.path / "checkpoints" / "5"
    assert {entry.name for entry in folder.iterdir()} == {
        "checkpoint.json",
        "experiment.yaml",
        "label_map.pbtxt",
        "versions.json",
        *(f"{section}.npz" for section in _state()),
    }
    assert directory.read_metadata(5) == metadata
    checkpoint = directory.checkpoint(5)
    assert checkpoint.experiment == "name: cells\n"
    assert checkpoint.label_map == "item {}\n"
    assert json.loads((folder / "versions.json").read_text()) == VERSIONS
    assert (directory.experiment, directory.label_map) == ("name: cells\n", "item {}\n")


def test_the_newest_and_the_best_are_kept(tmp_path):
    directory = _create(tmp_path / "run", keep=2)
    for step in range(1, 7):
        directory.save(step, {"step": np.array(step)}, {})
        if step == 2:
            directory.mark_best(2, "AP", 0.4)
    assert directory.steps() == (2, 5, 6)
    assert directory.best() == (2, "AP", 0.4)
    directory.mark_best(6, "AP", 0.5)
    assert directory.steps() == (5, 6)
    assert (directory.best().step, directory.latest_step()) == (6, 6)
    assert directory.checkpoint("best").step == 6


def test_steps_are_ordered_as_numbers_and_0_keeps_all(tmp_path):
    directory = _create(tmp_path / "run", keep=0)
    for step in (9, 10, 100):
        directory.save(step, {"step": np.array(step)}, {})
    assert directory.steps() == (9, 10, 100)


def test_the_best_is_the_newest_where_none_was_marked_and_is_never_written_again(directory):
    directory.save(3, {"step": np.array(3)}, {})
    assert directory.best() is None
    assert directory.checkpoint("best").step == 3
    with pytest.raises(FileExistsError):
        directory.save(3, {"step": np.array(4)}, {})
    assert directory.checkpoint(3).read("step") == {"value": 3}


def test_checkpoints_are_written_in_the_background(directory):
    for step in (1, 2, 3):
        directory.save(step, _state(step), {}, wait=False)
    directory.wait()
    assert directory.steps() == (1, 2, 3)
    _assert_same_bits(directory.restore(3, _state(0)), _state(3))
    directory.close()
    assert not [thread for thread in threading.enumerate() if "checkpoint" in thread.name]


def test_errors_of_background_writing_are_raised_by_wait(directory):
    directory.save(1, {"step": np.array(1)}, {"not for JSON": object()}, wait=False)
    with pytest.raises(TypeError, match="JSON"):
        directory.wait()
    assert directory.steps() == ()


def test_leftovers_of_a_killed_run_are_ignored_and_removed(directory):
    directory.save(1, _state(1), {})
    for name in (".unfinished-2", ".deleted-0"):
        (directory.path / "checkpoints" / name).mkdir()
        (directory.path / "checkpoints" / name / "params.npz").write_bytes(b"half")
    (directory.path / ".best.json.unfinished").write_bytes(b"half")
    assert ModelDirectory.open(directory.path).steps() == (1,)
    # Reading leaves it alone: it may be a training run that is writing right now.
    assert (directory.path / "checkpoints" / ".unfinished-2").exists()
    directory.close()
    again = _create(directory.path)
    assert [entry.name for entry in (again.path / "checkpoints").iterdir()] == ["1"]
    assert not list(again.path.glob(".*.unfinished"))
    again.save(2, _state(2), {})
    assert again.latest_step() == 2


def test_a_second_writer_is_refused_until_the_first_has_closed(directory):
    with pytest.raises(UserError, match="is writing into this directory"):
        _create(directory.path)
    directory.close()
    _create(directory.path).close()


def test_another_experiment_does_not_fit_and_the_message_names_arrays(directory):
    directory.save(1, _state(1), {})
    other = _state(1)
    other["params"]["backbone.conv_0.kernel"] = jnp.zeros((3, 3, 3, 16))
    other["params"]["neck.new"] = jnp.zeros(1)
    with refused("run/checkpoints/1", "params") as caught:
        directory.restore(1, other)
    assert "float32[3, 3, 3, 16] wanted, float32[3, 3, 3, 8] stored" in str(caught.value)
    assert "neck.new: float32[1] wanted, nothing stored" in str(caught.value)


@pytest.mark.parametrize(
    ("wanted", "message"),
    [
        ({"step": np.array(1, np.int64)}, r"value: int64\[\] wanted, int32\[\] stored"),
        ({"parms": {}}, r"no section 'parms'\n  fix: did you mean 'params'\?"),
    ],
)
def test_arrays_of_another_type_and_missing_sections_are_refused(directory, wanted, message):
    directory.save(1, {"step": np.array(1, np.int32), "params": {}}, {})
    with pytest.raises(UserError, match=message):
        directory.restore(1, wanted)


def test_damaged_and_missing_arrays_of_old_checkpoints_are_refused(directory):
    """Of a version without checksums."""
    directory.save(1, _state(1), {})
    path = directory.path / "checkpoints" / "1" / "params.npz"
    age(path.parent)
    content = bytearray(path.read_bytes())
    content[len(content) // 3] ^= 1  # among the first array's values
    path.write_bytes(content)
    with refused("run/checkpoints/1/params.npz", "CRC-32"):
        directory.checkpoint().parameters()
    write_npz(path, {"backbone.conv_0.kernel": np.ones(3)})
    with refused("run/checkpoints/1/params.npz"):
        directory.checkpoint().parameters()
    path.unlink()
    with pytest.raises(UserError, match=r"params\.npz"):
        directory.checkpoint().parameters()


def test_a_newer_format_is_refused(directory):
    directory.save(1, {"params": {}}, {})
    reseal(directory.path / "checkpoints" / "1", format=2)
    with pytest.raises(UserError, match="has format 2, this version reads format 1"):
        directory.checkpoint(1)


def test_opening_another_folder_lists_its_content(tmp_path):
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "photo.jpg").touch()
    with refused("other", "photo.jpg"):
        ModelDirectory.open(tmp_path / "other")
    with pytest.raises(UserError, match=r"no such model directory\n  fix: did you mean 'other'\?"):
        ModelDirectory.open(tmp_path / "othr")
    with refused("s3://bucket/run"):
        ModelDirectory.open(Path("s3://bucket/run"))
    (tmp_path / "file").touch()
    with pytest.raises(UserError, match="is a file"):
        _create(tmp_path / "file")


def test_a_missing_checkpoint_is_refused_with_the_existing_ones(directory, tmp_path):
    assert is_model_directory(directory.path)
    assert not is_model_directory(tmp_path)
    assert directory.latest_step() is None
    with pytest.raises(UserError, match="finished checkpoints: none"):
        directory.checkpoint("latest")
    directory.save(1, {"params": {}}, {})
    with refused("run", 7):
        directory.checkpoint(7)


@pytest.mark.parametrize("call", ["mkdir", "fsync"])
def test_a_directory_whose_disk_does_not_answer_is_named_while_it_is_waited_for(
    tmp_path, monkeypatch, call
):
    said, told, answer = [], threading.Event(), getattr(os, call)

    def say(line):
        said.append(line)
        told.set()

    def answer_late(*arguments):
        assert told.wait(30)
        return answer(*arguments)

    reported = partial(announcing, first=0.01, say=say)
    monkeypatch.setattr("stillbox.checkpoints.model_directory.announcing", reported)
    monkeypatch.setattr(os, call, answer_late)
    _create(tmp_path / "run").close()
    assert said[0] == f"waiting for the model directory {tmp_path}/run: 0 s"


OLD = Path(__file__).with_name("before_the_seam")
EXPECTED = json.loads((OLD / "expected.json").read_text())


def test_its_experiment_is_one_stage():
    text = (OLD / "experiment.yaml").read_text()
    assert "one_stage" not in text
    assert from_yaml(text).model.kind == "one_stage"


def test_it_finds_what_it_found():
    image = (np.indices((48, 64)).sum(0)[..., None] * np.array([1, 2, 3]) % 256).astype(np.uint8)
    (detections,) = stillbox.load(OLD).predict([image], **EVERY_DETECTION)
    count = len(EXPECTED["scores"])
    np.testing.assert_allclose(detections.scores[:count], EXPECTED["scores"], atol=1e-6)
    np.testing.assert_allclose(detections.boxes[:count], EXPECTED["boxes"], atol=1e-4)


def test_its_training_goes_on_with_the_same_losses(tmp_path):
    directory = shutil.copytree(OLD, tmp_path / "model")
    words = [f"--set=data.train.paths={OLD}/train.record"]
    words += [f"--set=data.train.label_map={OLD}/label_map.pbtxt"]
    words += ["--set=data.evaluation.paths=[]", "--set=train.steps=302"]
    config = str(OLD / "experiment.yaml")
    assert main(["train", config, "--model-dir", str(directory), *words]) == 0
    lines = map(json.loads, (directory / "metrics.jsonl").read_text().splitlines())
    losses = {str(line["step"]): line["loss"] for line in lines if "loss" in line}
    assert losses == pytest.approx(EXPECTED["loss"], rel=1e-6)
