"""Files of `torch.save`; the writer's files were once read by PyTorch 2.13 with the same values."""

import pickle
import zipfile
from functools import partial

import jax.numpy as jnp
import numpy as np
import pytest

from stillbox.checkpoints.torch_file import TorchFile
from stillbox.checkpoints.torch_pickle import Storage, StridedView, named_tensors
from stillbox.errors import UserError
from tests.checkpoints.detectors import assert_same_arrays
from tests.checkpoints.torch_writer import (
    Built,
    Call,
    Global,
    New,
    Reference,
    View,
    state_dict,
    typed_arrays,
    write_pickles,
    write_tar,
    write_zip,
)
from tests.helpers import refused

FORMS = {
    "zip": write_zip,
    "pickles": write_pickles,
    "tar": write_tar,
    "tar of parts": partial(write_tar, part_of=np.ones(2)),
}
PARAMETER = Global("torch.nn.parameter", "Parameter")
WEIGHT = np.arange(6, dtype=np.float32).reshape(2, 3)


@pytest.fixture
def path(tmp_path):
    return tmp_path / "weights.pth"


@pytest.fixture(params=FORMS)
def write(request):
    return FORMS[request.param]


def test_every_type_and_shape_comes_back_bit_for_bit(path, write):
    arrays = typed_arrays() | {
        "scalar": np.array(7, np.int64),
        "four axes": np.arange(24, dtype=np.float32).reshape(2, 3, 2, 2),
        "empty": np.zeros((0, 3), np.float32),
    }
    write(path, state_dict(arrays))
    file = TorchFile(path)
    assert_same_arrays(file, arrays)
    assert len(file) == 13 and "scalar" in file and "vector" not in file


def test_names_in_nested_dictionaries_are_joined(path, write):
    # As a training script saves them: beside numbers, texts and what the optimizer has.
    saved = {
        "epoch": 3,
        "arch": "resnet34",
        "best": 71.5,
        "state_dict": {"module.w": WEIGHT},
        "optimizer": {"state": {"0": {"momentum_buffer": WEIGHT + 1}}, "groups": [{"lr": 0.1}]},
        "scheduler": None,
        "done": True,
    }
    write(path, saved)
    expected = {"state_dict.module.w": WEIGHT, "optimizer.state.0.momentum_buffer": WEIGHT + 1}
    assert_same_arrays(TorchFile(path), expected)


@pytest.mark.parametrize("write", [write_zip, write_pickles])
def test_tensors_may_be_strided_parts_of_one_storage(path, write):
    storage = np.arange(20, dtype=np.float32)
    views = {
        # Number i of row r is 3 + r + 2 * i: a transpose.
        "transposed": View(storage, 3, (2, 3), (1, 2)),
        "repeated": View(storage, 19, (2, 2), (0, 0)),
        "one": View(storage, 5, (), ()),
    }
    write(path, state_dict(views))
    file = TorchFile(path)
    assert file["transposed"].tolist() == [[3, 5, 7], [4, 6, 8]]
    assert file["repeated"].tolist() == [[19, 19], [19, 19]]
    assert file["one"] == 5


@pytest.mark.parametrize("write", [write_zip, write_pickles])
def test_no_tensor_reaches_beyond_its_storage(path, write):
    for offset, shape, strides in (
        *((1, (2, 3), (3, 1)), (0, (2, 3), (4, 1)), (-1, (2, 3), (3, 1)), (5, (2, 3), (-3, 1))),
        *((7, (0,), (1,)), (0, (2**62, 1), (1, 1))),
    ):
        write(path, {"w": View(np.zeros(6, np.float32), offset, shape, strides)})
        with refused("weights.pth"):
            TorchFile(path)


def test_parameters_of_every_pytorch_version_are_tensors(path, write):
    call = Call(Global("torch._utils", "_rebuild_parameter"), (WEIGHT, True, {}))
    saved = {
        "since 0.4": call,
        "0.2": Built(Call(PARAMETER, (WEIGHT + 1,)), (True, False, {})),
        "0.1": Built(New(PARAMETER, ()), (WEIGHT + 2, None, {}, True, False)),
    }
    write(path, saved)
    assert_same_arrays(TorchFile(path), {"since 0.4": WEIGHT, "0.2": WEIGHT + 1, "0.1": WEIGHT + 2})


@pytest.mark.parametrize(
    ("call", "name"),
    [
        (Call(Global("os", "system"), ("touch {marker}",)), "os.system"),
        (Call(Global("posix", "system"), ("touch {marker}",)), "posix.system"),
        (Call(Global("builtins", "eval"), ("open('{marker}', 'w')",)), "builtins.eval"),
        (Call(Global("builtins", "getattr"), ("", "format")), "builtins.getattr"),
        (New(Global("argparse", "Namespace"), ()), "argparse.Namespace"),
        (Global("torchvision.models.resnet", "ResNet"), "torchvision.models.resnet.ResNet"),
        (Global("torch._utils", "pickle.loads"), "torch._utils.pickle.loads"),
        (Global("collections", "OrderedDict.__init__"), "collections.OrderedDict.__init__"),
    ],
)
def test_code_in_a_file_is_refused_by_name_and_not_run(tmp_path, path, write, call, name):
    marker = tmp_path / "marker"
    if isinstance(call, Call):
        arguments = tuple(text.format(marker=marker) for text in call.arguments)
        call = Call(call.function, arguments)
    write(path, {"w": WEIGHT, "x": call})
    with pytest.raises(UserError) as caught:
        TorchFile(path)
    sentence = f"the file asks to run {name}, which weights do not need; nothing was run"
    assert caught.value.what == sentence
    assert caught.value.where == str(path)
    assert not marker.exists()


