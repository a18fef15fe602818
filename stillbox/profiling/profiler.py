"""Traces some steps for TensorBoard and Perfetto, and sums the trace up on a page."""

import shutil
import statistics
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from itertools import count
from pathlib import Path

import jax

from stillbox.devices.job import is_main_process
from stillbox.evaluation.html_page import bar_cell, card_row, fact_row, html_page, section, table
from stillbox.evaluation.step_observer import Item, StepObserver
from stillbox.printing import count_text, html_text, size_text
from stillbox.profiling.hlo import running_programs
from stillbox.profiling.steps import ProfileSteps
from stillbox.profiling.summary import Summary, summarize
from stillbox.profiling.traces import read_trace
from stillbox.records.files import make_folder

_IDLE = "nothing running inside a step"
_GAP = "nothing running between steps"
_HIDDEN = "hidden behind other work"
_MEMORY_BY = "by the compiler's plan"
_NOTES = (
    "A step begins with its first operation on the device and ends where the next one begins. "
    "Where operations run at once, each moment is divided evenly among them; transfers and "
    "collectives have only those moments in which nothing else runs.",
    "On a CPU all that a convolution is made of counts as convolution; elsewhere changes of layout "
    "count as copies.",
)


def headline(summary: Summary) -> str:
    """Returns the most important numbers in one line."""
    idle = (summary.idle + summary.gap) / summary.step
    return (
        f"a step takes {_ms(summary.median)} (median of {_steps(summary)}), "
        f"{1 - summary.outside_convolutions:.1%} of it in convolutions; the {_device(summary)} has "
        f"nothing to do for {idle:.1%} of the time"
    )


def text_lines(summary: Summary) -> Iterator[str]:
    """Yields the whole summary, line by line."""

    def row(seconds: float, text: str) -> str:
        return f"  {_ms(seconds):>12}  {seconds / summary.step:6.1%}  {text}"

    yield headline(summary)
    devices = count_text(summary.devices, f"{_device(summary)} device")
    yield f"program {summary.program} on {devices}; {_spread(summary)}"
    yield ""
    yield from (row(seconds, name) for name, seconds in _parts(summary))
    for kind, seconds in summary.hidden.items():
        yield f"  {_ms(seconds):>12}          {kind}, {_HIDDEN}"
    yield ""
    yield "the same by the part of the detector:"
    yield from (row(seconds, name) for name, seconds in summary.places.items())
    yield ""
    yield f"the {len(summary.ops)} most expensive operations:"
    for one in summary.ops:
        about = "  ".join(filter(None, (one.place, one.source)))
        yield row(one.seconds, f"{one.kind}: {one.name}  {about}")
    if summary.memory:
        yield ""
        yield f"memory of the program on each device, {_MEMORY_BY}:"
        for name, size in _memory(summary):
            yield f"  {size:>14}  {name}"


def summary_page(summary: Summary, title: str, notes: Sequence[str] = ()) -> str:
    """Returns the HTML page; `notes` are sentences about the trace."""
    cards = [
        (_ms(summary.median), f"a step, median of {len(summary.steps)}"),
        (f"{1 - summary.outside_convolutions:.1%}", "of it in convolutions"),
        (f"{summary.gap / summary.step:.1%}", _GAP),
        (f"{summary.idle / summary.step:.1%}", _IDLE),
    ]
    facts = [
        fact_row("program", summary.program),
        fact_row("devices", f"{summary.devices} ({summary.platform})"),
        fact_row("steps", _spread(summary)),
    ]
    hidden = [
        _row(kind, _number(_ms(time)), _text(_HIDDEN)) for kind, time in summary.hidden.items()
    ]
    memory = [_row(name, _number(size)) for name, size in _memory(summary)]
    paragraphs = "".join(f"<p>{html_text(note)}</p>" for note in (*_NOTES, *notes))
    sections = [
        card_row(cards),
        section(
            "Where a step goes",
            _bars(_parts(summary), summary)
            + (table("Beside that", None, hidden) if hidden else ""),
        ),
        section("Parts of the detector", _bars(list(summary.places.items()), summary)),
        section("The most expensive operations", _operations(summary)),
        section(
            "Memory of the program",
            table(f"On each device, {_MEMORY_BY}", None, memory) if memory else "",
        ),
        section("The trace", table("", None, facts) + paragraphs),
    ]
    return html_page(title, headline(summary), sections)


