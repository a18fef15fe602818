"""Shares of time and arithmetic of spans, and the summary of a step by hand."""

import pytest

from stillbox.profiling.costs import Kind
from stillbox.profiling.hlo import Instruction, Program
from stillbox.profiling.profiler import headline, summary_page, text_lines
from stillbox.profiling.summary import (
    BUSY,
    STARTING,
    WAITING,
    Work,
    length,
    merged,
    share_out,
    summarize,
    within,
    without,
)
from stillbox.profiling.traces import HostEvent, Operation, Trace
from tests.profiling.made import program


def test_a_moment_is_divided_evenly_among_what_runs_in_it():
    # 0..10 a alone, 10..20 a and b, 20..30 b alone, 30..40 nothing, 40..50 a.
    works = [Work(0, 20, "a"), Work(10, 30, "b"), Work(40, 50, "a")]
    spent, hidden = share_out(works)
    assert spent == {"a": 10 + 5 + 10, "b": 5 + 10}
    assert hidden == {}


def test_background_work_has_the_moments_without_other_work():
    # The transfer alone runs in 20..30; in 0..20 it is hidden by a and b, which share 10..20.
    works = [Work(0, 20, "a"), Work(10, 20, "b"), Work(0, 30, "transfer", background=True)]
    spent, hidden = share_out(works)
    assert spent == {"a": 15, "b": 5, "transfer": 10}
    assert hidden == {"transfer": 20}


def test_adjacent_works_share_no_moment():
    spent, _ = share_out([Work(0, 10, "a"), Work(10, 20, "b"), Work(20, 20, "empty")])
    assert spent == {"a": 10, "b": 10}


def test_spans_are_merged_intersected_and_subtracted():
    spans = merged([(5, 7), (0, 2), (2, 3), (6, 9)])
    assert spans == [(0, 3), (5, 9)]
    assert within(spans, 1, 6) == [(1, 3), (5, 6)]
    assert within(spans, 3, 5) == []
    assert without(1, 12, spans) == [(3, 5), (9, 12)]
    assert without(5, 9, spans) == []
    assert length(spans) == pytest.approx(7)


MS = 1_000_000
ORIGIN = "jit(step)/jvp(backbone)/conv_0/"


def step_program() -> Program:
    return program(
        Instruction("conv", "convolution", op_name=ORIGIN + "convolution/conv"),
        Instruction("norm", "fusion", op_name=ORIGIN + "mul", source="/x/stillbox/norm.py:9"),
        Instruction("update", "fusion", op_name="jit(step)/update/add"),
        Instruction("reduce", "all-reduce", op_name="jit(step)/update/psum"),
    )


def operations(start: int, device: str = "/device:GPU:0") -> list[Operation]:
    """A step of 10 ms: 6 of convolution, 2 of norm, 1 with nothing, 1 of update; the all-reduce is
    hidden by the norm for 1 and runs alone in the empty one."""

    def made(name, first, last):
        ends = (start + first) * MS, (start + last) * MS
        return Operation(name, *ends, "jit_step(7)", device)

    return [made("conv", 0, 6), made("norm", 6, 8), made("reduce", 7, 9), made("update", 9, 10)]


def host(name: str, start: float, end: float, step: int | None = None) -> HostEvent:
    return HostEvent(name, start * MS, end * MS, "python", step)


@pytest.fixture
def gpu():
    """Three steps that begin at 0, 14 and 26: gaps of 4 and 2 ms. In the first the host waits for
    data for 3 ms and begins the next step in the last; what it does in the second is not known.
    The batch that comes in during the first gap costs 1 ms of it."""
    batch = Operation("MemcpyH2D", 10.5 * MS, 11.5 * MS, "", "/device:GPU:0")
    return Trace(
        "gpu",
        (*operations(0), batch, *operations(14), *operations(26)),
        (
            host("train", 0, 13, 1),
            host("wait for data", 10, 13),
            host("PjitFunction(step)", 12, 14),
            HostEvent("wait for data", 24 * MS, 26 * MS, "another thread"),
        ),
        {"jit_step(7)": step_program()},
    )


