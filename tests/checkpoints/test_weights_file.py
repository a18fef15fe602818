"""Weights of any kind; constants of graphs are in messages that are written here by hand."""

import struct

import jax.numpy as jnp
import numpy as np
import pytest
from safetensors.numpy import save_file

from stillbox.checkpoints.model_directory import ModelDirectory
from stillbox.checkpoints.pretrained import MissingWeightsError
from stillbox.checkpoints.weights_file import open_weights
from stillbox.errors import UserError
from tests.checkpoints import tf_writer
from tests.checkpoints.tf_writer import DTYPES, field
from tests.checkpoints.torch_writer import write_pickles, write_zip
from tests.helpers import refused

ARRAYS = {"w": np.arange(3, dtype=np.float32)}


@pytest.fixture
def folder(tmp_path):
    tf_writer.write_checkpoint(tmp_path / "model.ckpt-100", ARRAYS)
    (tmp_path / "model.ckpt-100.meta").write_bytes(b"a graph")
    return tmp_path


@pytest.mark.parametrize("ending", ["", ".index", ".meta", ".data-00000-of-00001"])
def test_any_file_of_a_tf1_checkpoint_opens_it(folder, ending):
    weights = open_weights(folder / f"model.ckpt-100{ending}")
    assert weights.path == str(folder / "model.ckpt-100")
    assert np.array_equal(weights.arrays["w"], ARRAYS["w"])


def test_a_folder_opens_its_one_checkpoint_and_the_checkpoint_file_chooses_among_several(folder):
    assert open_weights(folder).path == str(folder / "model.ckpt-100")
    tf_writer.write_checkpoint(folder / "model.ckpt-200", ARRAYS)
    with pytest.raises(UserError, match=r"2 checkpoints: model\.ckpt-100, model\.ckpt-200"):
        open_weights(folder)
    # Written on another machine: only the name at the end can be right.
    (folder / "checkpoint").write_text(
        'model_checkpoint_path: "/mnt/elsewhere/model.ckpt-100"\n'
        'all_model_checkpoint_paths: "/mnt/elsewhere/model.ckpt-200"\n'
    )
    assert open_weights(folder).path == str(folder / "model.ckpt-100")


def test_a_misspelt_name_and_data_without_an_index_are_refused(folder):
    with refused("modell.ckpt-100", "model.ckpt-100", kind=MissingWeightsError):
        open_weights(folder / "modell.ckpt-100")
    (folder / "model.ckpt-100.index").unlink()
    with refused("model.ckpt-100.index"):
        open_weights(folder / "model.ckpt-100.data-00000-of-00001")


def test_npz_files_are_opened_by_suffix(tmp_path):
    np.savez(tmp_path / "a.npz", **{"scope|w": ARRAYS["w"]})
    assert list(open_weights(str(tmp_path / "a.npz")).arrays) == ["scope/w"]


@pytest.mark.parametrize("name", ["a.pth", "a.pt", "a.safetensors"])
def test_torch_files_are_opened_by_suffix(tmp_path, name):
    arrays = {"layer.w": ARRAYS["w"]}
    if name == "a.safetensors":
        save_file(arrays, tmp_path / name)
    else:
        (write_zip if name == "a.pth" else write_pickles)(tmp_path / name, arrays)
    arrays = open_weights(str(tmp_path / name)).arrays
    assert list(arrays) == ["layer.w"]
    assert np.array_equal(arrays["layer.w"], ARRAYS["w"])
    with refused("", name, kind=MissingWeightsError):
        open_weights(tmp_path / f"b{name[1:]}")


def _train(path, *, best=None):
    directory = ModelDirectory.create(path, experiment="", label_map="", versions={})
    for step in (1, 2):
        sections = {"params": {"w": np.full(2, step)}, "ema": {"w": np.full(2, -step)}}
        directory.save(step, sections, {})
    if best:
        directory.mark_best(best, "AP", 0.5)