def _parts(summary: Summary) -> list[tuple[str, float]]:
    """Returns the parts of a step with their seconds."""
    gaps = sorted(summary.gaps.items(), key=lambda item: -item[1])
    return [
        *((str(kind), time) for kind, time in summary.kinds.items()),
        (_IDLE, summary.idle),
        *((f"{_GAP}: {cause}", time) for cause, time in gaps),
    ]


def _bars(parts: Sequence[tuple[str, float]], summary: Summary) -> str:
    cells = ((name, _seconds(time, summary), bar_cell(time / summary.step)) for name, time in parts)
    return table("", None, [_row(name, *seconds, bar) for name, seconds, bar in cells])


def _operations(summary: Summary) -> str:
    head = (
        '<tr><th scope="col">where</th><th scope="col" class="number">ms</th>'
        '<th scope="col" class="number">share</th><th scope="col">what</th>'
        '<th scope="col">line</th><th scope="col">name</th></tr>'
    )
    rows = []
    for one in summary.ops:
        about = map(_text, (one.kind, one.source, one.name))
        rows.append(_row(one.place or "not known", *_seconds(one.seconds, summary), *about))
    return table("", head, rows)


def _row(name: str, *cells: str) -> str:
    return f'<tr><th scope="row">{html_text(name)}</th>{"".join(cells)}</tr>'


def _number(text: str) -> str:
    return f'<td class="number">{text}</td>'


def _text(text: str) -> str:
    return f'<td class="about">{html_text(text)}</td>'


def _seconds(seconds: float, summary: Summary) -> tuple[str, str]:
    return _number(f"{1e3 * seconds:,.3f}"), _number(f"{seconds / summary.step:.1%}")


def _memory(summary: Summary) -> list[tuple[str, str]]:
    rows = sorted(summary.memory.items(), key=lambda item: -item[1])
    rows = [("all", sum(summary.memory.values())), *rows] if rows else []
    return [(name, size_text(size)) for name, size in rows]


def _spread(summary: Summary) -> str:
    times = summary.steps
    spread = f", {_ms(min(times))} to {_ms(max(times))}" if len(times) > 1 else ""
    return f"{_steps(summary)}, mean {_ms(statistics.mean(times))}{spread}"


def _steps(summary: Summary) -> str:
    return count_text(len(summary.steps), "step")


def _device(summary: Summary) -> str:
    return summary.platform.upper()


def _ms(seconds: float) -> str:
    return f"{1e3 * seconds:,.3f} ms" if seconds < 1 else f"{1e3 * seconds:,.0f} ms"


_PAGE, _TEXT, _MEMORY = "summary.html", "summary.txt", "memory.prof"
_PROGRAM = ".hlo.pb"


