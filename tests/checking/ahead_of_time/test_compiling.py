"""Steps compiled for this machine, TPUs and GPUs, the compiler's errors, the largest batch."""

from types import SimpleNamespace

import jax
import pytest

from stillbox.checking.ahead_of_time import compiling, report
from stillbox.checking.ahead_of_time.compiling import (
    STEPS,
    Memory,
    StepCheck,
    check_step,
    explain_failure,
    measure_memory,
)
from stillbox.checking.ahead_of_time.report import TargetCheck, describe_search, find_batch, search
from stillbox.checking.ahead_of_time.targets import Target, find_target
from stillbox.cli.overrides import changes_of
from stillbox.devices.mesh import build_mesh
from stillbox.experiment.resolve import resolve
from stillbox.findings import Finding
from stillbox.models.layers.lowering.pooling import max_pool
from stillbox.references import worded
from stillbox.training.plan import plan_training
from stillbox.training.program import train_program
from tests.checking.ahead_of_time.programs import PROGRAM, needs_cuda_plugin, needs_libtpu
from tests.tpu_detection import count_macs

# [2, 9, 9, 3] with the images last: 9 x 3 times [9, 2] in tiles of 2 x 128, which makes [10, 128].
IMAGES = 9 * 3 * 10 * 128 * 4
ANALYSIS = SimpleNamespace(
    argument_size_in_bytes=4096 + 512 + 4096 + IMAGES + 100,
    output_size_in_bytes=9000,
    alias_size_in_bytes=8000,
    temp_size_in_bytes=70_000,
    generated_code_size_in_bytes=500,
)


def test_arguments_are_counted_by_use():
    memory = measure_memory(ANALYSIS, PROGRAM, 1_000_000)
    assert memory.parameters == 4096
    assert memory.optimizer == 512
    assert memory.average == 4096
    # 100 bytes that the text does not explain go with the batch: nothing is left out.
    assert memory.batch == IMAGES + 100
    assert memory.results == 1000
    assert memory.total == ANALYSIS.argument_size_in_bytes + 1000 + 70_000 + 500
    assert memory.left == 1_000_000 - memory.total
    assert memory.to_dict()["total"] == memory.total


def test_too_little_memory_leaves_a_negative_rest():
    assert measure_memory(ANALYSIS, PROGRAM, 80_000).left < 0


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
    state = train_program(plan_training(small, _mesh(small, cpu))).state
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


def test_batches_that_cannot_be_split_and_small_devices_are_verdicts(experiment, cpu):
    many = Target("cpu", cpu.devices * 3, cpu.usable_bytes)
    check = check_step(experiment(), many, "evaluate")
    assert not check.fits
    assert check.failure.path == "evaluation.batch_size"
    assert check.failure.what.startswith("a batch of 4 cannot be split")
    assert (check.failure.fix, check.needed) == ("use 3 or 6", 0)
    tiny = Target("cpu", cpu.devices, 100_000)
    check = check_step(experiment(), tiny, "predict")
    assert not check.fits
    assert check.needed == check.memory.total > 100_000
    assert check.memory.left < 0
    assert not TargetCheck(tiny, [check]).fits


@pytest.mark.parametrize(
    ("step", "rounds"),
    # A train step repeats micro-batches, and evaluation on a processor images.
    [("train", 2), ("evaluate", 4), ("predict", 1)],
)
def test_operations_of_a_loop_are_counted_for_every_round(
    experiment, cpu, monkeypatch, step, rounds
):
    module = SimpleNamespace(as_serialized_hlo_module_proto=lambda: b"")
    compiled = SimpleNamespace(
        runtime_executable=lambda: SimpleNamespace(hlo_modules=lambda: [module]),
        memory_analysis=lambda: ANALYSIS,
        cost_analysis=lambda: {"flops": 1e9},  # XLA counts one round
    )
    compilation = SimpleNamespace(result=lambda: compiled)
    monkeypatch.setattr(compiling, "_lower", lambda *_: (None, 0))
    monkeypatch.setattr(compiling, "Compilation", lambda *_: compilation)
    monkeypatch.setattr(compiling, "read_program", lambda _: PROGRAM)
    assert check_step(experiment("train.accumulation_steps=2"), cpu, step).flops == rounds * 1e9


