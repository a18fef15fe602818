"""Object-based checkpoints: reading, imports by the path of every object, and writing."""

import dataclasses
import json
import zlib
from functools import cache

import jax
import numpy as np
import pytest

from stillbox.checkpoints import tf2
from stillbox.checkpoints.importer import ImportOptions, read_weights
from stillbox.checkpoints.names import names_under, object_path_table
from stillbox.checkpoints.saving import save_weights
from stillbox.checkpoints.tf1 import Tf1Checkpoint, write_tf1_checkpoint
from stillbox.checkpoints.tf2 import ObjectGraph, Tf2Checkpoint, write_tf2_checkpoint
from stillbox.checkpoints.weights_file import open_weights
from stillbox.cli.main import main
from stillbox.experiment import schema
from stillbox.experiment.pipeline_config import read_pipeline_config
from stillbox.models.build import abstract_detector
from stillbox.models.variables import bind_detector
from stillbox.references import worded
from tests.checkpoints.detectors import write_trained
from tests.checkpoints.tf_writer import GRAPH, field, write_object_checkpoint
from tests.checkpoints.tf_writer import object_graph as graph_of
from tests.checkpoints.tf_writer import write_checkpoint as write_other_checkpoint
from tests.helpers import refused
from tests.reference import legacy_bilinear, waves
from tests.small import SHARED, needs_shared

SMALL = SHARED / "goldens/detection_zoo/small_ckpt_ssd_mobilenet_v2_fpnlite_320x320"
MODEL = schema.OneStage(
    num_classes=2,
    backbone=schema.MobileNetV1(depth_multiplier=0.1, min_depth=4, last_layer="conv_13_pointwise"),
    neck=schema.SsdExtraLayers(depth_multiplier=0.1, min_depth=4),
    head=schema.ConvolutionalHead(dropout=False),
)


@cache
def variables(model):
    _, params, stats = abstract_detector(model, "float32")
    return {**params, **stats}


def arrays_of(model, scope="detection", root=0):
    """Arrays by object path, each of its own values."""
    table = object_path_table(model)
    names = names_under(table.roots[scope][root], table, model, variables(model))
    parts = model.parts if scope == "detection" else model.classifier_parts
    return {
        name: np.full(variables(model)[path].shape, len(name) + index, np.float32)
        for index, (path, name) in enumerate(names.items())
        if path.partition(".")[0] in parts
    }


def read(path, model=MODEL, **options):
    return read_weights(variables(model), model, path, ImportOptions(**options))


def test_variables_are_read_by_every_path_that_leads_to_them(tmp_path):
    arrays = {"model/variables/0": np.arange(3.0), "save_counter": np.int64([7])}
    aliases = {"model/layer/kernel": "model/variables/0", "model/no": "model/variables/9"}
    write_object_checkpoint(tmp_path / "ckpt-1", arrays, aliases)
    weights = open_weights(tmp_path)
    assert (weights.library, set(weights.arrays)) == ("keras", set(arrays))
    assert weights.find("model/layer/kernel") == "model/variables/0"
    np.testing.assert_array_equal(weights.arrays["model/variables/0"], [0, 1, 2])
    # A variable that the file lacks, an object that is none, and a path to nowhere.
    assert weights.find("model/no") not in weights.arrays
    for nowhere in ("model/layer", "model/else/kernel", "model/layer/kernel/more"):
        assert weights.find(nowhere) == nowhere


@pytest.mark.parametrize(
    ("graph", "why"),
    [
        (b"\x0a\x7f", "the object graph is damaged"),
        (field(1, field(1, field(2, b"\xff"))), "the object graph is damaged"),
        (field(1, field(1, field(1, b"one"))), "should be a number"),
        (b"\x0a\0" * 101, "more than 100 objects"),
    ],
    ids=["cut off", "no UTF-8", "a text for a number", "too many"],
)
def test_a_damaged_graph_is_refused(tmp_path, monkeypatch, graph, why):
    monkeypatch.setattr(tf2, "_MOST_OBJECTS", 100)
    write_other_checkpoint(tmp_path / "ckpt-1", {GRAPH: graph})
    with refused("ckpt-1", why):
        open_weights(tmp_path / "ckpt-1")


def test_references_out_of_the_graph_lead_nowhere():
    graph = ObjectGraph(field(1, field(1, field(1, 9) + field(2, b"model"))))
    assert graph.key("model") is None
    assert graph.key("model/layer") is None
    assert ObjectGraph(b"").key("model") is None