class StepProfiler(StepObserver):
    """Annotates every step for any trace, and traces some of them itself.

    The trace begins when the device has finished the step before and ends when it has finished the
    last step. It therefore holds the device's work on these steps only. A run that ends earlier
    closes the trace.

    Args:
        steps: the steps to trace; None traces nothing.
        directory: the trace is written to `plugins/profile/TIME` there.
        done: steps before this run.
        say: prints where the trace is and its headline.
        paused: entered while the trace is written, which is no part of the run.
        name: of the annotations.
    """

    def __init__(
        self,
        steps: ProfileSteps | None,
        directory: Path,
        done: int = 0,
        say: Callable[[str], None] = print,
        paused: Callable[[], AbstractContextManager[None]] = nullcontext,
        name: str = "train",
    ) -> None:
        self._steps, self._directory, self._done = steps, directory, done
        self._say, self._paused, self._name = say, paused, name
        self._open_since = 0
        self._traced = False
        self._result: object = None
        self._number = 0

    def __enter__(self) -> "StepProfiler":
        if not is_main_process():
            self._steps = None  # one trace a job: the processes share the folder
        return self

    def __exit__(self, kind: type[BaseException] | None, *error: object) -> None:
        if self._open_since:
            self._stop(wait=kind is None)
        elif self._steps and not self._traced and kind is None:
            self._say(
                f"warning: nothing was traced: there was no step {self._steps.first} in this run"
            )

    def mark(self, items: Iterator[Item]) -> Iterator[Item]:
        """Yields the items; a step begins with a request for an item. A second call continues the
        count."""
        for number in count(self._number + 1):
            self._number = number
            if self._steps and self._number == self._steps.first:
                self._start()
            with jax.profiler.StepTraceAnnotation(self._name, step_num=self._done + self._number):
                with jax.profiler.TraceAnnotation("wait for data"):
                    item = next(items, None)
                if item is None:
                    self._number -= 1
                    self._abandon()
                    return
                yield item
            if self._steps and self._number == self._steps.last:
                self._stop()

    def dispatched(self, result: object) -> None:
        """Receives arrays that the step computes: it is done when they are ready."""
        self._result = result

    def _start(self) -> None:
        jax.block_until_ready(self._result)
        make_folder(self._directory / "plugins" / "profile", below=self._directory)
        options = jax.profiler.ProfileOptions()
        # Tracing calls of Python functions would hide everything else and slow down the steps.
        options.python_tracer_level = 0
        jax.profiler.start_trace(
            self._directory, create_perfetto_trace=True, profiler_options=options
        )
        self._open_since = self._number

    def _abandon(self) -> None:
        """Drops a trace without a step; another pass over the data may have the first step."""
        if self._open_since > self._number:
            self._open_since = 0
            jax.profiler.stop_trace()
            shutil.rmtree(_newest_trace(self._directory))

    def _stop(self, *, wait: bool = True) -> None:
        since, self._open_since = self._open_since, 0
        self._traced = True
        if wait:
            jax.block_until_ready(self._result)
        with self._paused():
            jax.profiler.stop_trace()
            folder = _newest_trace(self._directory)
            steps = f"steps {self._done + since} to {self._done + self._number}"
            self._say(
                f"trace of {steps}: open {folder}/perfetto_trace.json.gz at "
                f"https://ui.perfetto.dev, or {self._directory} in TensorBoard with its profile "
                "plugin"
            )
            notes = _save_memory(folder)
            self._sum_up(folder, f"{self._name}: {steps}", notes)

    def _sum_up(self, folder: Path, title: str, notes: list[str]) -> None:
        try:
            _keep_programs(folder)
            summary = summarize_folder(folder)
        except Exception as error:
            # A failing summary must not end the run.
            self._say(f"warning: the trace could not be summed up: {error!r}")
            return
        if summary is None:
            self._say("warning: no compiled program ran during the trace")
            return
        (folder / _PAGE).write_text(summary_page(summary, title, notes), encoding="utf-8")
        (folder / _TEXT).write_text("\n".join(text_lines(summary)) + "\n", encoding="utf-8")
        self._say(headline(summary))
        self._say(f"where the time of a step goes: {folder / _PAGE}")


def _newest_trace(directory: Path) -> Path:
    folders = (directory / "plugins" / "profile").iterdir()
    return max(
        (one for one in folders if not one.is_symlink()), key=lambda one: one.stat().st_mtime
    )


def summarize_folder(folder: Path) -> Summary | None:
    """Returns the summary of a folder of `plugins/profile`, None where no program ran."""
    (path,) = folder.glob("*.xplane.pb")
    beside = [one.read_bytes() for one in sorted(folder.glob(f"*{_PROGRAM}"))]
    return summarize(read_trace(path.read_bytes(), beside))


def _keep_programs(folder: Path) -> None:
    """Writes the programs that a trace lacks beside it: it can then be read on any machine."""
    (path,) = folder.glob("*.xplane.pb")
    trace = read_trace(path.read_bytes())
    ran = {one.program for one in trace.operations if one.program}
    lacking = {name.partition("(")[0] for name in ran if name not in trace.programs}
    for number, proto in enumerate(running_programs(lacking) if lacking else ()):
        (folder / f"{number}{_PROGRAM}").write_bytes(proto)


def _save_memory(folder: Path) -> list[str]:
    """Saves the allocations on the devices; returns a sentence about them.

    Devices that keep no count, such as a CPU, would only list arrays of the host.
    """
    if not any(device.memory_stats() for device in jax.local_devices()):
        return []
    path = folder / _MEMORY
    jax.profiler.save_device_memory_profile(str(path))
    return [f"Allocations on the devices at the end of the last step: pprof -top {path.name}"]
