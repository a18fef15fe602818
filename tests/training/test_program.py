"""One program on one to eight devices: the same numbers, and only necessary transfers."""

import json
import subprocess
import sys
from pathlib import Path

import jax
import numpy as np
import pytest
from jax.sharding import AbstractMesh

from stillbox.devices.mesh import DATA_AXIS, SPACE_AXIS, build_mesh
from stillbox.evaluation.program import score_program
from stillbox.lowering import lowering
from stillbox.training.plan import plan_training
from stillbox.training.program import train_program
from tests.small import DENSE, DENSE_HEADS
from tests.training import eight_devices

# The results take a minute: one of the test processes makes them.
pytestmark = pytest.mark.xdist_group("eight devices")


@pytest.fixture(scope="module")
def seen(tmp_path_factory):
    """The results of eight devices."""
    return eight_devices.see("quick", tmp_path_factory.mktemp("devices") / "seen.pickle")


def assert_same(left, other, tolerance=1e-5):
    """Compares all arrays that both have."""
    names = {name for name in left if name[:2] in ("1 ", "3 ")} & set(other)
    assert len(names) > 30
    for name in sorted(names):
        np.testing.assert_allclose(
            other[name], left[name], rtol=tolerance, atol=tolerance, err_msg=name
        )


@pytest.mark.parametrize("name", ["ssd 8", "ssd spread", "ssd 4 x 2"])
def test_one_and_three_steps_are_the_same_however_many_devices_there_are(seen, name):
    first, other = seen["ssd 1"], seen[name]
    assert set(first) == set(other)
    assert_same(first, other)
    # The steps changed the loss.
    assert abs(float(first["3 loss"] - first["1 loss"])) > 1e-3


@pytest.mark.slow
def test_devices_share_a_teacher_and_each_micro_batch(tmp_path):
    seen = eight_devices.see("learning", tmp_path / "seen.pickle")
    for alone, several in (("taught 1", "taught 8"), ("accumulated 1", "accumulated 4")):
        assert_same(seen[alone], seen[several])
        assert (seen[several]["exchanges"], seen[several]["compilations"]) == ([], 1)


@pytest.mark.slow
def test_steps_in_the_forms_for_a_cpu_are_the_same_too(tmp_path):
    seen = eight_devices.see("counts", tmp_path / "seen.pickle")
    for name in ("ssd 2", "ssd 4", "ssd 8"):
        assert_same(seen["ssd 1"], seen[name])
        assert (seen[name]["exchanges"], seen[name]["compilations"]) == ([], 1)


def test_every_program_is_compiled_once(seen):
    counts = {name: run["compilations"] for name, run in seen.items() if "compilations" in run}
    assert len(counts) == 8
    assert set(counts.values()) == {1}


@pytest.mark.parametrize("name", ["replicas 4", "replicas 1"])
def test_a_replica_computes_as_if_it_were_alone_and_the_gradients_are_averaged(seen, name):
    assert_same(seen["replicas by hand"], seen[name])
    # The settings make a difference.
    assert abs(float(seen[name]["1 loss"] - seen["ssd 1"]["1 loss"])) > 1e-3


def test_four_replicas_are_the_same_on_four_devices_and_on_one(seen):
    assert_same(seen["replicas 4"], seen["replicas 1"])


def test_spread_accumulators_and_averages_take_an_eighth_of_the_memory(seen):
    whole, spread = seen["ssd 8"]["bytes"], seen["ssd spread"]["bytes"]
    # But for a few small arrays without an axis that divides by 8: biases of 28 logits, counters.
    assert whole / 8 <= spread < whole / 6


def test_eight_devices_find_what_one_finds(seen):
    alone, eight = seen["detect 1"], seen["detect 8"]
    assert int(alone["count"].sum()) > 8
    for name in ("boxes", "scores", "classes", "count"):
        np.testing.assert_allclose(eight[name], alone[name], atol=1e-5)


@pytest.mark.parametrize("name", ["ssd 8", "replicas 4", "detect 8"])
def test_devices_that_share_a_batch_send_each_other_nothing_but_sums(seen, name):
    assert seen[name]["exchanges"] == []


def test_spread_accumulators_cost_updates_and_no_activations(seen):
    sizes = {f"f32[{array}]" for array in _shapes(eight_devices.experiment_of(*eight_devices.SSD))}
    for result in seen["ssd spread"]["exchanges"]:
        assert result.partition("{")[0] in sizes


