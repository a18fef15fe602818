"""Arrays in `.npz` and `.safetensors` files."""

import io
import random
import tracemalloc
import zipfile

import jax.numpy as jnp
import numpy as np
import pytest
from safetensors.numpy import save_file

from stillbox.checkpoints.array_files import NpzFile, SafetensorsFile, read_npz_weights, write_npz
from stillbox.checkpoints.weights_file import open_weights
from stillbox.errors import UserError
from tests.checkpoints.detectors import assert_same_arrays
from tests.helpers import refused


def test_every_type_comes_back_bit_for_bit(tmp_path):
    path = tmp_path / "arrays.npz"
    bits = np.array([0, 1, 0x7FC00001, 0x80000000, 0xFFFFFFFF, 0x3F800000], np.uint32)
    arrays = {
        "float32, NaN payloads and -0": bits.view(np.float32),
        "bfloat16": bits.view(jnp.bfloat16).reshape(3, 4),
        "bfloat16 scalar": np.array(1.5, jnp.bfloat16),
        "int32": bits.view(np.int32),
        "uint32 key": bits,
        "int64": np.array(2**40, np.int64),
        "bool": np.array([True, False]),
        "transposed": np.arange(6, dtype=np.float32).reshape(2, 3).T,
        "empty": np.zeros((0, 3), np.float32),
        "file": np.ones(1, np.float32),
    }
    write_npz(path, arrays)
    assert_same_arrays(NpzFile(path), arrays)
    # The same arrays give the same bytes, and NumPy alone reads them.
    write_npz(tmp_path / "2.npz", arrays)
    assert path.read_bytes() == (tmp_path / "2.npz").read_bytes()
    with np.load(path) as loaded:
        np.testing.assert_array_equal(loaded["transposed"], arrays["transposed"])


@pytest.mark.parametrize("separator", ["|", "/"])
def test_bars_in_names_are_read_as_slashes(tmp_path, separator):
    name = separator.join(["MobilenetV1", "Conv2d_0", "weights"])
    np.savez(tmp_path / "w.npz", **{name: np.ones(2), f"{name}_1:0": np.zeros(2)})
    assert list(read_npz_weights(tmp_path / "w.npz")) == [
        "MobilenetV1/Conv2d_0/weights",
        "MobilenetV1/Conv2d_0/weights_1",
    ]


def test_no_flipped_bit_changes_a_value_unnoticed(tmp_path):
    path = tmp_path / "arrays.npz"
    arrays = {name: np.arange(60, dtype=np.float32) for name in ("first", "second")}
    write_npz(path, arrays)
    good = path.read_bytes()
    generator = random.Random(0)
    refused = 0
    for position in range(len(good)):
        damaged = bytearray(good)
        damaged[position] ^= 1 << generator.randrange(8)
        path.write_bytes(damaged)
        try:
            restored = dict(NpzFile(path))
        except UserError:
            refused += 1
            continue
        # The archive's list may lose entries: that is why a checkpoint counts its arrays.
        assert restored.keys() <= arrays.keys(), position
        assert all(np.array_equal(restored[name], arrays[name]) for name in restored), position
    assert refused > 480  # every byte of the 2 x 240 bytes of values, and most of the headers


def _cut_off(path):
    write_npz(path, {"w": np.ones(100)})
    path.write_bytes(path.read_bytes()[:-30])


def _large_header(path):
    """A header that claims more than the file holds."""
    np.save(array := path.with_suffix(".npy"), np.zeros((1, 2)))
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("w.npy", array.read_bytes().replace(b"(1, 2)", b"(9, 9)"))


@pytest.mark.parametrize(
    ("write", "message"),
    [
        (_cut_off, r"w\.npz: the file is damaged"),
        (lambda path: np.savez(path, w=np.array([{"a": 1}], object)), r"no \.npz of plain arrays"),
        (lambda path: np.savez_compressed(path, w=np.zeros(100_000)), "more than 100 times"),
        (_large_header, r"w\.npy claims to hold float64 of shape \[9, 9\]"),
    ],
    ids=["cut off", "pickled objects", "a bomb", "a large header"],
)
def test_damaged_and_hostile_files_are_refused(tmp_path, write, message):
    write(tmp_path / "w.npz")
    with pytest.raises(UserError, match=message):
        NpzFile(tmp_path / "w.npz")


def test_a_type_that_weights_do_not_have_is_refused_when_it_is_read(tmp_path):
    np.savez(tmp_path / "w.npz", note=np.array("x"), spectrum=np.ones(1, complex), w=np.ones(2))
    file = NpzFile(tmp_path / "w.npz")
    assert file.shape("w") == (2,) and np.array_equal(file["w"], np.ones(2))
    for name, kind in (("note", "<U1"), ("spectrum", "complex128")):
        with refused("w.npz", name, kind):
            file[name]


def bomb(method):
    """Returns an archive of kilobytes; its member unpacks to 30 MB, and it says 200 bytes."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", method) as archive:
        with archive.open("w.npy", "w") as member:
            for _ in range(30):
                member.write(bytes(10**6))
        archive.getinfo("w.npy").file_size = 200
    return buffer.getvalue()


def oversized_directory():
    """Returns an archive; its end says that its directory has half a gigabyte of the file."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        archive.writestr("w.npy", "x")
    end = buffer.getvalue()[-22:]
    return end[:12] + (2**29).to_bytes(4, "little") + bytes(4) + end[20:]


@pytest.mark.parametrize("method", [zipfile.ZIP_DEFLATED, zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA])
@pytest.mark.parametrize("name", ["w.npz", "w.pth"])
def test_a_bomb_takes_no_memory(tmp_path, name, method):
    path = tmp_path / name
    path.write_bytes(bomb(method))
    assert refused_at_a_peak_of(path) < 2**23


@pytest.mark.parametrize("name", ["w.npz", "w.pth"])
def test_a_directory_of_gigabytes_takes_no_memory(tmp_path, name):
    path = tmp_path / name
    with path.open("wb") as file:
        file.write(b"PK\3\4")
        file.truncate(2**29)
        file.seek(2**29)
        file.write(oversized_directory())
    assert refused_at_a_peak_of(path) < 2**25


def refused_at_a_peak_of(path):
    """Returns the most bytes that Python had while the file was refused."""
    tracemalloc.start()
    try:
        with pytest.raises(UserError, match="damaged"):
            dict(open_weights(path).arrays)
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


@pytest.fixture
def path(tmp_path):
    return tmp_path / "model.safetensors"


def test_every_type_of_safetensors_comes_back_bit_for_bit(path):
    numbers = np.array([[0.0, -1.5, 3.25], [1e-3, 6e4, 7.0]])
    kinds = (np.float32, np.float64, np.float16, jnp.bfloat16, np.int64, np.uint8, bool)
    arrays = {f"{np.dtype(kind)}.weight": numbers.astype(kind) for kind in kinds}
    arrays |= {"scalar": np.array(7, np.int64), "empty": np.zeros((0, 3), np.float32)}
    save_file(arrays, path)
    file = SafetensorsFile(path)
    assert len(file) == 9 and set(file) == set(arrays)
    assert "scalar" in file and "vector" not in file
    assert_same_arrays(file, {name: arrays[name] for name in file})

    with pytest.raises(KeyError):
        SafetensorsFile(path)["v"]


def test_a_safetensors_file_that_is_cut_off_or_none_is_refused(path):
    save_file({"w": np.zeros(100)}, path)
    for content in (path.read_bytes()[:-1], b"", b"something", b"rubbish!" * 100):
        path.write_bytes(content)
        with refused("model.safetensors"):
            SafetensorsFile(path)
