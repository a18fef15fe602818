"""A finished conversion: what it holds, and when it is used again."""

import hashlib
import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from stillbox.errors import UserError
from stillbox.image_kind import RGB_8, ImageKind
from stillbox.printing import json_text
from stillbox.records.class_counts import ClassCount
from stillbox.records.conversion import ConversionReport
from stillbox.records.data_folder import FINISHED, DataFolder, Split
from stillbox.records.files import write_whole
from stillbox.records.problems import ConversionLog
from stillbox.references import Parameter
from stillbox.untrusted import read_untrusted

# Names of classes take most of it.
_MOST_BYTES = 2**24

REPORT_NAME, PAGE_NAME = "conversion.txt", "conversion.html"
_VERSION = "stillbox conversion 5"


@dataclass(frozen=True, kw_only=True)
class ConvertedFolder:
    """A data set that is ready to train on."""

    format: str
    """Name of the format, such as `yolo`."""
    title: str
    """Name of the format for people."""
    train: str
    """The records as in `data.train.paths`, such as `out/train.record@1`."""
    validation: str
    test: str = ""
    """Empty unless the data set has a third part."""
    label_map: Path
    classes: tuple[str, ...]
    """In the order of their ids."""
    class_counts: tuple[ClassCount, ...]
    """Of the images to train on; empty: there are none."""
    train_images: int
    validation_images: int
    test_images: int = 0
    boxes: int
    """Boxes of all sets."""
    without_boxes: tuple[str, ...] = ()
    """The sets without a usable box, as `val`."""
    split: str
    """The origin of the split."""
    problems: tuple[str, ...]
    """A line for each kind of problem, with its first case."""
    report: Path
    """All of this as text, with the report of each set."""
    image_kind: ImageKind = RGB_8
    """Channels and bits of all images."""
    page: Path | None = None
    """A page with the problems and with pictures; None if no writer was given."""
    reused: bool = False
    """The records existed already, and the folder has not changed since."""


def conversion_key(data: DataFolder, settings: dict[str, object]) -> str:
    """Returns a hash of the settings and of name, size and time of every file."""
    digest = hashlib.sha256(json.dumps([_VERSION, settings], sort_keys=True).encode())
    for file in data.files:
        state = file.stat()
        line = f"{file.relative_to(data.root)}\0{state.st_size}\0{state.st_mtime_ns}\n"
        digest.update(line.encode(errors="surrogateescape"))
    return digest.hexdigest()


def former_conversion(output: Path, key: str, *, overwrite: bool) -> ConvertedFolder | None:
    """Returns the conversion in the output folder if it can be used again.

    Raises:
        UserError: the folder holds something else that is not to be replaced.
    """
    if not output.exists() or (output.is_dir() and not any(output.iterdir())):
        return None
    try:
        stored = json.loads(read_untrusted(output / FINISHED, most=_MOST_BYTES))
        files = {FINISHED, *stored["files"]}
        there = {entry.name for entry in output.iterdir()}
        if stored["key"] == key and files <= there:
            return _reused(output, stored["result"])
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        problem = "the output folder holds files that are no conversion"
        fix = f"choose another {Parameter('output')}, or empty the folder"
        raise UserError(problem, where=str(output), fix=fix) from error
    if not overwrite:
        problem = "the output folder holds a conversion of other data or with other options"
        fix = f"replace it with {Parameter('overwrite')}, or choose another {Parameter('output')}"
        raise UserError(problem, where=str(output), fix=fix)
    if foreign := sorted(there - files):
        problem = f"the output folder holds a file that is not the conversion's: {foreign[0]}"
        raise UserError(
            problem, where=str(output), fix=f"move it away, or choose another {Parameter('output')}"
        )
    return None


def image_kind_of(output: Path) -> ImageKind:
    """Returns channels and bits of the images of a finished conversion; RGB if there is none."""
    if not (output / FINISHED).is_file():
        return RGB_8
    stored = json.loads(read_untrusted(output / FINISHED, most=_MOST_BYTES))
    return ImageKind(*stored["result"].get("image_kind", RGB_8))


def written_files(output: Path) -> set[str]:
    """Returns the files of a finished conversion; nothing if there is none."""
    if not (output / FINISHED).is_file():
        return set()
    stored = json.loads(read_untrusted(output / FINISHED, most=_MOST_BYTES))
    return {FINISHED, *map(str, stored["files"])}


def _reused(output: Path, result: dict[str, Any]) -> ConvertedFolder:
    tuples = {
        name: tuple(map(str, result[name])) for name in ("classes", "problems", "without_boxes")
    }
    counts = tuple(ClassCount(**count) for count in result["class_counts"])
    paths = {name: output / Path(result[name]).name for name in ("label_map", "report")}
    page = output / PAGE_NAME if result["page"] else None
    sets = {
        name: str(output / Path(result[name]).name) if result[name] else ""
        for name in ("train", "validation", "test")
    }
    kind = ImageKind(*result.get("image_kind", RGB_8))
    others = {"class_counts": counts, "page": page, "image_kind": kind, "reused": True}
    return ConvertedFolder(**(result | tuples | paths | sets | others))


def write_conversion(
    unfinished: Path,
    key: str,
    converted: ConvertedFolder,
    reports: dict[Split, ConversionReport],
    log: ConversionLog,
) -> None:
    """Writes the report and `conversion.json` into the folder before it gets its name."""
    lines = [f"Format: {converted.title}", f"Split: {converted.split}"]
    lines += ["Special or wrong in the annotations"] if list(log) else []
    for problem in log:
        lines += [f"  {problem}", *(f"    {case}" for case in problem.examples)]
    text = "\n".join(lines) + "\n" + "".join(report.to_text() for report in reports.values())
    write_whole(unfinished / REPORT_NAME, text.encode())
    content = {
        "key": key,
        "files": sorted(entry.name for entry in unfinished.iterdir()),
        "result": asdict(converted),
        "problems": [asdict(problem) for problem in log],
    }
    write_whole(unfinished / FINISHED, f"{json_text(content)}\n".encode())
