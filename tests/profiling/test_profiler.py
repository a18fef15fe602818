"""The traces of a profiler on the CPU."""

import jax.numpy as jnp

from stillbox.profiling.profiler import StepProfiler
from stillbox.profiling.steps import ProfileSteps


def test_a_trace_lies_where_its_line_says_with_the_events_of_its_steps(tmp_path):
    said, values = [], jnp.ones(3)
    with StepProfiler(ProfileSteps(3, 5), tmp_path, 100, said.append) as profiler:
        for _ in profiler.mark(iter(range(6))):
            values = values + 1
            profiler.dispatched(values)
    (folder,) = (tmp_path / "plugins/profile").iterdir()
    assert said == [
        f"trace of steps 103 to 105: open {folder}/perfetto_trace.json.gz at "
        f"https://ui.perfetto.dev, or run: xprof server --logdir {tmp_path}"
    ]
    assert list(folder.glob("*.xplane.pb"))
    # A CPU keeps no count of its memory.
    assert not (folder / "memory.prof").exists()


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
