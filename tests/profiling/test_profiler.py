"""A real trace of a small program on the CPU, with its summary."""

import re

import jax
import jax.numpy as jnp
import pytest

from stillbox.profiling.costs import Kind
from stillbox.profiling.hlo import Instruction, choose_programs, read_programs, running_programs
from stillbox.profiling.profiler import StepProfiler, summarize_folder
from stillbox.profiling.steps import ProfileSteps
from tests.profiling.made import hlo

_DIMENSIONS = ("NHWC", "HWIO", "NHWC")


def profiled_step(kernel, images):
    def loss(kernel):
        with jax.named_scope("backbone"), jax.named_scope("convolution"):
            maps = jax.lax.conv_general_dilated(
                images, kernel, (1, 1), "SAME", dimension_numbers=_DIMENSIONS
            )
        with jax.named_scope("losses"):
            return jnp.sum(jnp.tanh(maps))

    gradient = jax.grad(loss)(kernel)
    with jax.named_scope("update"):
        return kernel - 0.1 * gradient


@pytest.fixture(scope="module")
def traced(tmp_path_factory):
    folder, said = tmp_path_factory.mktemp("traced"), []
    kernel, images = jnp.ones((3, 3, 16, 16)), jnp.ones((4, 64, 64, 16))
    # Compiled as by users: convolutions then take longest.
    options = {"xla_backend_optimization_level": 3}
    compiled = jax.jit(profiled_step).lower(kernel, images).compile(compiler_options=options)
    with StepProfiler(ProfileSteps(3, 5), folder, 100, said.append) as profiler:
        for _ in profiler.mark(iter(range(6))):
            kernel = compiled(kernel, images)
            profiler.dispatched(kernel)
    (trace,) = (folder / "plugins" / "profile").iterdir()
    return trace, said, compiled


def test_the_summary_is_that_of_the_program_that_ran(traced):
    folder, _, _ = traced
    summary = summarize_folder(folder)
    assert (summary.platform, summary.program, len(summary.steps)) == (
        "cpu",
        "jit_profiled_step",
        2,
    )
    assert summary.step == pytest.approx(sum(summary.steps) / 2, rel=1e-6)
    # 64 x 64 x 4 pixels, 2304 products each, there and back; all else is once over the maps.
    assert next(iter(summary.kinds)) is Kind.CONVOLUTIONS
    assert {Kind.LOSSES, Kind.OPTIMIZER} <= set(summary.kinds)
    places = {one.place for one in summary.ops}
    assert {"backbone/convolution", "losses", "update"} <= places
    assert any(one.source.startswith("test_profiler.py:") for one in summary.ops)


def test_the_memory_is_that_of_the_compiler(traced):
    folder, _, compiled = traced
    (path,) = folder.glob("*.xplane.pb")
    content = path.read_bytes()
    (name,) = set(re.findall(r"jit_profiled_step\(\d+\)", content.decode(errors="replace")))
    memory = dict(read_programs(content, {name})[name].memory)
    analysis = compiled.memory_analysis()
    assert memory["argument kernel"] == 4 * 3 * 3 * 16 * 16
    assert memory["argument images"] == 4 * 4 * 64 * 64 * 16
    assert memory["temporary"] == analysis.temp_size_in_bytes
    assert memory["results"] == analysis.output_size_in_bytes


def test_the_page_is_beside_the_trace_and_its_headline_is_printed(traced):
    folder, said, _ = traced
    assert "trace of steps 103 to 105" in said[0]
    assert said[1].startswith("a step takes ")
    assert said[2] == f"where the time of a step goes: {folder / 'summary.html'}"
    assert "steps 103 to 105" in (folder / "summary.html").read_text()
    assert said[1] == (folder / "summary.txt").read_text().splitlines()[0]
    # A CPU keeps no count of its memory.
    assert not (folder / "memory.prof").exists()


def test_a_program_that_the_trace_lacks_is_read_from_the_runtime(traced):
    """The profiler lacks programs from the cache, as in tests/cli/test_running.py."""
    _, _, compiled = traced
    asked = list(running_programs({"jit_profiled_step"}))
    other = hlo([Instruction("add", "add")])  # of the same name
    (own,) = choose_programs(asked, {"jit_profiled_step(3)": ()}).values()
    ran = {"jit_profiled_step(3)": set(own.instructions), "jit_gone(4)": {"add"}}
    chosen = choose_programs([other, *asked], ran)
    assert list(chosen) == ["jit_profiled_step(3)"]
    program = chosen["jit_profiled_step(3)"]
    assert program.memory["temporary"] == compiled.memory_analysis().temp_size_in_bytes
    assert any("backbone" in one.op_name for one in program.instructions.values())


def test_steps_are_counted_over_several_passes_and_a_missing_one_is_reported(tmp_path):
    said = []
    with StepProfiler(ProfileSteps(8, 9), tmp_path, say=said.append) as profiler:
        assert [list(profiler.mark(iter(range(3)))) for _ in range(2)] == [[0, 1, 2]] * 2
    assert said == ["warning: nothing was traced: there was no step 8 in this run"]
    assert not (tmp_path / "plugins").exists()


def test_a_trace_begins_with_a_step_not_at_the_end_of_a_pass(tmp_path):
    """The third step is the first of the second pass; the first pass ends before it."""
    said = []
    with StepProfiler(ProfileSteps(3, 3), tmp_path, say=said.append) as profiler:
        for _ in range(2):
            for _ in profiler.mark(iter(range(2))):
                profiler.dispatched(jnp.ones(3) + 1)
    assert "trace of steps 3 to 3" in said[0]
    assert len(list((tmp_path / "plugins/profile").iterdir())) == 1


def test_an_error_of_the_summary_does_not_end_the_run(tmp_path, monkeypatch):
    def fail(folder):
        raise IndexError("a field reaches past its message")

    monkeypatch.setattr("stillbox.profiling.profiler.summarize_folder", fail)
    said = []
    with StepProfiler(ProfileSteps(1, 1), tmp_path, say=said.append) as profiler:
        assert list(profiler.mark(iter(range(2)))) == [0, 1]
    assert "could not be summed up: IndexError" in said[1]