def test_devices_that_share_an_image_send_each_other_edges(seen):
    assert seen["ssd 4 x 2"]["exchanges"] != []


@pytest.mark.parametrize("name", eight_devices.LAYERS)
def test_a_layer_and_its_gradients_stay_on_the_devices_that_have_the_images(seen, name):
    alone, eight = seen["layers 1"], seen["layers 8"]
    assert eight[f"{name} exchanges"] == []
    for part in ("image", "kernel"):
        expected = alone[f"{name} {part}"]
        scale = np.abs(expected).max()
        np.testing.assert_allclose(eight[f"{name} {part}"], expected, atol=1e-5 * scale)


def test_a_program_is_described_without_arrays_and_fits_state_and_batch():
    experiment = eight_devices.experiment_of(*eight_devices.SSD)
    mesh = AbstractMesh((4, 2), (DATA_AXIS, SPACE_AXIS))
    program = train_program(plan_training(experiment, mesh))
    described = program.state, program.batch
    real = eight_devices.first_state(experiment), eight_devices.make_batch(experiment)
    assert jax.tree.structure(described) == jax.tree.structure(real)
    for shape, array in zip(*map(jax.tree.leaves, (described, real)), strict=True):
        assert isinstance(shape, jax.ShapeDtypeStruct)
        assert (shape.shape, shape.dtype) == (array.shape, array.dtype)
    assert program.batch.images.sharding.shard_shape((8, 64, 64, 3)) == (2, 32, 64, 3)
    assert program.trainable == frozenset(real[0].params)


def test_bytes_are_pixels_like_any_other():
    losses = []
    for pixels in ("uint8", "float32"):
        experiment = eight_devices.experiment_of(*eight_devices.SSD, f"data.pixels={pixels}")
        batch = eight_devices.make_batch(experiment)
        # Whole numbers, which are the same in both types.
        batch = batch._replace(images=np.rint(batch.images).astype(pixels))
        program = train_program(
            plan_training(experiment, build_mesh(8, experiment.devices, jax.devices()[:1]))
        )
        assert program.batch.images.dtype == pixels
        with lowering(portable=True):
            compiled = program.lower().compile()
        state = program.put_state(eight_devices.first_state(experiment))
        _, metrics = compiled(state, program.put_batch(batch))
        losses.append({name: np.asarray(value).tobytes() for name, value in metrics.items()})
    assert losses[0] == losses[1]


def test_train_step_and_evaluation_have_the_convolutions_that_the_field_allows():
    def convolutions(allowed):
        experiment = eight_devices.experiment_of(
            *eight_devices.RESNET_SSD, f"devices.cpu_convolutions={allowed}"
        )
        mesh = build_mesh(8, experiment.devices, jax.devices()[:1])
        programs = train_program(plan_training(experiment, mesh)), score_program(experiment, mesh)
        return [step.lower().as_text().count("stablehlo.convolution") for step in programs]

    exact, fast = convolutions("exact"), convolutions("fast")
    # The first group has two convolutions of 64 channels and 24 x 16 pixels; otherwise their
    # gradients by the kernel are products of patches. The second has one of 12 x 8 pixels, which is
    # tiled where its kernel is prepared.
    assert exact[1] - fast[1] == 3
    assert exact[0] - fast[0] == 4


def _shapes(experiment):
    arrays = eight_devices.first_state(experiment).params.values()
    return {",".join(map(str, array.shape)) for array in arrays}


# ---- One device and two compute the same; what differs is rounding -------------------------------


STEPS = 6
DETECTORS = {"ssd": eight_devices.SSD} | {
    head: (*changes, *DENSE, "train.optimizer.schedule.learning_rate=0.001")
    for head, changes in DENSE_HEADS.items()
}


@pytest.mark.slow
@pytest.mark.parametrize("changes", DETECTORS.values(), ids=DETECTORS)
def test_in_float64_a_gradient_of_two_devices_is_that_of_one(changes):
    words = [sys.executable, "-m", "tests.training.two_devices", "float64", str(STEPS), *changes]
    done = subprocess.run(words, cwd=Path(__file__).parents[2], check=True, capture_output=True)
    first, last = json.loads(done.stdout)
    # float64 has 53 bits: 1.1e-16. float32, with 24, is off by 3e-4 in the gradient norm.
    assert first["loss"] < 1e-14
    assert first["gradient_norm"] < 1e-12
    assert first["parameters"] < 1e-14
    # Steps enlarge differences by three to four digits, in float64 as in float32.
    assert max(last.values()) < 1e-10
