"""The files of a SavedModel, which are written and read here without TensorFlow."""

import sys

import jax
import numpy as np
import pytest

import stillbox
from stillbox.checkpoints.graphs.tensorflow import GraphConstants
from stillbox.checkpoints.tf1 import Tf1Checkpoint
from stillbox.checkpoints.tf2 import Tf2Checkpoint, write_tf2_checkpoint
from stillbox.errors import UserError
from stillbox.exporting.backend import find_writer
from stillbox.exporting.export import export_model
from stillbox.exporting.program import ExportProgram
from stillbox.exporting.saved_model import format as form
from stillbox.exporting.saved_model.graph import Graph
from stillbox.exporting.saved_model.messages import DType
from stillbox.exporting.settings import ExportSettings
from stillbox.records.wire import values
from tests.helpers import refused


@pytest.fixture(autouse=True)
def no_tensorflow(monkeypatch):
    """TensorFlow cannot be imported."""
    for name in [name for name in sys.modules if name.partition(".")[0] == "tensorflow"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "tensorflow", None)


@pytest.fixture
def write(model, tmp_path):
    """Writes a SavedModel and returns its folder."""

    def write(**settings):
        settings = ExportSettings(format="saved_model", platforms=("cpu",), **settings)
        program = ExportProgram(model, settings.checked())
        written = find_writer("saved_model")(program, tmp_path, [])
        assert written.written_with == {"jax": jax.__version__}
        return tmp_path / "saved_model" if settings.signature == "detection_api" else tmp_path

    return write


def nodes(folder):
    """Operator and name of each node of the graph."""
    model = dict(values((folder / "saved_model.pb").read_bytes()))
    graph = dict(values(model[2]))[2]
    read = [dict(values(node)) for number, node in values(graph) if number == 1]
    return [(node[2].decode(), node[1].decode()) for node in read]


def test_the_weights_are_variables_by_their_paths(write, model):
    folder = write()
    weights = Tf2Checkpoint(Tf1Checkpoint(folder / "variables/variables"))
    assert set(weights) == model.params.keys() | model.stats.keys()
    for path, array in (model.params | model.stats).items():
        np.testing.assert_array_equal(weights[path], array)
    # None of them is in the graph, too.
    sizes = [array.size for array in GraphConstants(folder / "saved_model.pb").values()]
    assert max(sizes, default=0) <= 3


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"input_type": "raw_image_tensor", "signature": "tpu", "batch_size": 2},
        {"input_type": "tf_example", "batch_size": 0},
    ],
    ids=lambda settings: settings.get("input_type", "image_tensor"),
)
def test_the_program_equals_its_checkpoint(model, images, tmp_path, settings):
    lines = []
    settings = ExportSettings(format="saved_model", platforms=("cpu",), **settings)
    result = export_model(model, tmp_path / "out", settings, images, say=lines.append)
    assert result.verification.detections > 10
    assert result.verification.max_score_difference < 1e-5
    assert result.manifest.verified["whole"] is False
    assert any("runtime is not installed" in line for line in lines)
    with pytest.raises(UserError, match="tensorflow is not installed") as caught:
        stillbox.load(result.folder).predict(images[0])
    assert "[tf]" in caught.value.fix


def test_wrong_weights_are_found(model, images, tmp_path, monkeypatch):
    def damaged(prefix, arrays, **options):
        wrong = {path: array * 1.5 for path, array in arrays.items()}
        write_tf2_checkpoint(prefix, wrong, **options)

    monkeypatch.setattr(form, "write_tf2_checkpoint", damaged)
    settings = ExportSettings(format="saved_model", platforms=("cpu",))
    with refused("verification of the export"):
        export_model(model, tmp_path / "out", settings, images)
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("batch_size", [0, 2])
def test_the_program_has_plain_operations_alone(write, batch_size):
    folder = write(input_type="tf_example", signature="tpu", batch_size=batch_size)
    content = (folder / "saved_model.pb").read_bytes()
    # The operation of `jax.lax.top_k`.
    assert b"composite" not in content
    assert b"chlo.top_k" not in content
    kinds = [kind for kind, _ in nodes(folder)]
    assert kinds.count("XlaCallModule") == kinds.count("MapDefun") == 1
    assert ("Identity", "NumDetections") in nodes(folder)


@pytest.mark.parametrize(
    ("input_name", "node"),
    [("pixels", "pixels"), ("my input", "my_input"), ("detection_boxes", "detection_boxes")],
)
def test_any_text_can_be_the_name_of_the_input(write, input_name, node):
    assert ("Placeholder", node) in nodes(write(input_name=input_name))


def test_equal_constants_are_one_node_and_names_are_not_taken_twice():
    graph = Graph()
    first, other = graph.constant(np.zeros(2, np.int32)), graph.constant(np.zeros(2, np.int32))
    assert first is other
    sums = [(first + 1).name for _ in range(2)]
    assert sums == ["AddV2:0", "AddV2_1:0"]
    assert graph.constant(np.zeros(2, np.float32)).dtype is DType.FLOAT
