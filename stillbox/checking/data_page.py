"""The page that shows what a conversion read, or what records hold: problems, images, counts.

Boxes are shown as read, before any is repaired or dropped: a wrong unit or a wrong order of the
coordinates is seen. Few images are decoded, few boxes drawn, few names listed.
"""

import io
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from functools import partial
from itertools import islice, pairwise
from pathlib import Path

import numpy as np

from stillbox.checking.data_choice import Reason, choose
from stillbox.checking.data_content import (
    DataContent,
    Integers,
    conversion_content,
    records_content,
    short_text,
)
from stillbox.checking.findings import RecordFinding
from stillbox.errors import UserError
from stillbox.evaluation.drawing import class_color
from stillbox.evaluation.html_page import (
    bar_cell,
    card_row,
    head_row,
    html_page,
    number_cell,
    section,
    table,
)
from stillbox.evaluation.pictures import LEAST_SIDE, Mark, Picture, panels_svg
from stillbox.printing import count_text, html_text
from stillbox.records.example import Example, apply_box_policy
from stillbox.records.files import write_whole
from stillbox.records.folder import ConversionView
from stillbox.records.image_files import open_image
from stillbox.records.label_map import LabelMap
from stillbox.records.parallel import ordered_map
from stillbox.records.pixels import in_eight_bits
from stillbox.records.problems import Problem
from stillbox.records.source import ExampleSource

_PICTURES = 24
_MOST_DRAWN, _MOST_LABELS = 200, 12
"""Boxes of a picture that are drawn, and the labels among them."""
_LEAST_SHOWN = 4
"""Pixels of the picture; a smaller box gets a ring."""
_RING = 15
"""Radius of a ring, in pixels of the picture."""
_MOST_SPLITS, _MOST_CLASSES, _MOST_KINDS, _MOST_PLACES, _MOST_SIZES = 4, 20, 60, 3, 8
_LONGEST_PLACE = 240


def write_conversion_page(view: ConversionView, path: Path) -> None:
    """Writes the page of a conversion; it is the `write_page` of `convert_folder`."""
    write_whole(path, data_page(conversion_content(view)).encode())


def write_records_page(
    paths: Sequence[str],
    label_map: LabelMap | None,
    path: Path,
    *,
    use_display_name: bool = False,
    findings: Sequence[RecordFinding] = (),
) -> None:
    """Writes the page of records, with the findings of `check_records`.

    Raises:
        UserError: there are no records.
    """
    source = ExampleSource(paths, label_map, use_display_name=use_display_name, bad_records="drop")
    problems = [Problem(each.what, each.outcome, each.count, [*each.examples]) for each in findings]
    write_whole(path, data_page(records_content(source, problems)).encode())


def data_page(content: DataContent) -> str:
    """Returns the page, HTML that needs no other file."""
    sections = [
        _cards(content),
        section("Special or wrong", _problems(content.problems)),
        section("Images", _sheet(content)),
        section("Numbers", _numbers(content)),
    ]
    return html_page(short_text(content.title, _LONGEST_PLACE), content.subtitle, sections)


_SPLITS = {"train": "training images", "val": "validation images", "test": "test images"}


def _cards(content: DataContent) -> str:
    splits = Counter(content.splits).most_common(_MOST_SPLITS)
    classes = {*content.class_names, *content.class_counts}
    cards = [
        (f"{len(content.splits):,}", "images"),
        *((f"{n:,}", _SPLITS.get(name, f"images of {short_text(name)}")) for name, n in splits),
        (f"{len(content.stored):,}", "boxes as read"),
        (f"{len(classes):,}", "classes"),
        (f"{int((content.counts == 0).sum()):,}", "images without a box"),
    ]
    cards += [(f"{content.left_out:,}", "further images, left out")] * (content.left_out > 0)
    return card_row(cards)


def _problems(problems: Sequence[Problem]) -> str:
    rows = []
    for problem in problems[:_MOST_KINDS]:
        shown = problem.examples[:_MOST_PLACES]
        places = [html_text(short_text(place, _LONGEST_PLACE)) for place in shown]
        places += ["..."] if problem.count > len(shown) else []
        reason = html_text(short_text(problem.reason, _LONGEST_PLACE))
        rows.append(
            f"<tr><td><b>{reason}</b><br>{html_text(problem.action)}</td>"
            f'<td class="about">{"<br>".join(places)}</td>{number_cell(problem.count)}</tr>'
        )
    head = head_row(["what", "the first places"], ["cases"])
    return table("", head, rows, sortable=True) if rows else ""