def test_the_attack_would_work_on_a_careless_reader(tmp_path, path):
    """Shows that the file of the test above runs code in an unrestricted unpickler."""
    write_zip(path, {"x": Call(Global("os", "mkdir"), (str(tmp_path / "marker"),))})
    with zipfile.ZipFile(path) as archive:
        pickle.loads(archive.read("weights/data.pkl"))
    assert (tmp_path / "marker").is_dir()


@pytest.mark.parametrize(
    "function",
    [
        Global("torch._utils", "_rebuild_tensor_v2"),
        Global("torch", "Size"),
        Global("torch", "FloatStorage"),
        Global("collections", "OrderedDict"),
        PARAMETER,
    ],
)
@pytest.mark.parametrize(
    "state",
    [
        {"items": 1, "__call__": 1, "data": 1},
        (None, {"items": 1, "__setstate__": 1, "data": 1, "__defaults__": ()}),
    ],
)
def test_no_file_changes_how_the_next_one_is_read(tmp_path, path, function, state):
    write_zip(path, {"x": Built(function, state), "w": WEIGHT})
    try:
        TorchFile(path)
    except UserError as error:
        assert "damaged" in str(error)
    good = tmp_path / "good.pth"
    parameter = Built(New(PARAMETER, ()), (WEIGHT, None, {}, True, False))
    write_zip(good, state_dict({"w": WEIGHT, "p": parameter}))
    assert_same_arrays(TorchFile(good), {"w": WEIGHT, "p": WEIGHT})


def test_a_dictionary_with_an_overridden_items_method_is_read(path):
    write_zip(path, Built({"w": WEIGHT}, {"items": 1}))
    assert_same_arrays(TorchFile(path), {"w": WEIGHT})
    with pytest.raises(KeyError):
        TorchFile(path)["v"]


@pytest.mark.parametrize("saved", [{}, {"epoch": 3}, 7, [WEIGHT], "text"])
def test_a_file_without_named_tensors_is_refused(path, write, saved):
    write(path, saved)
    with refused("weights.pth"):
        TorchFile(path)


@pytest.mark.parametrize(
    "content", [b"", b"something", b"PK\x03\x04 and so on", b"\x80\x02.", b"\0" * 1000, b"(" * 600]
)
def test_a_file_of_another_format_is_refused(path, content):
    path.write_bytes(content)
    with refused("weights.pth"):
        TorchFile(path)


def test_a_file_that_is_cut_off_is_refused_wherever_the_cut_is(path, write):
    write(path, state_dict({"a": np.ones(100, np.float32), "b": np.ones(100, np.float32)}))
    whole = path.read_bytes()
    used = len(whole.rstrip(b"\0")) if write not in (write_zip, write_pickles) else len(whole)
    for size in range(0, used - 1, 37):
        path.write_bytes(whole[:size])
        with pytest.raises(UserError, match="damaged"):
            dict(TorchFile(path))


def test_a_flipped_bit_in_the_numbers_of_an_archive_is_noticed(path):
    write_zip(path, {"first": WEIGHT, "second": WEIGHT + 1})
    content = bytearray(path.read_bytes())
    content[content.find((WEIGHT + 1).tobytes()) + 5] ^= 1
    path.write_bytes(content)
    file = TorchFile(path)
    assert np.array_equal(file["first"], WEIGHT)
    with pytest.raises(UserError, match="CRC-32"):
        file["second"]


def test_big_endian_files_are_refused(path):
    write_zip(path, {"w": WEIGHT}, byteorder="big")
    with pytest.raises(UserError, match="big-endian"):
        TorchFile(path)
    write_pickles(path, {"w": WEIGHT}, little_endian=False)
    with pytest.raises(UserError, match="big-endian"):
        TorchFile(path)


def test_an_archive_that_unpacks_to_more_than_itself_is_refused(path):
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("weights/data.pkl", b"0" * 100_000)
    with refused("weights.pth"):
        TorchFile(path)


def test_dictionaries_that_share_a_long_key_are_refused():
    tensor = StridedView(Storage("0", "float32", 1), 0, (1,), (1,))
    shared = "k" * 1_000_000
    with pytest.raises(pickle.UnpicklingError, match="names are too long"):
        list(named_tensors({str(number): {shared: tensor} for number in range(20)}))


def test_an_archive_without_a_storage_names_it(path):
    write_zip(path, {"w": WEIGHT})
    without = path.with_name("without.pth")
    with zipfile.ZipFile(path) as old, zipfile.ZipFile(without, "w") as new:
        for name in old.namelist():
            if not name.endswith("/0"):
                new.writestr(name, old.read(name))
    with refused("without.pth"):
        TorchFile(without)["w"]


def test_unresolved_references_are_refused(path):
    for reference in ((), ("module", "x", "y"), ("storage", "complex64", "0", "cpu", 3), 7):
        write_zip(path, {"w": Reference(reference)})
        with pytest.raises(UserError, match="damaged"):
            TorchFile(path)


def test_opening_reads_no_values(path, monkeypatch):
    write_zip(path, {"w": WEIGHT, "v": np.zeros(3, jnp.bfloat16)})
    read, open_member = [], zipfile.ZipFile.open

    def opened(self, member, *options):
        read.append(getattr(member, "filename", member))
        return open_member(self, member, *options)

    monkeypatch.setattr(zipfile.ZipFile, "open", opened)
    file = TorchFile(path)
    assert read == ["weights/byteorder", "weights/data.pkl"]
    assert file["v"].dtype == jnp.bfloat16
    assert read[2:] == ["weights/data/1"]
