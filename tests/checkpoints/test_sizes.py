"""Small files of weights that name something once and use it often are refused at once."""

import json
import pickle
import resource
import struct
import time
import zipfile

import pytest

from stillbox.checkpoints.array_files import count_of
from stillbox.checkpoints.weights_file import open_weights
from stillbox.errors import UserError
from tests.helpers import refused


def refused_quickly(path, seconds=1.0):
    before, began = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, time.process_time()
    with pytest.raises(UserError) as caught:
        open_weights(path)
    assert time.process_time() - began < seconds
    grown = 1024 * (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)
    assert grown < 200 * path.stat().st_size + 2**26
    return str(caught.value)


def write_torch(path, shape, tensors):
    """A `.pth` of tensors that share the shape: a tuple of pickled numbers."""
    short = struct.Struct("<I").pack
    code = bytearray(b"\x80\x02(" + shape + b"tr" + short(0) + b"0")
    code += b"(X\x07\0\0\0storagectorch\nFloatStorage\nX\x01\0\0\x000X\x03\0\0\0cpuK\x01tQ"
    code += b"r" + short(1) + b"0ctorch._utils\n_rebuild_tensor_v2\nr" + short(2) + b"0}("
    for number in range(tensors):
        name = b"%d" % number
        code += b"X" + short(len(name)) + name + b"j" + short(2) + b"(j" + short(1) + b"K\0j"
        code += short(0) + b"j" + short(0) + b"\x89NtR"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("a/data.pkl", bytes(code + b"u."))
        archive.writestr("a/data/0", bytes(4))


LONG = b"\x8b" + struct.pack("<i", 50_000) + b"\x7f" * 50_000  # a number of 400,000 bits


@pytest.mark.parametrize(("shape", "said"), [
    (b"K\x01" * 100_000, "no shape of up to 32 axes"),
    (b"K\x01" * 33, "no shape of up to 32 axes"),
    (LONG * 20, "an impossible shape"),
    (b"N", "an impossible shape"),
    (b"X\x02\0\0\x0012", "an impossible shape"),
])  # fmt: skip
def test_a_shape_that_all_tensors_of_pytorch_share(tmp_path, shape, said):
    write_torch(tmp_path / "w.pth", shape, 2000)
    assert said in refused_quickly(tmp_path / "w.pth")


def test_tensors_of_32_axes_are_read(tmp_path):
    write_torch(tmp_path / "w.pth", b"K\x01" * 32, 3)
    assert open_weights(tmp_path / "w.pth").arrays["2"].shape == (1,) * 32


@pytest.mark.parametrize("version", [1, 2])
@pytest.mark.parametrize("axes", [400, 3000])
def test_the_axes_of_many_arrays_of_numpy(tmp_path, axes, version):
    header = ("{'descr':'|u1','fortran_order':False,'shape':(" + "0," * axes + ")}\n").encode()
    size = struct.pack("<H" if version == 1 else "<I", len(header))
    member = b"\x93NUMPY" + bytes((version, 0)) + size + header
    with zipfile.ZipFile(tmp_path / "w.npz", "w", zipfile.ZIP_DEFLATED) as archive:
        for number in range(3000):
            archive.writestr(f"{number}.npy", member)
    message = refused_quickly(tmp_path / "w.npz")
    assert "no .npz of plain arrays: " in message
    assert "allow_pickle" not in message
    assert message.count("\n") == 1


@pytest.mark.parametrize("axis", [2, 9, 1, 0, 10**4000])
def test_the_axes_of_a_safetensors(tmp_path, axis):
    shape = [axis] * (300_000 if axis < 10 else 30)
    header = json.dumps({"a": {"dtype": "F32", "shape": shape, "data_offsets": [0, 4]}}).encode()
    path = tmp_path / "w.safetensors"
    path.write_bytes(struct.pack("<Q", len(header)) + header + bytes(4))
    message = refused_quickly(path)
    assert "300,000 axes" in message or "an impossible shape" in message


def test_the_number_of_values_of_a_shape():
    assert count_of((2, 3)) == 6
    assert count_of(()) == 1
    for shape in ((1,) * 33, (-1,), (2**60,), ("2",), (1.5,)):
        with pytest.raises(ValueError, match=r"an array has"):
            count_of(shape)


@pytest.mark.parametrize(("name", "content"), [
    ("w.safetensors", struct.pack("<Q", 2) + b"[]"),
    ("w.safetensors", struct.pack("<Q", 11) + b'{"a": null}'),
    ("w.json", b"[]"), ("w.json", b'[{"paths": [], "weights": []}]'), ("w.json", b"3"),
    ("w.json", b'{"modelTopology": null}'), ("w.json", b'{"modelTopology": []}'),
    ("w.json", b'{"modelTopology": {"node": []}, "weightsManifest": [3]}'),
    ("w.pth", pickle.dumps(3)), ("w.pth", b"PK\3\4"), ("w.tflite", b"\0\0\0\0TFL3"),
    ("w.pb", b"\x0a\xff"), ("w.npz", b"PK\5\6" + bytes(18)), ("w.pth", b""),
])  # fmt: skip
def test_no_sentence_of_python_reaches_a_person(tmp_path, name, content):
    path = tmp_path / name
    path.write_bytes(content)
    with pytest.raises(UserError) as caught:
        dict(open_weights(path).arrays)
        raise UserError("it holds nothing")
    words = ("object", "NoneType", "attribute", "subscript", "unpack", "index out of", "'str'")
    assert not any(word in str(caught.value) for word in words), caught.value


def test_a_list_of_weights_of_tensorflow_js_is_named(tmp_path):
    path = tmp_path / "weights_manifest.json"
    path.write_text('[{"paths": ["group1-shard1of1.bin"], "weights": []}]')
    with refused("weights_manifest.json", "model.json"):
        open_weights(path)
