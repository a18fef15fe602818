"""Packed models: one file or folder with weights, experiment and label map."""

import numpy as np
import pytest

from stillbox.checking.doctor import examine_folder
from stillbox.checkpoints.packed import find_model, open_model, pack_model, results_folder
from stillbox.checkpoints.trained import load_trained
from stillbox.errors import UserError


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


def test_a_checkpoint_is_opened_by_its_own_folder(trained_once):
    step = open_model(trained_once).step
    folder = trained_once / "checkpoints" / str(step)
    assert load_trained(folder).step == step
    assert results_folder(folder) == results_folder(trained_once) == trained_once
    with pytest.raises(UserError, match=f"of step {step}, not of 7"):
        open_model(folder, 7)


def test_nothing_is_replaced_unasked(trained_once, packed):
    for name in ("model.stillbox", "model"):
        with pytest.raises(UserError, match="--overwrite"):
            pack_model(trained_once, packed / name)
        pack_model(trained_once, packed / name, overwrite=True)
    with pytest.raises(UserError, match="packed already"):
        pack_model(packed / "model.stillbox", packed / "again.stillbox")
    assert sorted(path.name for path in packed.iterdir()) == ["model", "model.stillbox"]


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
    with pytest.raises(UserError, match="no packed model of stillbox"):
        find_model(path)
