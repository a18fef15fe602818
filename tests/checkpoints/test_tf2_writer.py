"""Writing TF2 checkpoints; the reader is tested with those of another writer and of TensorFlow."""

from contextlib import closing

import numpy as np
import pytest

from stillbox.checkpoints.importer import read_weights
from stillbox.checkpoints.model_directory import ModelDirectory
from stillbox.checkpoints.saving import save_weights
from stillbox.checkpoints.tf1 import Tf1Checkpoint
from stillbox.checkpoints.tf1_writer import write_tf1_checkpoint
from stillbox.checkpoints.tf2 import Tf2Checkpoint, write_tf2_checkpoint
from stillbox.cli.main import main
from stillbox.errors import UserError
from stillbox.experiment import schema
from stillbox.experiment.yaml_config import to_yaml
from tests.checkpoints.tf2_writer import object_graph as graph_of

ARRAYS = {
    "model/layers/0/kernel": np.arange(6, dtype=np.float32).reshape(3, 2),
    "model/layers/1/bias": np.float32([5, 7]),
    "model/scale": np.float64(0.5),
}


def test_variables_come_back_by_path(tmp_path):
    write_tf2_checkpoint(tmp_path / "ckpt-1", ARRAYS)
    checkpoint = Tf2Checkpoint(Tf1Checkpoint(tmp_path / "ckpt-1"))
    assert set(checkpoint) == {*ARRAYS, "save_counter"}
    for path, array in ARRAYS.items():
        assert checkpoint.find(path) == path
        np.testing.assert_array_equal(checkpoint[path], array)


def test_a_text_comes_back(tmp_path):
    for text in (b"", b"short", bytes(300)):
        write_tf1_checkpoint(tmp_path / "t", {"text": text, "w": np.ones(2, np.float32)})
        assert Tf1Checkpoint(tmp_path / "t").read_text("text") == text


def test_tensorflow_restores_every_object_from_it(tmp_path):
    tf = pytest.importorskip("tensorflow")
    write_tf2_checkpoint(tmp_path / "ckpt-1", ARRAYS)
    model, layers = tf.Module(), [tf.Module(), tf.Module()]
    model.layers, model.scale = layers, tf.Variable(0.0, dtype=tf.float64)
    layers[0].kernel, layers[1].bias = tf.Variable(tf.zeros([3, 2])), tf.Variable(tf.zeros([2]))
    status = tf.train.Checkpoint(model=model).restore(str(tmp_path / "ckpt-1"))
    # Of the file and of the objects nothing is left over.
    status.assert_consumed().assert_existing_objects_matched()
    held = (layers[0].kernel, layers[1].bias, model.scale)
    for variable, array in zip(held, ARRAYS.values(), strict=True):
        np.testing.assert_array_equal(variable.numpy(), array)
    listed = dict(tf.train.list_variables(str(tmp_path / "ckpt-1")))
    assert listed["model/layers/0/kernel/.ATTRIBUTES/VARIABLE_VALUE"] == [3, 2]
    # And the graph of the tests' own writer is understood alike.
    proto = pytest.importorskip("tensorflow.core.protobuf.trackable_object_graph_pb2")
    parsed = proto.TrackableObjectGraph.FromString(graph_of({"a/b": "a/b"}))
    assert [[c.local_name for c in node.children] for node in parsed.nodes] == [["a"], ["b"], []]


# As much of a detector as has names of every kind.
SHAPES = {
    "backbone.conv_0.kernel": (3, 3, 3, 4),
    "backbone.conv_0.norm.mean": (4,),
    "backbone.conv_1_depthwise.kernel": (3, 3, 4, 1),
    "neck.extra_2_1x1.kernel": (1, 1, 4, 2),
    "head.map_1.class_.bias": (6,),
}


@pytest.fixture
def train(tmp_path):
    """The function that writes a model directory with drawn weights, and returns these."""

    def write(model):
        rng = np.random.default_rng(0)
        drawn = {path: np.float32(rng.normal(size=shape)) for path, shape in SHAPES.items()}
        experiment = to_yaml(schema.Experiment(model=model))
        with closing(
            ModelDirectory.create(tmp_path / "m", experiment=experiment, label_map="", versions={})
        ) as directory:
            directory.save(1, {"params": drawn, "stats": {}}, {})
        return drawn

    return write


def test_saved_weights_come_back(tmp_path, train, capsys):
    model = schema.OneStage()
    drawn = train(model)
    command = ["weights", "save", str(tmp_path / "m"), "--to", str(tmp_path / "ckpt-1"), "--tf2"]
    assert main(command) == 0
    assert "renamed       5 as the original names them" in capsys.readouterr().out
    wanted = {"scope": "detection", "load_heads": True, "min_loaded": 1.0}
    report, found = read_weights(drawn, model, tmp_path / "ckpt-1", **wanted)
    assert list(report.skipped) == ["save_counter"]
    assert found.keys() == drawn.keys()
    for path, array in found.items():
        np.testing.assert_array_equal(array, drawn[path])


def test_what_has_no_object_paths_is_refused(tmp_path, train):
    train(schema.OneStage(neck=schema.Ppn()))
    with pytest.raises(UserError, match="no names in TF2 checkpoints are known for neck 'ppn'"):
        save_weights(tmp_path / "m", tmp_path / "ckpt-1", tf2=True)
    with pytest.raises(UserError, match=r"a TF2 checkpoint is no \.npz"):
        save_weights(tmp_path / "m", tmp_path / "w.npz", tf2=True)