@needs_libtpu
def test_a_small_detector_compiles_for_a_slice(experiment):
    small = experiment("train.precision=bfloat16", "evaluation.precision=bfloat16")
    target = find_target("v5e:2x2")
    checks = check_steps(small, target)
    assert all(check.fits for check in checks), [check.failure for check in checks]
    train = checks[0]
    assert train.devices == 4
    macs = count_macs(small.model)
    assert 6 * macs < train.flops_per_image
    # Gradients are summed over the chips, in the type that they are computed in, and with them
    # statistics and losses; nothing else has to be known elsewhere.
    state = train_program(plan_training(small, _mesh(small, target))).state
    numbers = sum(leaf.size for leaf in jax.tree.leaves(state.params))
    assert list(train.collectives) == ["all-reduce"]
    assert train.collectives["all-reduce"] >= 2 * numbers
    assert train.memory.usable == 15.75 * 2**30
    assert train.images_per_second > 0


@needs_cuda_plugin
def test_a_small_detector_compiles_for_absent_gpus(experiment):
    small = experiment("train.precision=bfloat16", "evaluation.precision=bfloat16")
    checks = check_steps(small, find_target("h200:4"))
    assert all(check.fits for check in checks), [check.failure for check in checks]
    train, evaluate, _ = checks
    # Products alone are counted: forward, and two gradients of each convolution, but none of
    # the images.
    macs = count_macs(small.model)
    assert evaluate.flops_per_image == pytest.approx(2 * macs, rel=0.01)
    assert 5 * macs < train.flops_per_image <= 6 * macs * 1.01
    state = train_program(plan_training(small, _mesh(small, find_target("h200:4")))).state
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


# As libtpu 0.0.40 words it.
NO_ROOM = """\
RESOURCE_EXHAUSTED: E1000: CompileTimeHbmOom: XLA:TPU compile permanent error. Ran out of memory \
in memory space hbm. Used 16.50G of 15.75G hbm. Exceeded hbm capacity by 768.0M.

Total hbm usage >= 16.73G:
    reserved        258.00M

  Largest program allocations in hbm:

  1. Size: 4.69G
     Operator: op_name="jit(step)/jvp()/conv_general_dilated" stack_frame_id=116
     Shape: bf16[16384,80,80,22]{0,3,2,1:T(8,128)(2,1)}
     Unpadded size: 4.30G
     ==========================
"""
GIB = 2**30


def explain(step, *overrides, message=NO_ROOM, state=0):
    experiment = resolve("demo_scenes", changes_of(overrides)).experiment
    return explain_failure(message, step, experiment, state_bytes=state, usable=15.75 * GIB)


def test_the_needed_memory_is_named():
    failure, needed = explain("train")
    assert (failure.path, needed) == ("train.batch_size", 16.5 * GIB)
    assert "needs 16.50 GiB on each device, which has 15.75 GiB" in failure.what
    assert "bf16[16384,80,80,22], 4.69GiB" in failure.what


def test_an_array_that_is_too_large_alone_is_named():
    message = (
        "RESOURCE_EXHAUSTED: Allocation (size=32768000000) would exceed memory (size=17179869184) "
        ":: #allocation558 [shape = 'f32[2048000000,4]{0,1:T(4,128)}', space=hbm, size = 0xff]"
    )
    failure, needed = explain("train", message=message)
    assert needed == 32_768_000_000
    assert "needs 30.52 GiB on each device, which has 15.75 GiB" in failure.what
    assert "f32[2048000000,4]" in failure.what


@pytest.mark.parametrize(("step", "overrides", "named", "unnamed"), [
    ("train", (), ("train.batch_size (32)", "find_batch=", "train.precision=bfloat16"),
     ("evaluation.", "devices.")),
    ("train", ("train.precision=bfloat16",), ("train.batch_size",), ("precision",)),
    ("train", ("model.resizer.height=640", "model.resizer.width=640"),
     ("devices.spatial_partitions (1)",), ()),
    ("evaluate", (), ("evaluation.batch_size (20)", "evaluation.precision"), ("train.",)),
    ("predict", (), ("model.resizer smaller (160 x 160)",), ("batch_size",)),
])  # fmt: skip
def test_the_fields_that_help_are_named(step, overrides, named, unnamed):
    fix = worded(explain(step, *overrides)[0].fix)
    assert all(word in fix for word in named)
    assert not any(word in fix for word in unnamed)


