"""Statistics of a set of records: classes, boxes, sizes."""

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field

import numpy as np
from rich.table import Table
from rich.text import Text

from stillbox.checking.data import coco_sizes
from stillbox.printing import count_text, printable_line, size_text
from stillbox.records.example import Example
from stillbox.records.image_files import ImageInfo, inspect_image
from stillbox.records.label_map import LabelMap
from stillbox.records.parallel import ordered_map
from stillbox.records.problems import BadRecordError
from stillbox.records.source import ExampleSource

_COUNT_BORDERS = (0, 1, 2, 5, 10, 20, 50, 100, 200)
_SIZES_SHOWN = 5
_BAR = 40


@dataclass
class ClassCount:
    """Boxes of one class, and images that have one."""

    id: int
    name: str
    boxes: int = 0
    images: int = 0


@dataclass
class RecordsStats:
    """The content of a set of records, boxes corrected by the usual policy."""

    records: int = 0
    unusable: int = 0
    """Records without a usable example or image; `stillbox data check` names them."""
    few_values: int = 0
    """Images that use few of the 256 values."""
    encoded_bytes: int = 0
    """Images as stored."""
    boxes: int = 0
    """Boxes that can be used; the next five count some of these, or images without any."""
    images_without_boxes: int = 0
    crowds: int = 0
    difficult: int = 0
    truncated: int = 0
    zero_weight: int = 0
    """Boxes that the loss ignores."""
    classes: list[ClassCount] = field(default_factory=list)
    """In the order of their ids."""
    boxes_per_image: dict[str, int] = field(default_factory=dict)
    """Images by number of boxes."""
    most_boxes: int = 0
    """Most boxes in one image: with `max_boxes` at least this none is lost."""
    boxes_99th_percentile: int = 0
    """99 of 100 images have at most this many boxes."""
    box_sizes: dict[str, int] = field(default_factory=dict)
    """Boxes by COCO's small, medium, large; by segment area where the records have it."""
    image_sizes: dict[str, int] = field(default_factory=dict)
    """Images by `width x height`, the most frequent first."""
    image_formats: dict[str, int] = field(default_factory=dict)
    """Images by format and mode, such as `JPEG RGB`."""

    def to_dict(self) -> dict[str, object]:
        """Returns plain values, for JSON."""
        return asdict(self)

    def tables(self) -> list[Table]:
        """Returns the numbers as tables."""
        sizes = dict(list(self.image_sizes.items())[:_SIZES_SHOWN])
        others = sum(self.image_sizes.values()) - sum(sizes.values())
        if others:
            sizes[count_text(len(self.image_sizes) - _SIZES_SHOWN, "other size")] = others
        return [
            self._overview(),
            self._class_table(),
            _histogram("Boxes per image", "boxes", self.boxes_per_image),
            _histogram("Box sizes (COCO)", "size", self.box_sizes),
            _histogram("Image sizes", "width x height", sizes),
            _histogram("Image formats", "format", self.image_formats),
        ]

    def _overview(self) -> Table:
        table = Table(title="Records", title_justify="left", show_header=False)
        for name, value in (
            ("records", self.records),
            ("  unusable", self.unusable),
            ("  without a box", self.images_without_boxes),
            ("  of few values", self.few_values),
            ("boxes", self.boxes),
            ("  crowds", self.crowds),
            ("  difficult", self.difficult),
            ("  truncated", self.truncated),
            ("  weight 0", self.zero_weight),
            ("most boxes in an image", self.most_boxes),
            ("99th percentile of boxes", self.boxes_99th_percentile),
        ):
            table.add_row(name, f"{value:,}")
        table.add_row("image data", size_text(self.encoded_bytes))
        return table

    def _class_table(self) -> Table:
        table = Table(title="Classes", title_justify="left")
        for name in ("id", "class", "boxes", "share", "images"):
            table.add_column(name, justify="left" if name == "class" else "right")
        for row in self.classes:
            share = 100 * row.boxes / max(1, self.boxes)
            numbers = f"{row.boxes:,}", f"{share:.1f} %", f"{row.images:,}"
            table.add_row(str(row.id), Text(printable_line(row.name)), *numbers)
        return table


