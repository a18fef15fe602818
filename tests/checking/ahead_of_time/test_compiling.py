"""The steps of a small detector, compiled for this machine, TPUs and GPUs."""

import jax
import pytest

from stillbox.checking.ahead_of_time.compiling import check_step
from stillbox.checking.ahead_of_time.report import TargetCheck
from stillbox.checking.ahead_of_time.steps import STEPS
from stillbox.checking.ahead_of_time.targets import Target, find_target
from stillbox.devices.mesh import build_mesh
from stillbox.models.layers.lowering.pooling import max_pool
from stillbox.training.program import train_program
from tests.checking.ahead_of_time.compilers import needs_cuda_plugin, needs_libtpu
from tests.macs import count_macs


@pytest.fixture(scope="module")
def cpu():
    return find_target("cpu")


def test_all_steps_are_compiled_for_this_machine(experiment, cpu):
    small, said = experiment(), []
    checks = check_steps(small, cpu, say=said.append)
    assert [check.step for check in checks] == list(STEPS)
    assert all(check.fits for check in checks)
    assert [check.images for check in checks] == [4, 4, 1]
    assert said[0] == "train: compiling 4 images a step for 1 device of cpu ..."
    train, evaluate, predict = checks
    # Forward, and a gradient for the inputs and one for the kernels of each convolution.
    macs = count_macs(small.model)
    assert 2 * macs < evaluate.flops_per_image < 6 * macs
    assert 6 * macs < train.flops_per_image < 18 * macs
    # Bytes of the parameters, once more for the momentum and for the average.
    state = train_program(small, _mesh(small, cpu)).state
    params = sum(4 * leaf.size for leaf in jax.tree.leaves(state.params))
    stats = sum(4 * leaf.size for leaf in jax.tree.leaves(state.stats))
    assert train.memory.parameters == pytest.approx(params + stats, abs=64)
    assert train.memory.optimizer == pytest.approx(params, abs=64)
    assert train.memory.average == pytest.approx(params, abs=64)
    assert train.memory.batch >= 4 * 64 * 64 * 3 * 4
    # One device sums nothing, and of a processor nothing is published.
    assert train.collectives == {}
    assert train.roofline is None
    assert predict.memory.total < evaluate.memory.total < train.memory.total


def check_steps(experiment, target, say=lambda line: None):
    return [check_step(experiment, target, step, say) for step in STEPS]


def _mesh(experiment, target):
    return build_mesh(experiment.train.batch_size, experiment.devices, target.devices)


def test_a_batch_that_cannot_be_split_is_a_verdict(experiment, cpu):
    many = Target("cpu", cpu.devices * 3, cpu.usable_bytes)
    check = check_step(experiment(), many, "evaluate")
    assert not check.fits
    assert check.refused.startswith("evaluation.batch_size: a batch of 4 cannot be split")
    assert (check.fix, check.needed) == ("use 3 or 6", 0)


def test_a_device_that_is_too_small_is_a_verdict(experiment, cpu):
    tiny = Target("cpu", cpu.devices, 100_000)
    check = check_step(experiment(), tiny, "predict")
    assert not check.fits
    assert check.needed == check.memory.total > 100_000
    assert check.memory.left < 0
    assert not TargetCheck(tiny, [check]).fits


@needs_libtpu
def test_a_small_detector_compiles_for_a_slice(experiment):
    small = experiment("train.precision=bfloat16", "evaluation.precision=bfloat16")
    target = find_target("v5e:2x2")
    checks = check_steps(small, target)
    assert all(check.fits for check in checks), [check.refused for check in checks]
    train = checks[0]
    assert train.devices == 4
    macs = count_macs(small.model)
    assert 6 * macs < train.flops_per_image
    # Gradients are summed over the chips, in the type that they are computed in, and with them
    # statistics and losses; nothing else has to be known elsewhere.
    state = train_program(small, _mesh(small, target)).state
    numbers = sum(leaf.size for leaf in jax.tree.leaves(state.params))
    assert list(train.collectives) == ["all-reduce"]
    assert train.collectives["all-reduce"] >= 2 * numbers
    assert train.memory.usable == 15.75 * 2**30
    assert train.images_per_second > 0


@needs_cuda_plugin
def test_a_small_detector_compiles_for_absent_gpus(experiment):
    small = experiment("train.precision=bfloat16", "evaluation.precision=bfloat16")
    checks = check_steps(small, find_target("h200:4"))
    assert all(check.fits for check in checks), [check.refused for check in checks]
    train, evaluate, _ = checks
    # Products alone are counted: forward, and two gradients of each convolution but for that of the
    # images.
    macs = count_macs(small.model)
    assert evaluate.flops_per_image == pytest.approx(2 * macs, rel=0.01)
    assert 5 * macs < train.flops_per_image <= 6 * macs * 1.01
    state = train_program(small, _mesh(small, find_target("h200:4"))).state
    numbers = sum(leaf.size for leaf in jax.tree.leaves(state.params))
    assert list(train.collectives) == ["all-reduce"]
    assert train.collectives["all-reduce"] >= 2 * numbers
    assert train.images_per_second > 0


@needs_cuda_plugin
def test_max_pooling_scatters_nothing_on_a_gpu():
    (device,) = find_target("h200").devices
    sharding = jax.sharding.SingleDeviceSharding(device)
    x = jax.ShapeDtypeStruct((2, 32, 32, 8), jax.numpy.bfloat16, sharding=sharding)
    gradient = jax.jit(jax.grad(lambda x: max_pool(x, 3, 2).astype(float).sum()))
    assert " scatter(" not in gradient.lower(x).compile().as_text()
