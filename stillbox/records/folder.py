"""Converts a folder of annotated images in any known format to records, label map and report."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path

from stillbox.image_kind import common_kind
from stillbox.records.annotations import AnnotatedImage
from stillbox.records.conversion import (
    LABEL_MAP_NAME,
    ConversionOptions,
    ConversionReport,
    convert,
    no_boxes,
)
from stillbox.records.converted import (
    PAGE_NAME,
    REPORT_NAME,
    ConvertedFolder,
    conversion_key,
    former_conversion,
    write_conversion,
    written_files,
)
from stillbox.records.data_folder import DataFolder, Split
from stillbox.records.files import new_folder
from stillbox.records.folder_content import (
    FolderContent,
    FolderOptions,
    StageProgress,
    read_folder,
)
from stillbox.records.label_map import LabelMap
from stillbox.records.parallel import OrderedMap, ordered_map
from stillbox.records.pixels import Brightest
from stillbox.records.problems import ConversionLog, Problem


@dataclass(frozen=True, kw_only=True)
class ConversionView:
    """The content of a conversion, for a page that shows it."""

    title: str
    """Name of the format for people."""
    folder: str
    """The folder as it was given."""
    split: str
    """The origin of the split."""
    label_map: LabelMap
    items: Sequence[AnnotatedImage]
    """Boxes as they were read, before any is repaired or dropped."""
    splits: Sequence[str | None]
    """The set of each item, as `train`; None: the image is left out."""
    problems: Sequence[Problem]
    options: ConversionOptions
    brightest: Brightest
    """The brightest pixels of all items."""


PageWriter = Callable[[ConversionView, Path], None]
"""Writes the page of a conversion into a file."""


_SETS: tuple[Split, ...] = ("train", "val", "test")


def convert_folder(
    folder: Path | str,
    output: Path | str,
    reading: FolderOptions | None = None,
    *,
    options: ConversionOptions | None = None,
    engine: OrderedMap = ordered_map,
    on_image: StageProgress = lambda stage, done, total: None,
    write_page: PageWriter | None = None,
) -> ConvertedFolder:
    """Converts a folder of annotated images; the format is recognised by content.

    The split is the one that the folder states, or else a share of the images by a hash of their
    content and the seed. `output` appears when it is complete. An existing conversion is reused if
    neither the folder nor an option has changed.

    Args:
        options: `overwrite` replaces a conversion of something else.
        engine: reads the images; the result is the same with all.
        write_page: writes `conversion.html`, which shows what was read.

    Raises:
        UserError: as `read_folder`; or `output` holds something else.
    """
    output, reading = Path(output), reading or FolderOptions()
    options = options or ConversionOptions()
    data = DataFolder(folder, without=[output])
    key = conversion_key(data, _settings(reading, options))
    find_former = partial(former_conversion, output, key, overwrite=options.overwrite)
    if (former := find_former()) is not None:
        return former
    content = read_folder(data, reading, engine, on_image)
    with new_folder(output, find_former, written=written_files) as unfinished:
        reports = _convert_sets(content, unfinished, options, engine, on_image)
        converted = _converted(output, content, reports, options)
        if write_page is not None:
            write_page(_view(data, content, reports, options), unfinished / PAGE_NAME)
            converted = replace(converted, page=output / PAGE_NAME)
        write_conversion(unfinished, key, converted, reports, content.log)
    return converted


def _convert_sets(
    content: FolderContent,
    output: Path,
    options: ConversionOptions,
    engine: OrderedMap,
    on_image: StageProgress,
) -> dict[Split, ConversionReport]:
    """Writes all sets; returns the report of each."""
    reports = {
        name: convert(
            content.of_split(name),
            content.label_map,
            output,
            name,
            options=options,
            log=ConversionLog(content.log.bad_records, content.log.bad_boxes),
            on_image=partial(on_image, name),
            engine=engine,
            brightest=content.brightest,
            need_boxes=False,
        )
        for name in _SETS
        if name in content.splits
    }
    if not any(report.boxes_written for report in reports.values()):
        raise no_boxes(content.format.title, _problems(content, reports))
    return reports


def _settings(reading: FolderOptions, options: ConversionOptions) -> dict[str, object]:
    """Returns all that tells a conversion from others of the same files."""
    return {
        **_written_options(options),
        "workers": 0,  # part of the key of every conversion so far
        "validation_share": reading.validation_share,
        "seed": reading.seed,
        "format": reading.format,
        "label_map": reading.label_map.to_text() if reading.label_map else "",
        "box_numbers": reading.box_numbers,
        "policies": [reading.bad_records, reading.bad_boxes],
    }


def _written_options(options: ConversionOptions) -> dict[str, object]:
    """Returns the options that decide on the records; bits are part of the key if they are kept."""
    written = asdict(replace(options, overwrite=False))
    return {name: value for name, value in written.items() if name != "keep_bits" or value}


def _view(
    data: DataFolder,
    content: FolderContent,
    reports: Mapping[Split, ConversionReport],
    options: ConversionOptions,
) -> ConversionView:
    return ConversionView(
        title=content.format.title,
        folder=str(data.shown),
        split=content.origin,
        label_map=content.label_map,
        items=content.items,
        splits=content.splits,
        problems=_problems(content, reports),
        options=options,
        brightest=content.brightest,
    )


def _problems(content: FolderContent, reports: Mapping[Split, ConversionReport]) -> list[Problem]:
    return [*content.log, *(case for report in reports.values() for case in report.problems)]


def _converted(
    output: Path,
    content: FolderContent,
    reports: dict[Split, ConversionReport],
    options: ConversionOptions,
) -> ConvertedFolder:
    def pattern(name: Split) -> str:
        if name not in reports:
            return ""
        # `name@10` rather than a pattern: the folder's own name may have brackets.
        shards = f"@{len(reports[name].files)}"
        tfrecord = options.shard_names == "tfrecord"
        return str(output / (f"{name}{shards}.tfrecord" if tfrecord else f"{name}.record{shards}"))

    def images(name: Split) -> int:
        return reports[name].images_written if name in reports else 0

    problems = _problems(content, reports)
    return ConvertedFolder(
        format=content.format.name,
        title=content.format.title,
        train=pattern("train"),
        validation=pattern("val"),
        test=pattern("test"),
        label_map=output / LABEL_MAP_NAME,
        classes=tuple(item.name for item in content.label_map),
        class_counts=reports["train"].class_counts if "train" in reports else (),
        train_images=images("train"),
        validation_images=images("val"),
        test_images=images("test"),
        boxes=sum(report.boxes_written for report in reports.values()),
        without_boxes=tuple(name for name, report in reports.items() if not report.boxes_written),
        split=content.origin,
        problems=tuple(f"{problem}: {problem.examples[0]}" for problem in problems),
        report=output / REPORT_NAME,
        image_kind=common_kind(report.image_kind for report in reports.values()),
    )
