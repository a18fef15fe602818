"""The summary of a trace for people: some lines for the terminal, and a page."""

import html
import statistics
from collections.abc import Iterator, Sequence

from stillbox.evaluation.html_page import bar_cell, card_row, fact_row, html_page, section, table
from stillbox.profiling.summary import Summary

_IDLE = "nothing running inside a step"
_GAP = "nothing running between steps"
_MIB = 2**20


def headline(summary: Summary) -> str:
    """Returns what matters most, in one line."""
    outside = summary.outside_convolutions
    idle = (summary.idle + summary.gap) / summary.step
    return (
        f"a step takes {_ms(summary.median)} (median of {_steps(summary)}), {1 - outside:.1%} of "
        f"it in convolutions; the {_device(summary)} has nothing to do for {idle:.1%} of the time"
    )


def text_lines(summary: Summary) -> Iterator[str]:
    """Yields the whole summary, line by line."""
    yield headline(summary)
    devices = f"{summary.devices} {_device(summary)}(s)"
    yield f"program {summary.program} on {devices}; {_spread(summary)}"
    yield ""
    for name, seconds in _parts(summary):
        yield f"  {_ms(seconds):>12}  {seconds / summary.step:6.1%}  {name}"
    for kind, seconds in summary.hidden.items():
        yield f"  {_ms(seconds):>12}          {kind}, hidden behind other work"
    yield ""
    yield "the same by the part of the detector:"
    for name, seconds in summary.places.items():
        yield f"  {_ms(seconds):>12}  {seconds / summary.step:6.1%}  {name}"
    yield ""
    yield f"the {len(summary.expenses)} most expensive operations:"
    for one in summary.expenses:
        share = one.seconds / summary.step
        about = "  ".join(filter(None, (one.place, one.source)))
        yield f"  {_ms(one.seconds):>12}  {share:6.1%}  {one.kind}: {one.name}  {about}"
    if summary.memory:
        yield ""
        yield "memory of the program on each device, by the compiler's plan:"
        for name, size in _memory(summary):
            yield f"  {size / _MIB:10,.1f} MiB  {name}"


def summary_page(summary: Summary, title: str, notes: Sequence[str] = ()) -> str:
    """Returns the page.

    Args:
        summary: what it shows.
        title: heading of it.
        notes: sentences about the trace, such as what lies beside it.
    """
    times = summary.steps
    cards = [
        (_ms(summary.median), f"a step, median of {len(times)}"),
        (f"{1 - summary.outside_convolutions:.1%}", "of it in convolutions"),
        (f"{summary.gap / summary.step:.1%}", _GAP),
        (f"{summary.idle / summary.step:.1%}", _IDLE),
    ]
    facts = {
        "program": summary.program,
        "devices": f"{summary.devices} ({summary.platform})",
        "steps": _spread(summary),
    }
    sections = [
        card_row(cards),
        section("Where a step goes", _kinds(summary)),
        section("Parts of the detector", _bars(list(summary.places.items()), summary)),
        section("The most expensive operations", _expenses(summary)),
        section("Memory of the program", _memory_table(summary)),
        section(
            "The trace",
            table("", None, [fact_row(name, value) for name, value in facts.items()])
            + "".join(f"<p>{html.escape(note)}</p>" for note in (*_NOTES, *notes)),
        ),
    ]
    return html_page(title, headline(summary), sections)


_NOTES = (
    "A step begins with its first operation on the device and ends where the next one begins. "
    "Where operations run at once, each moment is divided evenly among them; transfers and "
    "collectives have only those moments in which nothing else runs.",
    "On a CPU all that a convolution is made of counts as convolution; elsewhere changes of layout "
    "count as copies.",
)


def _parts(summary: Summary) -> list[tuple[str, float]]:
    """Returns everything that a step consists of, with its seconds."""
    parts: list[tuple[str, float]] = [(str(kind), time) for kind, time in summary.kinds.items()]
    parts.append((_IDLE, summary.idle))
    gaps = sorted(summary.gaps.items(), key=lambda item: -item[1])
    parts += [(f"{_GAP}: {cause}", time) for cause, time in gaps]
    return parts


def _kinds(summary: Summary) -> str:
    hidden = [
        f'<tr><th scope="row">{html.escape(kind)}</th>'
        f'<td class="number">{_ms(time)}</td><td class="about">hidden behind other work</td></tr>'
        for kind, time in summary.hidden.items()
    ]
    beside = table("Beside that", None, hidden) if hidden else ""
    return _bars(_parts(summary), summary) + beside


def _bars(parts: Sequence[tuple[str, float]], summary: Summary) -> str:
    rows = [
        f'<tr><th scope="row">{html.escape(name)}</th>{_numbers(time, summary)}'
        f"{bar_cell(time / summary.step)}</tr>"
        for name, time in parts
    ]
    return table("", None, rows)


def _expenses(summary: Summary) -> str:
    head = (
        '<tr><th scope="col">where</th><th scope="col" class="number">ms</th>'
        '<th scope="col" class="number">share</th><th scope="col">what</th>'
        '<th scope="col">line</th><th scope="col">name</th></tr>'
    )
    rows = [
        f'<tr><th scope="row">{html.escape(one.place or "not known")}</th>'
        f"{_numbers(one.seconds, summary)}"
        + "".join(
            f'<td class="about">{html.escape(text)}</td>'
            for text in (one.kind, one.source, one.name)
        )
        + "</tr>"
        for one in summary.expenses
    ]
    return table("", head, rows)


def _memory_table(summary: Summary) -> str:
    rows = [
        f'<tr><th scope="row">{html.escape(name)}</th>'
        f'<td class="number">{size / _MIB:,.1f} MiB</td></tr>'
        for name, size in _memory(summary)
    ]
    return table("On each device, by the compiler's plan", None, rows) if rows else ""


def _memory(summary: Summary) -> list[tuple[str, int]]:
    rows = sorted(summary.memory.items(), key=lambda item: -item[1])
    return [("all", sum(size for _, size in rows)), *rows] if rows else []


def _numbers(seconds: float, summary: Summary) -> str:
    return (
        f'<td class="number">{1e3 * seconds:,.3f}</td>'
        f'<td class="number">{seconds / summary.step:.1%}</td>'
    )


def _spread(summary: Summary) -> str:
    times = summary.steps
    spread = f", {_ms(min(times))} to {_ms(max(times))}" if len(times) > 1 else ""
    return f"{_steps(summary)}, mean {_ms(statistics.mean(times))}{spread}"


def _steps(summary: Summary) -> str:
    count = len(summary.steps)
    return "1 step" if count == 1 else f"{count} steps"


def _device(summary: Summary) -> str:
    return {"cpu": "CPU", "gpu": "GPU", "tpu": "TPU"}.get(summary.platform, summary.platform)


def _ms(seconds: float) -> str:
    return f"{1e3 * seconds:,.3f} ms" if seconds < 1 else f"{1e3 * seconds:,.0f} ms"