def _sheet(content: DataContent) -> str:
    """Returns the pictures of the first images of the choice that can be read."""
    candidates, shown = iter(choose(content).items()), list[str]()
    while batch := list(islice(candidates, _PICTURES - len(shown))):
        shown += filter(None, ordered_map(partial(_figure, content), batch))
    note = (
        "Boxes as read, before any is repaired or dropped. Dashed: faulty; a part outside the "
        "image is cut off at the border. In a ring: too small to be seen here. A click enlarges."
    )
    grid = f'<div class="pictures sheet">{"".join(shown)}</div>'
    return f'<p class="note">{note}</p>{grid}' if shown else ""


@np.errstate(over="ignore", invalid="ignore")
def _figure(content: DataContent, chosen: tuple[int, list[Reason]]) -> str:
    """Returns an image with boxes and caption; nothing if it cannot be read."""
    image, reasons = chosen
    try:
        example, unknown = content.load(image)
        picture = _scaled(example.encoded)
    except (OSError, ValueError, UserError):  # it is among the problems
        return ""
    problems = apply_box_policy(example, unknown, "fix", pixels_possible=content.pixels_possible)[1]
    faults = {problem.box: problem.reason for problem in problems}
    drawn = _drawn(example, [reason.box for reason in reasons if reason.box >= 0])
    texts = _texts(content, example, unknown, drawn)
    why = "; ".join(_why(reason, example) for reason in reasons)
    (svg,) = panels_svg(f"image-{image}", picture, [(why, _marks(example, texts, faults, picture))])
    about = _about(example, content.splits[image], len(drawn), faults)
    lines = "<br>".join(map(html_text, about))
    return f"<figure>{svg}<figcaption><b>{html_text(why)}</b><br>{lines}</figcaption></figure>"


def _scaled(encoded: bytes) -> Picture:
    """Returns the pixels of an image, its longer side scaled to `LEAST_SIDE`."""
    image = open_image(io.BytesIO(encoded))
    longest = max(image.size)
    width, height = (max(1, round(side * LEAST_SIDE / longest)) for side in image.size)
    image.draft("RGB", (2 * width, 2 * height))
    plain = in_eight_bits(image).convert("RGB")
    return np.asarray(plain.resize((width, height), reducing_gap=2.0))


def _drawn(example: Example, wanted: Sequence[int]) -> list[int]:
    """Returns the boxes that are drawn, the wanted ones last, thus on top."""
    others = [box for box in range(len(example.boxes)) if box not in wanted]
    finite = {*np.flatnonzero(np.isfinite(example.boxes).all(axis=1)).tolist()}
    boxes = [*others[: _MOST_DRAWN - len(wanted)], *dict.fromkeys(wanted)]
    return [box for box in boxes if box in finite]


def _texts(
    content: DataContent, example: Example, unknown: Mapping[int, str], drawn: Sequence[int]
) -> dict[int, str]:
    """Returns the class of each box that is drawn, in order."""
    return {
        box: f"unknown: {short_text(unknown[box])}"
        if box in unknown
        else content.name_of(int(example.class_ids[box]))
        for box in drawn
    }


def _marks(
    example: Example, texts: Mapping[int, str], faults: Collection[int], picture: Picture
) -> list[Mark]:
    """Returns the marks of boxes; if they are many, the last of each class has a label."""
    size = picture.shape[:2]
    boxes = example.boxes[list(texts)].astype(np.float64).reshape(-1, 2, 2)
    corners = np.sort(boxes, axis=1).clip(0, 1) * size
    longest = (corners[:, 1] - corners[:, 0]).max(axis=1, initial=0)
    named = {text: box for box, text in texts.items()}.values()
    labelled = {*list(named if len(texts) > _MOST_LABELS else texts)[-_MOST_LABELS:]}
    return [
        Mark(
            box=corners[place].reshape(4).tolist(),
            text=text if box in labelled else "",
            color=class_color(int(example.class_ids[box])),
            dashed=box in faults,
            ring=_RING if longest[place] < _LEAST_SHOWN else 0,
        )
        for place, (box, text) in enumerate(texts.items())
    ]


def _why(reason: Reason, example: Example) -> str:
    """Returns a reason with the size of the box that it is about."""
    if reason.box < 0:
        return reason.text
    ymin, xmin, ymax, xmax = example.boxes[reason.box].astype(np.float64)
    width, height = example.width * (xmax - xmin), example.height * (ymax - ymin)
    return f"{reason.text}: {_pixels(width)} x {_pixels(height)} px"


def _pixels(value: float) -> str:
    return f"{value:,.0f}" if abs(value) >= 10 else f"{value:.2g}"


