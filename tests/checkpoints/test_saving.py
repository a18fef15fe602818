from contextlib import closing
from dataclasses import replace

import numpy as np
import pytest

from stillbox.checkpoints.model_directory import ModelDirectory
from stillbox.checkpoints.saving import save_weights
from stillbox.checkpoints.weights_file import open_weights
from stillbox.errors import UserError
from stillbox.experiment import schema
from stillbox.experiment.yaml_config import to_yaml
from tests.checkpoints.resnet_arrays import ssd

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
