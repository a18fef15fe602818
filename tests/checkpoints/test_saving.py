from contextlib import closing
from dataclasses import replace

import numpy as np
import pytest

from stillbox.checkpoints.model_directory import ModelDirectory
from stillbox.checkpoints.saving import save_weights
from stillbox.checkpoints.tf1_writer import write_tf1_checkpoint
from stillbox.checkpoints.weights_file import open_weights
from stillbox.errors import UserError
from stillbox.experiment import schema
from stillbox.experiment.yaml_config import to_yaml
from tests.checkpoints.resnet_arrays import ssd
from tests.records.test_files import files_up_to

STEM, NECK = "backbone.stem.kernel", "neck.projection_1.kernel"


@pytest.fixture
def directory(tmp_path):
    """A model whose neck has no names beside its backbone's."""
    experiment = schema.Experiment(model=replace(ssd(), neck=schema.Fpn()))
    arrays = {STEM: np.ones((7, 7, 3, 4), np.float32), NECK: np.ones((1, 1, 4, 2), np.float32)}
    with closing(
        ModelDirectory.create(
            tmp_path / "model", experiment=to_yaml(experiment), label_map="", versions={}
        )
    ) as writing:
        writing.save(1, {"params": arrays, "stats": {}}, {})
    return tmp_path / "model"


def test_a_part_without_a_name_table_is_refused_in_a_tf1_checkpoint(directory, tmp_path):
    with pytest.raises(UserError, match="no names in TF1 checkpoints are known for neck 'fpn'"):
        save_weights(directory, tmp_path / "model.ckpt")
    assert [entry.name for entry in tmp_path.iterdir()] == ["model"]


@pytest.mark.parametrize("ending", [".npz", ".safetensors"])
def test_a_part_without_a_name_table_keeps_its_paths_in_other_formats(directory, tmp_path, ending):
    saved = save_weights(directory, tmp_path / f"model{ending}")
    assert (saved.named, saved.own) == (1, (NECK,))
    assert "own names     1\n                  neck.projection_1.kernel\n" in saved.render()
    arrays = open_weights(tmp_path / f"model{ending}").arrays
    assert set(arrays) == {"resnet34/conv2d/kernel", NECK}


@pytest.mark.parametrize("name", ["w.npz", "w.safetensors"])
def test_on_a_full_disk_the_file_is_named_and_nothing_is_left(directory, tmp_path, name):
    before = sorted(tmp_path.iterdir())
    with files_up_to(1000), pytest.raises(OSError, match="File too large") as caught:
        save_weights(directory, tmp_path / name)
    assert name in caught.value.filename
    assert sorted(tmp_path.iterdir()) == before


def test_on_a_full_disk_nothing_is_left_of_a_checkpoint_of_tensorflow(tmp_path):
    with files_up_to(1000), pytest.raises(OSError, match="File too large") as caught:
        write_tf1_checkpoint(tmp_path / "model.ckpt", {"a": np.ones(5000, np.float32)})
    assert "model.ckpt" in caught.value.filename
    assert list(tmp_path.iterdir()) == []