def test_a_damaged_text_is_noticed(tmp_path):
    write_other_checkpoint(tmp_path / "ckpt-1", {GRAPH: graph_of({"a": "a"})})
    data = tmp_path / "ckpt-1.data-00000-of-00001"
    content = data.read_bytes()
    for at in (0, 1, len(content) - 1):
        data.write_bytes(content[:at] + bytes([content[at] ^ 1]) + content[at + 1 :])
        with refused("ckpt-1.data-00000-of-00001"):
            open_weights(tmp_path)
    write_other_checkpoint(tmp_path / "ckpt-1", {GRAPH: np.zeros(3, np.float32)})
    with refused("ckpt-1"):
        open_weights(tmp_path)


@pytest.mark.parametrize(("scope", "heads"), [("detection", True), ("detection", False)])
def test_a_detector_is_read_as_far_as_it_is_wanted(tmp_path, scope, heads):
    arrays = arrays_of(MODEL)
    slot = "model/_box_predictor/x/.OPTIMIZER_SLOT/optimizer/momentum"
    more = {"save_counter": np.int64([1]), "optimizer/iter": np.int64([1]), slot: np.zeros(1)}
    write_object_checkpoint(tmp_path / "ckpt-1", arrays | more)
    report, arrays_read = read(tmp_path / "ckpt-1", scope=scope, load_heads=heads)
    assert report.missing == {} and report.mismatched == ()
    assert len(arrays_read) == len(arrays) - (0 if heads else 24)
    for path, array in arrays_read.items():
        np.testing.assert_array_equal(array, arrays[report.loaded[path]])
    reasons = list(report.skipped.values())
    assert reasons.count("training counter") == 2
    assert reasons.count("optimizer slot") == 1
    assert reasons.count("head not asked for") == (0 if heads else 24)


def test_a_classifier_gives_the_backbone_and_a_detector_is_not_taken_for_one(tmp_path):
    write_object_checkpoint(tmp_path / "c", arrays_of(MODEL, "classification"))
    report, _ = read(tmp_path / "c", scope="classification", load_heads=False)
    assert len(report.loaded) == 135
    write_object_checkpoint(tmp_path / "d", arrays_of(MODEL))
    with refused("d", 135) as caught:
        read(tmp_path / "d", scope="classification", load_heads=False, for_training=True)
    assert "train.fine_tune.scope=detection" in caught.value.fix


def test_the_variables_of_a_saved_model_are_read(tmp_path):
    """The keys are places in a list; the objects are below `_model`."""
    arrays = arrays_of(MODEL, root=1)
    keys = {path: f"_model/variables/{index}" for index, path in enumerate(arrays)}
    folder = tmp_path / "zoo" / "saved_model"
    (folder / "variables").mkdir(parents=True)
    (folder / "saved_model.pb").write_bytes(b"")
    held = {keys[path]: array for path, array in arrays.items()}
    write_object_checkpoint(folder / "variables" / "variables", held, keys)
    for given in (tmp_path / "zoo", folder, folder / "saved_model.pb"):
        report, arrays_read = read(given)
        assert report.path == str(folder / "variables" / "variables")
        assert len(arrays_read) == len(arrays)
        kernel = "backbone.conv_3_pointwise.kernel"
        np.testing.assert_array_equal(arrays_read[kernel], held[report.loaded[kernel]])
    # A checkpoint beside it goes first.
    (tmp_path / "zoo" / "checkpoint").mkdir()
    write_object_checkpoint(tmp_path / "zoo" / "checkpoint" / "ckpt-0", arrays_of(MODEL))
    assert read(tmp_path / "zoo")[0].path == str(tmp_path / "zoo" / "checkpoint" / "ckpt-0")


def test_parts_without_object_paths_are_refused_by_name(tmp_path):
    write_object_checkpoint(tmp_path / "ckpt-1", arrays_of(MODEL))
    model = schema.OneStage(num_classes=2, backbone=MODEL.backbone, neck=schema.Ppn(depth=8))
    with refused("ckpt-1", "TF2", "ppn"):
        read(tmp_path / "ckpt-1", model)


def test_heads_of_other_classes_are_explained(tmp_path):
    arrays = {
        path: np.zeros((*array.shape[:-1], 99)) if "class_predictions" in path else array
        for path, array in arrays_of(MODEL).items()
    }
    write_object_checkpoint(tmp_path / "ckpt-1", arrays)
    with refused("ckpt-1", 187, 199, "93%") as caught:
        read(tmp_path / "ckpt-1", for_training=True)
    assert "12 shapes of heads differ" in caught.value.fix
    assert "train.fine_tune.load_heads=false" in caught.value.fix


