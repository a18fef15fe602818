"""The summary of a trace as text for the terminal and as an HTML page."""

import statistics
from collections.abc import Iterator, Sequence

from stillbox.evaluation.html_page import bar_cell, card_row, fact_row, html_page, section, table
from stillbox.printing import count_text, html_text, size_text
from stillbox.profiling.summary import Summary

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