@pytest.mark.parametrize(("best", "value"), [(None, 2), (1, 1)])
def test_a_model_directory_gives_its_best_or_newest(tmp_path, best, value):
    _train(tmp_path / "run", best=best)
    assert open_weights(tmp_path / "run").arrays["w"][0] == value
    assert open_weights(tmp_path / "run", prefer_ema=True).arrays["w"][0] == -value


def test_a_checkpoint_folder_is_opened(tmp_path):
    _train(tmp_path / "run")
    (tmp_path / "run" / "checkpoints" / "1").rename(tmp_path / "mailed")
    assert open_weights(tmp_path / "mailed").arrays["w"][0] == 1


def test_missing_weights_are_answered_with_those_that_can_be_had(tmp_path):
    (tmp_path / "taxes").mkdir()
    (tmp_path / "secret.npz").touch()
    for path in ("ssd_mobilenet_v1_coco_2018_01_28/model.ckpt", "nowhere/model.ckpt", "x.npz"):
        with pytest.raises(MissingWeightsError) as caught:
            open_weights(tmp_path / path)
        # Names of the user's files are nobody's advice.
        assert "taxes" not in str(caught.value) and "secret" not in str(caught.value)
        known = "`stillbox weights get ssd_mobilenet_v1_coco` downloads" in caught.value.fix
        assert known == path.startswith("ssd")
        assert known or "`stillbox weights list`" in caught.value.fix


def test_the_variables_of_a_saved_model_of_tf1_are_opened(tmp_path):
    (tmp_path / "variables").mkdir()
    (tmp_path / "saved_model.pb").write_bytes(b"")
    tf_writer.write_checkpoint(tmp_path / "variables" / "variables", ARRAYS)
    weights = open_weights(tmp_path)
    assert weights.path == str(tmp_path / "variables" / "variables")
    assert (list(weights.arrays), weights.library) == (["w"], "tensorflow")


def test_the_message_lists_the_content_of_a_folder_without_weights(tmp_path):
    with pytest.raises(UserError, match="it holds nothing"):
        open_weights(tmp_path)
    (tmp_path / "labels.pbtxt").touch()
    with refused(tmp_path, "labels.pbtxt"):
        open_weights(tmp_path)


def test_version_1_checkpoints_are_refused_by_name(tmp_path):
    path = tmp_path / "model.ckpt-5"
    path.write_bytes(tf_writer.table([(b"", b"slices")]))
    with pytest.raises(UserError, match="format V1"):
        open_weights(path)


@pytest.mark.parametrize("name", ["model.h5", "noending"])
def test_unknown_suffixes_are_refused_with_the_known_ones(tmp_path, name):
    (tmp_path / name).write_bytes(b"something")
    known = r"prefix, an \.npz, .*\.pb or \.tflite file, a SavedModel's folder, the model\.json"
    with pytest.raises(UserError, match=known):
        open_weights(tmp_path / name)


FLOAT, HALF, BFLOAT16, INT32 = (
    DTYPES[np.dtype(kind)] for kind in (np.float32, np.float16, jnp.bfloat16, np.int32)
)
KERNEL = np.arange(6, dtype=np.float32).reshape(3, 2)


def tensor(dtype, shape, values):
    axes = b"".join(field(2, field(1, length)) for length in shape)
    return field(1, dtype) + field(2, axes) + values


def content(array):
    return tensor(DTYPES[array.dtype], array.shape, field(4, array.tobytes()))


def constant(name, value, op=b"Const"):
    """A node; the type is another of its attributes."""
    kind = field(1, b"dtype") + field(2, field(6, 1))
    attributes = field(5, kind) + field(5, field(1, b"value") + field(2, field(8, value)))
    return field(1, field(1, name.encode()) + field(2, op) + field(3, b"^input") + attributes)


def read(folder, graph, name="frozen_inference_graph.pb"):
    (folder / name).write_bytes(graph)
    return open_weights(folder / name).arrays


