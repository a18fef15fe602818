"""The mesh: what is split, what is everywhere, and that two devices compute what one does."""

import os
import subprocess
import sys
from types import SimpleNamespace

import jax
import numpy as np
import pytest

from stillbox.devices import mesh as mesh_module
from stillbox.devices.mesh import DATA_AXIS, data_mesh, put_batch, put_everywhere
from stillbox.errors import UserError
from stillbox.evaluation.history import HISTORY, read_history
from stillbox.training.loop import train
from tests.small import small_overrides


def test_the_mesh_has_one_axis_over_all_devices():
    mesh = data_mesh(3)
    assert dict(mesh.shape) == {DATA_AXIS: len(jax.devices())}


def test_a_batch_is_split_along_its_first_axis_and_keeps_its_values():
    batch = {"images": np.arange(12.0).reshape(4, 3), "records": np.arange(4)}
    placed = put_batch(batch, data_mesh(4))
    assert placed["images"].sharding.spec == jax.sharding.PartitionSpec(DATA_AXIS)
    np.testing.assert_array_equal(placed["images"], batch["images"])


def test_a_state_is_whole_on_every_device():
    placed = put_everywhere({"step": np.int32(3)}, data_mesh(1))
    assert placed["step"].sharding.is_fully_replicated
    assert placed["step"] == 3


@pytest.mark.parametrize(
    ("batch", "devices", "fix"),
    [(6, 4, "use 4 or 8"), (1, 8, "use 8 or 16"), (33, 8, "use 32 or 40")],
)
def test_a_batch_that_cannot_be_split_evenly_is_refused(monkeypatch, batch, devices, fix):
    fake = SimpleNamespace(devices=lambda: [None] * devices)
    monkeypatch.setattr(mesh_module, "jax", fake)
    with pytest.raises(UserError, match=f"batch of {batch} cannot be split evenly over {devices}"):
        data_mesh(batch)
    with pytest.raises(UserError) as caught:
        data_mesh(batch)
    assert caught.value.fix == fix


def test_two_devices_train_and_score_as_one_does(scenes, experiment, tmp_path):
    overrides = ["train.steps=2"]
    train(experiment(*overrides), tmp_path / "one")
    words = [w for text in small_overrides(scenes, *overrides) for w in ("--set", text)]
    program = [sys.executable, "-m", "stillbox.cli.main", "train", "demo_scenes", *words]
    done = subprocess.run(
        [*program, "--model-dir", str(tmp_path / "two")],
        env=os.environ | {"XLA_FLAGS": "--xla_force_host_platform_device_count=2"},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    assert "batch 4 on 2 cpu device(s)" in done.stderr
    one, two = (read_history(tmp_path / name / HISTORY) for name in ("one", "two"))
    # Sums over the batch are taken in another order: float32 agrees to 7 digits.
    for metric in ("loss", "gradient_norm"):
        np.testing.assert_allclose(one.series(metric), two.series(metric), rtol=1e-5)
    assert one.evaluations == two.evaluations