def _about(example: Example, split: str, drawn: int, faults: Mapping[int, str]) -> list[str]:
    boxes = count_text(len(example.boxes), "box")
    part = f", {drawn} of them drawn" if drawn < len(example.boxes) else ""
    shares = np.abs(example.boxes[:, 2:] - example.boxes[:, :2])
    tiny = int(((shares > 0) & (shares * (example.height, example.width) < 1)).any(axis=1).sum())
    counts = Counter(faults.values()) + Counter({"box narrower than a pixel": tiny})
    return [
        f"{short_text(example.filename or example.image_id)}, {short_text(split)}",
        f"{example.width:,} x {example.height:,}, {boxes}{part}",
        *(f"{count:,} x {reason}" for reason, count in counts.items()),
    ]


@np.errstate(over="ignore", invalid="ignore")
def _numbers(content: DataContent) -> str:
    images = _count_bars(content.counts) + _size_bars(content.sizes)
    columns = (_class_bars(content), _side_bars(content), images)
    return f'<div class="columns">{"".join(f"<div>{column}</div>" for column in columns)}</div>'


def _bars(caption: str, counts: Sequence[tuple[str, int]]) -> str:
    """Returns a histogram of (name, count)."""
    most = max((count for _, count in counts), default=0)
    rows = [
        f'<tr><th scope="row">{html_text(name)}</th>{number_cell(count)}{bar_cell(count / most)}'
        "</tr>"
        for name, count in counts
    ]
    return table(caption, None, rows) if most else ""


def _filled(counts: Sequence[tuple[str, int]]) -> list[tuple[str, int]]:
    """Returns the rows without the empty ones at both ends."""
    filled = [place for place, (_, count) in enumerate(counts) if count]
    return list(counts[filled[0] : filled[-1] + 1]) if filled else []


def _class_bars(content: DataContent) -> str:
    every = list(content.class_counts.items())
    counts = [(content.name_of(class_id), count) for class_id, count in every[:_MOST_CLASSES]]
    more = len(every) - len(counts)
    empty = len(content.class_names.keys() - content.class_counts.keys())
    notes = [f"and {more:,} more with a box"] * (more > 0)
    notes += [f"{count_text(empty, 'class')} without a box"] * (empty > 0)
    note = f'<p class="note">{"; ".join(notes)}</p>' if notes else ""
    return _bars("Boxes of each class", counts) + note


_SIDES = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0)
_COUNTS = (0, 1, 2, 5, 10, 20, 50, 100, 200, 500)


def _side_bars(content: DataContent) -> str:
    """Returns the sizes of boxes; those below a pixel only where the annotation has the size."""
    sides, areas = content.sides, content.sizes.astype(np.float64).prod(axis=1)
    pixels = sides * np.sqrt(areas)[content.image_of]
    tiny = (pixels > 0) & (pixels < 1)
    others = sides[(sides > 0) & ~tiny & np.isfinite(sides)]
    # A box of the whole image may be larger by a rounding error.
    bins = np.searchsorted(_SIDES, others * (1 - 1e-4), side="left")
    binned = np.bincount(bins, minlength=len(_SIDES) + 1).tolist()
    names = [f"{100 * low:g} to {100 * high:g} %" for low, high in pairwise((0, *_SIDES))]
    counts = [
        *_filled([("no area", int((sides == 0).sum()))]),
        *_filled([("below a pixel", int(tiny.sum()))]),
        *_filled(list(zip((*names, "more than the image"), binned, strict=True))),
        *_filled([("not known", int((~np.isfinite(sides)).sum()))]),
    ]
    return _bars("Boxes by size: root of the area, in % of that of the image", counts)


def _count_bars(per_image: Integers) -> str:
    bins = np.searchsorted(_COUNTS, per_image, side="right") - 1
    binned = np.bincount(bins, minlength=len(_COUNTS)).tolist()
    names = [f"{low} to {above - 1}" for low, above in pairwise(_COUNTS)]
    names = ["0", "1", *names[2:], f"{_COUNTS[-1]} or more"]
    counts = _filled(list(zip(names, binned, strict=True)))
    return _bars("Images by the number of their boxes", counts)


def _size_bars(sizes: Integers) -> str:
    stated = sizes[(sizes > 0).all(axis=1)]
    every, counts = np.unique(stated, axis=0, return_counts=True)
    order = np.argsort(-counts, kind="stable")
    shown, others = order[:_MOST_SIZES], order[_MOST_SIZES:]
    rows = [(f"{every[at][1]} x {every[at][0]}", int(counts[at])) for at in shown]
    rows += _filled([(count_text(len(others), "other size"), int(counts[others].sum()))])
    rows += _filled([("not in the annotations", len(sizes) - len(stated))])
    return _bars("Images by width and height", rows)
