"""Compiled programs and traces of CPU, GPU and TPU.

The events of a CPU are real. Those of GPU and TPU are written by hand, with the names of planes,
lines and stats from the source that `stillbox/profiling/traces.py` names.
"""

import pytest

from stillbox.profiling.hlo import Instruction, Message
from stillbox.profiling.traces import read_trace
from tests.checking.ahead_of_time.programs import PROGRAM
from tests.profiling.made import hlo, message, shape_proto, space


def read_arrays(shape):
    return Instruction("a", "add", proto=Message(message((3, shape_proto(shape))))).arrays


@pytest.mark.parametrize(
    ("shape", "nbytes", "values"),
    [
        ("f32[]", 4, 4),
        ("f32[3,5]{1,0}", 60, 60),
        # Tiles of 128 numbers: one is filled up.
        ("f32[100]{0:T(128)}", 512, 400),
        ("s32[]{:T(128)}", 512, 4),
        # From minor to major 0, 2, 1: 4 and 4096 are the last two, and both fill their tiles.
        ("f32[4096,100,4]{0,2,1:T(4,128)}", 6_553_600, 6_553_600),
        # The same with the four coordinates last: 128 lanes for 4 numbers, 104 rows for 100.
        ("f32[4096,100,4]{2,1,0:T(8,128)}", 4096 * 104 * 128 * 4, 6_553_600),
        # 3 x 3 times [16, 358] in tiles of 8 x 128, which makes [16, 384].
        ("f32[3,3,358,16]{2,3,1,0:T(8,128)}", 9 * 16 * 384 * 4, 9 * 16 * 358 * 4),
        ("bf16[16,80]{1,0:T(8,128)(2,1)}", 16 * 128 * 2, 16 * 80 * 2),
        ("pred[7]{0:T(512)(128)(4,1)}", 512, 7),
        ("u8[10]", 10, 10),
    ],
)
def test_an_array_fills_whole_tiles(shape, nbytes, values):
    (array,) = read_arrays(shape)
    assert (array.nbytes, array.value_bytes, array.on_chip) == (nbytes, values, False)


def test_arrays_on_the_chip_are_distinguished():
    first, second = read_arrays("(f32[4]{0:S(1)}, f32[4]{0:T(128)})")
    assert (first.on_chip, second.on_chip) == (True, False)


def test_loops_are_followed_as_often_as_they_run():
    assert PROGRAM.entry == "main"
    rounds = {one.name: times for one, times in PROGRAM.executed()}
    assert rounds["reduced"] == 3
    assert rounds["f"] == 1
    # The parts of a fusion run within it.
    assert "half" not in rounds


STEP = {"hlo_module": "jit_step", "program_id": 7}


def names_and_times(trace):
    return [(one.name, one.start, one.end) for one in trace.operations]


def test_gpu_operations_are_kernels_with_their_instructions():
    content = space(
        {
            "/device:GPU:0": {
                "Stream #13(Compute)": [
                    ("sm90_xmma_fprop_kernel", 0, 50, {"hlo_op": "cudnn-conv.1", **STEP}),
                    # Of a CUDA graph: the stat names the graph, the kernel its instruction.
                    (
                        "loop_add_fusion_3",
                        50,
                        60,
                        {"hlo_op": "command_buffer", "cuda_graph_id": 4, **STEP},
                    ),
                ],
                "Stream #14(MemcpyH2D)": [("MemcpyH2D", 10, 20, {})],
                # Lines that a viewer derives from the streams would count everything twice.
                "XLA Ops": [("cudnn-conv.1", 0, 50, {"hlo_op": "cudnn-conv.1", **STEP})],
            },
            "/host:CPU": {"python": [("train", 0, 9, {"step_num": 3}), ("x", 1, 2, {})]},
        },
        {
            "jit_step(7)": hlo(
                [
                    Instruction("cudnn-conv.1", "custom-call", "__cudnn$convForward"),
                    Instruction("loop_add_fusion.3", "fusion"),
                ]
            )
        },
    )
    trace = read_trace(content)
    assert trace.platform == "gpu"
    assert names_and_times(trace) == [
        ("cudnn-conv.1", 0, 50),
        ("MemcpyH2D", 10, 20),
        ("loop_add_fusion.3", 50, 60),
    ]
    assert [one.program for one in trace.operations] == ["jit_step(7)", "", "jit_step(7)"]
    assert {one.device for one in trace.operations} == {"/device:GPU:0"}
    assert [(one.name, one.step) for one in trace.host] == [("train", 3), ("x", None)]


def test_tpu_operations_belong_to_the_runs_of_programs():
    runs = [("jit_step(7)", 0, 100, {}), ("jit_other(8)", 100, 120, {})]
    operations = [("%fusion.1 = f32[8]{0} fusion(f32[8] %x)", 5, 50, {}), ("copy.2", 101, 110, {})]
    planes = {"/device:TPU:0": {"XLA Modules": runs, "XLA Ops": operations, "Steps": runs}}
    trace = read_trace(space(planes))
    assert trace.platform == "tpu"
    assert names_and_times(trace) == [("fusion.1", 5, 50), ("copy.2", 101, 110)]
    assert [one.program for one in trace.operations] == ["jit_step(7)", "jit_other(8)"]


def test_an_operation_of_cpu_threads_ends_at_its_end_event_or_reader():
    """The convolution returns at 12 and is done before 40, where its reader begins; the thread
    that finished it reports that at 90 only. The sum has no reader and ends with its report."""
    cpu = {**STEP, "device_ordinal": 0}
    events = [
        ("conv", 10, 12, {"hlo_op": "conv", "_p": 5, **cpu}),
        ("end: conv", 90, 91, {"_c": 5}),
        ("tanh", 40, 60, {"hlo_op": "tanh", "_p": 6, **cpu}),
        ("end: tanh", 60, 61, {"_c": 6}),
        ("sum", 60, 62, {"hlo_op": "sum", "_p": 7, **cpu}),
        ("end: sum", 80, 81, {"_c": 7}),
        ("while", 10, 80, {"hlo_op": "while", "_p": 8, **cpu}),
    ]
    instructions = [
        Instruction("conv", "convolution"),
        Instruction("bitcast", "bitcast", operands=("conv",)),
        Instruction("tanh", "tanh", operands=("bitcast",)),
        Instruction("sum", "reduce", operands=("tanh",)),
        Instruction("while", "while"),
    ]
    trace = read_trace(
        space({"/host:CPU": {"tf_XLAEigen/1": events}}, {"jit_step(7)": hlo(instructions)})
    )
    assert trace.platform == "cpu"
    # Operations that only contain others are left out: the others are in the trace.
    assert names_and_times(trace) == [("conv", 10, 40), ("tanh", 40, 60), ("sum", 60, 80)]
    assert trace.host == ()


def test_a_trace_without_events_is_empty():
    trace = read_trace(space({}))
    assert (trace.platform, trace.operations, trace.host) == ("cpu", (), ())