def test_weights_of_the_other_generation_are_noted(tmp_path):
    """Names and shapes agree, and yet another map is handed down."""
    keras = schema.OneStage(
        num_classes=2,
        backbone=MODEL.backbone,
        neck=schema.Fpn(max_level=6, depth=4, min_depth=4, top_down="smoothed"),
        head=schema.WeightSharedHead(depth=4, layers_before=1),
        anchors=schema.MultiscaleAnchors(max_level=6),
    )
    arrays = arrays_of(keras)
    write_object_checkpoint(tmp_path / "ckpt-1", arrays)
    assert read(tmp_path / "ckpt-1", keras)[0].notes == ()
    first = dataclasses.replace(keras, neck=dataclasses.replace(keras.neck, top_down="sum"))
    (note,) = read(tmp_path / "ckpt-1", first)[0].notes
    assert worded(note) == (
        "keras's weights of this neck want top_down: smoothed, and it is sum: "
        "model.neck.top_down=smoothed"
    )


@cache
def small():
    text = (SMALL / "pipeline.config").read_text()
    return read_pipeline_config(text, "pipeline.config").experiment.model


@needs_shared
@pytest.mark.parametrize("folder", ["checkpoint", "train"])
@pytest.mark.parametrize(("heads", "count"), [(False, 290), (True, 384)])
def test_a_real_checkpoint_is_restored_as_the_original_restores_it(folder, heads, count):
    """Counts of restore_semantics.json; `full` is everything, `detection` all but the heads."""
    report, arrays_read = read(SMALL / folder, small(), load_heads=heads)
    assert len(arrays_read) == count
    assert list(report.skipped.values()).count("head not asked for") == 384 - count
    keys = json.loads((SMALL / "expected.json").read_text())["keys"]
    sums = {key.removesuffix("/.ATTRIBUTES/VARIABLE_VALUE"): total for key, *_, total in keys}
    for path, array in arrays_read.items():
        assert zlib.crc32(array.tobytes()) == sums[report.loaded[path]]["crc32"]


@needs_shared
@pytest.mark.proof
def test_a_real_checkpoint_predicts_what_the_original_predicted():
    """Reached: 3.3e-6 of values up to 7.7."""
    _, arrays_read = read(SMALL / "checkpoint", small())
    graph, params, stats = abstract_detector(small(), "float32")

    @jax.jit
    def predict(arrays, images):
        held = ({path: arrays[path] for path in part} for part in (params, stats))
        return bind_detector(graph, *held)(images, train=False)

    images = np.stack([legacy_bilinear(image, (128, 128)) for image in waves()])
    predictions = predict(arrays_read, images)
    expected = json.loads((SMALL / "expected.json").read_text())["forward"]
    for values, name in ((predictions.box_encodings, "box"), (predictions.class_logits, "cls")):
        flat = np.asarray(values).reshape(-1)
        places = [index * flat.size // 16 for index in range(16)]
        np.testing.assert_allclose(flat[places], expected[f"{name}_samples16"], rtol=0, atol=2e-5)
        total = np.abs(flat.astype(np.float64)).sum()
        np.testing.assert_allclose(total, expected[name]["abssum"], rtol=1e-6)


@needs_shared
def test_the_trained_checkpoint_has_all_keys_of_the_original():
    theirs = json.loads((SMALL / "expected_train.json").read_text())["keys"]
    ours = Tf1Checkpoint(SMALL / "train" / "ckpt-1")
    assert {key: list(entry.shape) for key, entry in ours.entries.items()} == dict(theirs)
    assert Tf2Checkpoint(ours)["step"] == 1234


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


@pytest.mark.proof
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
        write_trained(tmp_path / "m", model, drawn)
        return drawn

    return write


def test_saved_weights_come_back(tmp_path, train, capsys):
    model = schema.OneStage()
    drawn = train(model)
    command = ["weights", "save", str(tmp_path / "m"), "--to", str(tmp_path / "ckpt-1"), "--tf2"]
    assert main(command) == 0
    assert "renamed       5 as the original names them" in capsys.readouterr().out
    report, arrays_read = read_weights(drawn, model, tmp_path / "ckpt-1", ImportOptions())
    assert list(report.skipped) == ["save_counter"]
    assert arrays_read.keys() == drawn.keys()
    for path, array in arrays_read.items():
        np.testing.assert_array_equal(array, drawn[path])


def test_what_has_no_object_paths_is_refused(tmp_path, train):
    train(schema.OneStage(neck=schema.Ppn()))
    with refused("ckpt-1", "TF2", "ppn"):
        save_weights(tmp_path / "m", tmp_path / "ckpt-1", tf2=True)
    with refused("w.npz", "TF2"):
        save_weights(tmp_path / "m", tmp_path / "w.npz", tf2=True)
