"""The compiler's errors, with the fields that mend them."""

import pytest

from stillbox.checking.ahead_of_time.failures import explain_failure
from stillbox.experiment.resolve import resolve

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
    experiment = resolve("demo_scenes", overrides).experiment
    return explain_failure(message, step, experiment, state_bytes=state, usable=15.75 * GIB)


def test_the_needed_memory_is_named():
    failure = explain("train")
    assert failure.needed == 16.5 * GIB
    assert "needs 16.50 GiB on each device, which has 15.75 GiB" in failure.what
    assert "bf16[16384,80,80,22], 4.69GiB" in failure.what


def test_an_array_that_is_too_large_alone_is_named():
    message = (
        "RESOURCE_EXHAUSTED: Allocation (size=32768000000) would exceed memory (size=17179869184) "
        ":: #allocation558 [shape = 'f32[2048000000,4]{0,1:T(4,128)}', space=hbm, size = 0xff]"
    )
    failure = explain("train", message=message)
    assert failure.needed == 32_768_000_000
    assert "needs 30.52 GiB on each device, which has 15.75 GiB" in failure.what
    assert "not room for f32[2048000000,4] alone" in failure.what


@pytest.mark.parametrize(
    ("step", "overrides", "named", "unnamed"),
    [
        (
            "train",
            (),
            ("train.batch_size (32)", "--find-batch", "train.precision=bfloat16"),
            ("evaluation.", "devices."),
        ),
        ("train", ("train.precision=bfloat16",), ("train.batch_size",), ("precision",)),
        (
            "train",
            ("model.resizer.height=640", "model.resizer.width=640"),
            ("devices.spatial_partitions (1)",),
            (),
        ),
        ("evaluate", (), ("evaluation.batch_size (20)", "evaluation.precision"), ("train.",)),
        ("predict", (), ("model.resizer smaller (160 x 160)",), ("batch_size",)),
    ],
)
def test_the_fields_that_help_are_named(step, overrides, named, unnamed):
    fix = explain(step, *overrides).fix
    assert all(word in fix for word in named)
    assert not any(word in fix for word in unnamed)


def test_sharding_is_advised_for_large_accumulators():
    assert "devices.shard=optimizer" in explain("train", state=2 * GIB).fix
    assert "shard" not in explain("train", "devices.shard=optimizer", state=2 * GIB).fix


@pytest.mark.parametrize(
    "message",
    [
        "INTERNAL: RET_CHECK failure (bounds_check.cc:716)\nmore",
        "RESOURCE_EXHAUSTED: Ran out of memory in memory space vmem. Used 1.0M of 0.5M vmem.",
    ],
)
def test_other_errors_ask_for_a_report(message):
    failure = explain("train", message=message)
    assert failure.needed == 0
    assert message.splitlines()[0] in failure.what
    assert "report" in failure.fix