def records_stats(
    paths: Sequence[str],
    label_map: LabelMap | None = None,
    *,
    use_display_name: bool = False,
    workers: int = 0,
    on_record: Callable[[int, int], None] = lambda done, total: None,
) -> RecordsStats:
    """Counts the content of a set of records. Images are decoded, JPEG files to an eighth.

    Args:
        paths: files and patterns.
        use_display_name: match class texts against display names.
        workers: threads; 0: one for each core, at most 8.
        on_record: called after each record with the numbers of records done and in all.

    Raises:
        UserError: there are no records.
    """
    source = ExampleSource(paths, label_map, use_display_name=use_display_name, bad_records="drop")
    stats = RecordsStats(records=len(source))
    classes = {
        item.id: ClassCount(item.id, item.display_name or item.name) for item in label_map or ()
    }
    per_image: list[int] = []
    sizes, images, formats = Counter[str](), Counter[str](), Counter[str]()
    inspected = ordered_map(lambda index: _inspect(source, index), range(len(source)), workers)
    for done, result in enumerate(inspected, start=1):
        on_record(done, len(source))
        if result is None:
            stats.unusable += 1
            continue
        example, info = result
        per_image.append(len(example.boxes))
        stats.few_values += info.few_values > 0
        _add_example(stats, classes, example)
        sizes.update(_box_sizes(example, info))
        images[f"{info.width} x {info.height}"] += 1
        formats[f"{info.format} {info.mode}"] += 1
    stats.classes = [classes[class_id] for class_id in sorted(classes)]
    stats.boxes_per_image = _by_count(per_image)
    if per_image:
        stats.most_boxes = max(per_image)
        stats.boxes_99th_percentile = int(np.ceil(np.percentile(per_image, 99)))
    stats.box_sizes = {size: sizes[size] for size in ("small", "medium", "large")}
    stats.image_sizes = dict(images.most_common())
    stats.image_formats = dict(formats.most_common())
    return stats


def _inspect(source: ExampleSource, index: int) -> tuple[Example, ImageInfo] | None:
    example = source.example(index)
    if example is None:
        return None
    try:
        return example, inspect_image(example.encoded, quick=True)
    except BadRecordError:
        return None


def _box_sizes(example: Example, info: ImageInfo) -> dict[str, int]:
    sides = example.boxes[:, 2:] - example.boxes[:, :2]
    of_box = sides[:, 0] * info.height * sides[:, 1] * info.width
    areas = np.where(np.isnan(example.area), of_box, example.area)
    return {size: int(chosen.sum()) for size, chosen in coco_sizes(areas).items()}


def _add_example(stats: RecordsStats, classes: dict[int, ClassCount], example: Example) -> None:
    stats.encoded_bytes += len(example.encoded)
    stats.boxes += len(example.boxes)
    stats.images_without_boxes += not len(example.boxes)
    stats.crowds += int(example.is_crowd.sum())
    stats.difficult += int(example.difficult.sum())
    stats.truncated += int(example.truncated.sum())
    stats.zero_weight += int((example.weights == 0).sum())
    for class_id, boxes in Counter(example.class_ids.tolist()).items():
        row = classes.setdefault(class_id, ClassCount(class_id, f"class {class_id}"))
        row.boxes += boxes
        row.images += 1


def _by_count(per_image: list[int]) -> dict[str, int]:
    """Returns images by number of boxes, in widening ranges up to the last that is not empty."""
    ranges = {}
    for low, above in zip(_COUNT_BORDERS, [*_COUNT_BORDERS[1:], 10**9], strict=True):
        name = str(low) if above == low + 1 else f"{low} to {above - 1}"
        name = name if above < 10**9 else f"{low} or more"
        ranges[name] = sum(low <= count < above for count in per_image)
    while ranges and not ranges[list(ranges)[-1]]:
        ranges.popitem()
    return ranges


def _histogram(title: str, name: str, counts: dict[str, int]) -> Table:
    table = Table(title=title, title_justify="left")
    table.add_column(name, justify="right")
    table.add_column("count", justify="right")
    table.add_column("")
    most = max(counts.values(), default=1) or 1
    for key, count in counts.items():
        table.add_row(key, f"{count:,}", "#" * round(_BAR * count / most))
    return table