def test_sharding_is_advised_for_large_accumulators():
    assert "devices.shard=optimizer" in explain("train", state=2 * GIB)[0].fix
    assert "shard" not in explain("train", "devices.shard=optimizer", state=2 * GIB)[0].fix


@pytest.mark.parametrize(
    "message",
    [
        "INTERNAL: RET_CHECK failure (bounds_check.cc:716)\nmore",
        "RESOURCE_EXHAUSTED: Ran out of memory in memory space vmem. Used 1.0M of 0.5M vmem.",
    ],
)
def test_other_errors_ask_for_a_report(message):
    failure, needed = explain("train", message=message)
    assert needed == 0
    assert message.splitlines()[0] in failure.what
    assert "report" in failure.fix


ROOM = 10_000


def compiler(fixed, each, *, saved=1.0):
    """A program that needs `fixed + each * batch`; its compiler can do with a part of that.

    Like XLA's it does so only where it has to.
    """

    def attempt(size):
        needed = fixed + each * size
        if needed > ROOM and needed * saved <= ROOM:
            needed = ROOM
        if needed > ROOM:
            failure = Finding("error", "", "too large")
            return StepCheck(
                step="train", images=size, devices=8, failure=failure, needed=int(needed * saved)
            )
        memory = Memory(
            parameters=fixed, optimizer=0, average=0, batch=0, results=0,
            temporaries=needed - fixed, code=0, usable=ROOM,
        )  # fmt: skip
        return StepCheck(step="train", images=size, devices=8, memory=memory)

    return attempt


@pytest.mark.parametrize("start", [8, 30, 400, 4000])
@pytest.mark.parametrize(("fixed", "each"), [(0, 10), (5000, 10), (100, 3), (0, 1000)])
@pytest.mark.parametrize("saved", [1.0, 0.7])
def test_the_result_fits_and_is_close_to_the_largest(start, fixed, each, saved):
    attempt = compiler(fixed, each, saved=saved)
    searched = search(attempt, 8, start, ROOM)
    most = max(size for size in range(8, 8000, 8) if attempt(size).fits)
    sizes = [trial.images for trial in searched.trials]
    assert len(set(sizes)) == len(sizes) <= 10
    assert all(size % 8 == 0 for size in sizes)
    assert most * 15 / 16 - 8 < searched.best.images <= most
    assert searched.too_large.images > searched.best.images


def test_linear_memory_is_extrapolated():
    # 5,000 of 10,000 are left for batches of 10 each: 500, of which 496 is the last multiple.
    searched = search(compiler(5000, 10), 8, 64, ROOM)
    assert searched.best.images == 496
    # The first, the one that it leads to, and two that do not fit.
    assert [trial.fits for trial in searched.trials] == [True, True, False, False]
    assert describe_search(searched).startswith("largest batch that fits: 496")


def test_searches_end_without_a_batch_or_with_another_reason():
    searched = search(compiler(20_000, 10), 8, 64, ROOM)
    assert searched.best is None
    assert min(trial.images for trial in searched.trials) == 8
    assert describe_search(searched).startswith("no batch fits: 8 does not")
    failure = Finding("error", "", "a bug")
    refusal = StepCheck(step="train", images=64, devices=8, failure=failure)
    assert search(lambda size: refusal, 8, 64, ROOM).trials == [refusal]


def test_batches_are_multiples_of_devices_and_replicas(monkeypatch):
    attempt, asked = compiler(5000, 10), []

    def check_step(experiment, target, step, say):
        asked.append((step, experiment.train.batch_size))
        return attempt(experiment.train.batch_size)

    monkeypatch.setattr(report, "check_step", check_step)
    overrides = ("devices.spatial_partitions=2", "devices.replicas=6", "train.batch_size=36")
    experiment = resolve("demo_scenes", changes_of(overrides)).experiment
    # Eight devices, two to an image, are four rows; with six replicas batches are multiples of 12.
    batch = find_batch(experiment, Target("eight", jax.devices() * 8, ROOM))
    assert asked[0] == ("train", 36)
    assert all(size % 12 == 0 for _, size in asked)
    assert batch.multiple == 12
    assert batch.best.images == 492