def test_the_parts_of_a_step_add_up_to_its_time(gpu):
    summary = summarize(gpu)
    assert (summary.platform, summary.devices, summary.program) == ("gpu", 1, "jit_step")
    # The last step has no next one; two periods of 14 and 12 ms are left.
    assert summary.steps == pytest.approx((0.014, 0.012))
    milliseconds = {kind: 1e3 * time for kind, time in summary.kinds.items()}
    assert milliseconds == pytest.approx(
        {
            Kind.CONVOLUTIONS: 6,
            Kind.ELEMENTWISE: 2,
            Kind.COLLECTIVES: 1,  # 8 to 9, with nothing else
            Kind.OPTIMIZER: 1,
            Kind.INFEED: 0.5,  # 1 ms in one of two steps
        }
    )
    assert next(iter(summary.kinds)) is Kind.CONVOLUTIONS
    assert summary.hidden == pytest.approx({Kind.COLLECTIVES: 0.001})
    assert summary.idle == pytest.approx(0)
    # The first gap: 10 to 10.5 and 11.5 to 13 waiting, 13 to 14 starting; the second: 24 to 26.
    gaps = {cause: 1e3 * time for cause, time in summary.gaps.items()}
    assert gaps == pytest.approx({WAITING: 2 / 2, STARTING: 1 / 2, BUSY: 2 / 2})
    assert summary.step == pytest.approx(0.013)
    assert summary.median == pytest.approx(0.013)
    assert summary.outside_convolutions == pytest.approx(7 / 13)


def test_the_most_expensive_operations_have_their_places_and_sources(gpu):
    first, second, *_ = summarize(gpu).ops
    assert (first.name, first.place) == ("conv", "backbone/conv_0/convolution")
    assert first.seconds == pytest.approx(0.006)
    assert (second.place, second.source) == ("backbone/conv_0", "stillbox/norm.py:9")
    places = {name: 1e3 * time for name, time in summarize(gpu).places.items()}
    # MemcpyH2D is no operation of the program.
    assert places == pytest.approx({"backbone": 8, "update": 2, "not known": 0.5})


def test_two_devices_are_averaged(gpu):
    slower = [
        one._replace(device="/device:GPU:1", start=2 * one.start, end=2 * one.end)
        for one in gpu.operations
    ]
    summary = summarize(gpu._replace(operations=(*gpu.operations, *slower)))
    assert summary.devices == 2
    assert summary.kinds[Kind.CONVOLUTIONS] == pytest.approx((0.006 + 0.012) / 2)
    assert summary.step == pytest.approx((0.013 + 0.026) / 2)


def test_a_device_with_copies_alone_has_no_steps(gpu):
    copy = Operation("MemcpyD2D", 1 * MS, 2 * MS, "", "/device:GPU:1")
    assert summarize(gpu._replace(operations=(*gpu.operations, copy))) == summarize(gpu)


def test_a_single_step_has_its_own_time():
    summary = summarize(Trace("gpu", tuple(operations(5)), (), {"jit_step(7)": step_program()}))
    assert summary.steps == pytest.approx((0.010,))
    assert summary.gaps == {}
    assert summary.step == pytest.approx(0.010)


def test_the_devices_of_a_cpu_share_its_threads():
    """Two virtual devices run at once, each step is there twice, and each moment counts once."""
    once = [*operations(0, "cpu"), *operations(20, "cpu")]
    both = [one._replace(replica=replica) for one in once for replica in (0, 1)]
    both.sort(key=lambda one: one.start)
    summary = summarize(Trace("cpu", tuple(both), (), {"jit_step(7)": step_program()}))
    assert (summary.devices, len(summary.steps)) == (2, 1)
    assert summary.kinds[Kind.CONVOLUTIONS] == pytest.approx(0.006)
    assert summary.gap == pytest.approx(0.010)


def test_operations_of_other_programs_and_unknown_ones_have_a_kind(gpu):
    other = Operation("add", 10 * MS, 11 * MS, "jit_add(9)", "/device:GPU:0")
    unknown = Operation("nvjet_hsh_128", 11 * MS, 12 * MS, "jit_step(7)", "/device:GPU:0")
    summary = summarize(gpu._replace(operations=(*gpu.operations, other, unknown)))
    # Each takes 1 ms in one step of two; the transfer beside them takes no share of it.
    assert summary.kinds[Kind.OTHER] == pytest.approx(0.001 / 2)
    assert summary.kinds[Kind.PRODUCTS] == pytest.approx(0.001 / 2)


def test_a_trace_without_programs_has_no_summary():
    assert summarize(Trace("cpu", (), (host("train", 0, 1, 1),), {})) is None


def test_the_page_and_the_text_show_the_whole_summary(gpu):
    summary = summarize(gpu)
    assert headline(summary) == (
        "a step takes 13.000 ms (median of 2 steps), 46.2% of it in convolutions; the GPU has "
        "nothing to do for 19.2% of the time"
    )
    page = summary_page(summary, "<train>", ["a note"])
    text = "\n".join(text_lines(summary))
    for shown in (page, text):
        assert "nothing running between steps: waiting for data" in shown
        assert "backbone/conv_0/convolution" in shown
        assert "norms and other elementwise" in shown
        assert "hidden behind other work" in shown
    assert "&lt;train&gt;" in page
    assert "a note" in page
    assert "://" not in page
