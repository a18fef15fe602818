"""The mesh: what is split, what is replicated, and that two devices agree with one."""

import os
import subprocess
import sys
from types import SimpleNamespace

import jax
import numpy as np
import pytest
from jax.sharding import AbstractMesh, PartitionSpec

from stillbox.devices import mesh as mesh_module
from stillbox.devices.mesh import (
    DATA_AXIS,
    SPACE_AXIS,
    batch_shardings,
    build_mesh,
    put_batch,
    replicate,
    spread_shardings,
)
from stillbox.errors import UserError
from stillbox.evaluation.history import HISTORY, read_history
from stillbox.experiment.schema import Devices
from stillbox.training.loop import train
from tests.small import small_overrides

ONE = Devices()


def devices(count, processes=1):
    """Stand-ins, not in the order of a mesh."""
    made = [SimpleNamespace(id=n, process_index=n % processes) for n in range(count)]
    return made[::-1]


@pytest.fixture
def any_mesh(monkeypatch):
    """Lets a mesh be made of stand-ins; it then is what it was made from."""
    monkeypatch.setattr(mesh_module, "Mesh", lambda grid, axes: (grid, axes))


def test_the_mesh_has_all_devices_on_its_data_axis():
    mesh = build_mesh(3, ONE)
    assert dict(mesh.shape) == {DATA_AXIS: len(jax.devices()), SPACE_AXIS: 1}


def test_devices_that_share_an_image_are_adjacent(any_mesh):
    grid, axes = build_mesh(4, Devices(spatial_partitions=2), devices(8))
    assert axes == (DATA_AXIS, SPACE_AXIS)
    assert [[device.id for device in row] for row in grid] == [[0, 1], [2, 3], [4, 5], [6, 7]]


def test_the_rows_of_a_process_are_contiguous(any_mesh):
    grid, _ = build_mesh(8, ONE, devices(8, processes=2))
    assert [device.process_index for device in grid.flat] == [0] * 4 + [1] * 4


def test_a_batch_is_split_along_its_first_axis_and_keeps_its_values():
    batch = {"images": np.arange(12.0).reshape(4, 3), "records": np.arange(4)}
    placed = put_batch(batch, build_mesh(4, ONE))
    assert placed["images"].sharding.spec == PartitionSpec(DATA_AXIS)
    np.testing.assert_array_equal(placed["images"], batch["images"])


def test_only_images_are_split_over_space():
    mesh = build_mesh(4, ONE)
    shardings = batch_shardings({"i": np.zeros((4, 8, 8, 3)), "b": np.zeros((4, 5, 4))}, mesh)
    assert shardings["i"].spec == PartitionSpec(DATA_AXIS, SPACE_AXIS)
    assert shardings["b"].spec == PartitionSpec(DATA_AXIS)


def test_replicate_puts_a_tree_on_every_device():
    placed = replicate({"step": np.int32(3)}, build_mesh(1, ONE))
    assert placed["step"].sharding.is_fully_replicated
    assert placed["step"] == 3


@pytest.mark.parametrize(
    ("shape", "spec"),
    [
        ((), ()),
        ((8,), (DATA_AXIS,)),
        ((3, 3, 4, 7), (None, None, DATA_AXIS)),
        ((3, 3, 6, 7), ()),
        ((0, 8), (None, DATA_AXIS)),
    ],
)
def test_an_array_is_split_along_its_first_axis_that_divides_evenly(shape, spec):
    mesh = AbstractMesh((4, 2), (DATA_AXIS, SPACE_AXIS))
    shape = jax.ShapeDtypeStruct(shape, np.float32)
    assert spread_shardings(shape, mesh).spec == PartitionSpec(*spec)


@pytest.mark.parametrize(
    ("batch", "count", "parts", "message", "fix"),
    [
        (6, 4, 1, "a batch of 6 cannot be split evenly over 4 devices", "use 4 or 8"),
        (1, 8, 1, "a batch of 1 cannot be split evenly over 8 devices", "use 8 or 16"),
        (33, 8, 1, "a batch of 33 cannot be split evenly over 8 devices", "use 32 or 40"),
        (6, 8, 2, "over 8 devices of which 2 share an image", "use 4 or 8"),
    ],
)
def test_a_batch_that_cannot_be_split_evenly_is_refused(batch, count, parts, message, fix):
    with pytest.raises(UserError, match=message) as caught:
        build_mesh(batch, Devices(spatial_partitions=parts), devices(count))
    assert caught.value.fix == fix
    assert caught.value.where == "train.batch_size"


@pytest.mark.parametrize(
    ("count", "processes", "message", "fix"),
    [
        (6, 1, "6 devices cannot be divided into groups of 4", "one of 1, 2, 3, 6"),
        (8, 4, "2 devices in a process cannot be divided into groups of 4", "one of 1, 2"),
    ],
)
def test_devices_that_cannot_share_images_are_refused(count, processes, message, fix):
    with pytest.raises(UserError, match=message) as caught:
        build_mesh(8, Devices(spatial_partitions=4), devices(count, processes))
    assert caught.value.fix == fix
    assert caught.value.where == "devices.spatial_partitions"


# The steps and the detections of two devices are compared in training/test_program.py.
@pytest.mark.slow
def test_two_devices_train_and_score_as_one_does(scenes, experiment, tmp_path):
    overrides = ["train.steps=2"]
    train(experiment(*overrides), tmp_path / "one")
    words = [w for text in small_overrides(scenes, *overrides) for w in ("--set", text)]
    program = [sys.executable, "-m", "stillbox.cli.main", "train", "demo_scenes", *words]
    flags = f"{os.environ.get('XLA_FLAGS', '')} --xla_force_host_platform_device_count=2"
    done = subprocess.run(
        [*program, "--model-dir", str(tmp_path / "two")],
        env=os.environ | {"XLA_FLAGS": flags},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    assert "batch 4 on 2 cpu devices" in done.stderr
    alone, two = (read_history(tmp_path / name / HISTORY) for name in ("one", "two"))
    # Sums over the batch are taken in another order: float32 agrees to 7 digits.
    for metric in ("loss", "gradient_norm"):
        np.testing.assert_allclose(alone.series(metric), two.series(metric), rtol=1e-5)
    assert alone.evaluations == two.evaluations
