import jax.numpy as jnp
import numpy as np
import pytest
from safetensors.numpy import save_file

from stillbox.checkpoints.safetensors_file import SafetensorsFile
from stillbox.errors import UserError


@pytest.fixture
def path(tmp_path):
    return tmp_path / "model.safetensors"


def test_every_type_comes_back_bit_for_bit(path):
    numbers = np.array([[0.0, -1.5, 3.25], [1e-3, 6e4, 7.0]])
    kinds = (np.float32, np.float64, np.float16, jnp.bfloat16, np.int64, np.uint8, bool)
    arrays = {f"{np.dtype(kind)}.weight": numbers.astype(kind) for kind in kinds}
    arrays |= {"scalar": np.array(7, np.int64), "empty": np.zeros((0, 3), np.float32)}
    save_file(arrays, path)
    file = SafetensorsFile(path)
    assert len(file) == 9 and set(file) == set(arrays)
    assert "scalar" in file and "vector" not in file
    for name, array in arrays.items():
        assert file[name].dtype == array.dtype, name
        assert file[name].shape == array.shape, name
        assert file[name].tobytes() == array.tobytes(), name


def test_a_name_that_is_not_there_is_a_key_error(path):
    save_file({"w": np.zeros(3)}, path)
    with pytest.raises(KeyError):
        SafetensorsFile(path)["v"]


@pytest.mark.parametrize("content", [b"", b"something", b"rubbish!" * 100])
def test_a_file_of_another_format_is_refused(path, content):
    path.write_bytes(content)
    with pytest.raises(UserError, match=r"model\.safetensors: the file is damaged or no \.safete"):
        SafetensorsFile(path)


def test_a_file_that_is_cut_off_is_refused(path):
    save_file({"w": np.zeros(100)}, path)
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(UserError, match="damaged"):
        SafetensorsFile(path)