def test_arrays_of_floating_point_are_read_by_the_names_of_their_nodes(tmp_path):
    half = np.float16([0.5, -2, 7])
    graph = (
        constant("Conv/weights", content(KERNEL))
        + constant("Conv/weights/read", content(KERNEL), b"Identity")
        + constant("half", content(half))
        + constant("double", content(KERNEL.astype(np.float64)))
        + constant("shape", content(np.int32([1, 2])))
        + constant("scalar", content(np.float32(3)))
        + field(4, field(1, 27))
    )
    weights = read(tmp_path, graph)
    assert list(weights) == ["Conv/weights", "half", "double"]
    np.testing.assert_array_equal(weights["Conv/weights"], KERNEL)
    np.testing.assert_array_equal(weights["half"], half)
    assert weights["double"].dtype == np.float64
    assert open_weights(tmp_path).path == str(tmp_path / "frozen_inference_graph.pb")
    assert open_weights(tmp_path).library == "tensorflow"


def test_a_saved_model_without_variables_has_constants(tmp_path):
    graph = constant("Conv/weights", content(KERNEL))
    (tmp_path / "saved_model" / "variables").mkdir(parents=True)
    model = field(1, 1) + field(2, field(1, b"") + field(2, graph))
    weights = read(tmp_path / "saved_model", model, "saved_model.pb")
    np.testing.assert_array_equal(weights["Conv/weights"], KERNEL)
    assert open_weights(tmp_path).path == str(tmp_path / "saved_model" / "saved_model.pb")


@pytest.mark.parametrize(
    ("dtype", "values", "expected"),
    [
        (FLOAT, field(5, struct.pack("<4f", 1, 2, 3, 4)), [1, 2, 3, 4]),
        (FLOAT, b"\x2d" + struct.pack("<f", 1) + b"\x2d" + struct.pack("<f", 2), [1, 2, 2, 2]),
        (FLOAT, field(5, struct.pack("<f", 9)), [9, 9, 9, 9]),
        (FLOAT, b"", [0, 0, 0, 0]),
        # 1.0 and 2.0 as bits.
        (HALF, field(13, b"\x80\x78\x80\x80\x01"), [1, 2, 2, 2]),
        (BFLOAT16, field(13, 0x3F80), [1, 1, 1, 1]),
    ],
)
def test_the_last_value_stands_for_those_that_follow(tmp_path, dtype, values, expected):
    filler = constant("filler", content(np.zeros(9, np.float32)))
    weights = read(tmp_path, filler + constant("bias", tensor(dtype, (4,), values)))
    np.testing.assert_array_equal(weights["bias"].astype(np.float32), expected)


@pytest.mark.parametrize(
    "value",
    [
        tensor(FLOAT, (3,), field(4, bytes(8))),
        tensor(FLOAT, (3,), field(4, bytes(7))),
        tensor(FLOAT, (3,), field(4, b"")),
        tensor(FLOAT, (1,), field(5, bytes(8))),
        tensor(HALF, (3,), field(13, b"\x80")),
    ],
)
def test_values_that_are_not_as_many_as_the_shape_says_are_refused(tmp_path, value):
    weights = read(tmp_path, constant("bias", value))
    with refused("frozen_inference_graph.pb", "bias"):
        _ = weights["bias"]


def test_what_claims_more_than_it_can_hold_is_refused(tmp_path):
    for shape in ((2**60, 2**60), (100_000,)):
        with refused("frozen_inference_graph.pb", 100):
            read(tmp_path, constant("bias", tensor(FLOAT, shape, field(5, bytes(4)))))


@pytest.mark.parametrize("graph", [b"something", b"\x0a\xff\x01", field(1, field(1, b"\xff"))[:-1]])
def test_what_is_no_graph_is_refused(tmp_path, graph):
    with refused("frozen_inference_graph.pb", "TensorFlow"):
        read(tmp_path, graph)
