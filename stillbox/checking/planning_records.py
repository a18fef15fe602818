"""The records of a folder that a run is planned for.

A folder is converted, or has finished records with their label map.
"""

import hashlib
import re
import shlex
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from stillbox.checking.data_page import write_conversion_page
from stillbox.checkpoints.files import read_manifest, write_manifest
from stillbox.errors import UserError
from stillbox.experiment.imports import import_entry_points
from stillbox.experiment.schema import Experiment
from stillbox.image_kind import ImageKind
from stillbox.printing import count_text, printable_line
from stillbox.records.conversion import LABEL_MAP_NAME, ConversionOptions
from stillbox.records.converted import image_kind_of
from stillbox.records.data_folder import DataFolder
from stillbox.records.files import write_whole
from stillbox.records.folder import convert_folder
from stillbox.records.label_map import SHAPE, LabelMap, LabelMapItem
from stillbox.records.problems import BadRecordError
from stillbox.records.source import ExampleSource
from stillbox.records.tf_example import class_texts
from stillbox.records.tfrecord import RecordError
from stillbox.references import Command, Parameter, Setting, references
from stillbox.training.start import another_directory

SOURCE = "data_source.json"
"""The file of a model directory with a checksum of the names and sizes of its training data."""
_REMOVE = "remove the file: the data are then not compared"
_RECORDS = re.compile(r"\.(tf)?records?(-\d+-of-\d+)?$|[.-]tfrecords?-")
_TRAIN, _VALIDATION = re.compile(r"train", re.I), re.compile(r"val|test|eval|dev", re.I)


@dataclass(frozen=True)
class FolderRecords:
    """Records of training and validation with their label map."""

    train: tuple[str, ...]
    validation: tuple[str, ...]
    label_map: str
    said: tuple[str, ...]
    """What was done, a line each."""
    image_kind: ImageKind
    """Channels and bits of all images."""


def records_of(
    folder: Path,
    output: Path,
    on_image: Callable[[str, int, int], None] = lambda stage, done, total: None,
    *,
    keep_bits: bool = False,
) -> FolderRecords:
    """Returns the records of a folder of annotated images or of finished records.

    Args:
        folder: in any format that `stillbox data convert` reads.
        output: folder of the records; a finished conversion of the same files is used again.
        on_image: progress of the conversion.
        keep_bits: see `ConversionOptions`.

    Raises:
        UserError: the folder has no known format, no training records, or records without a label
            map and without class texts.
    """
    finished = _finished(folder, output)
    if finished is not None:
        return finished
    import_entry_points("stillbox.parts")
    try:
        # What an earlier attempt converted of another state of the folder is replaced.
        options = ConversionOptions(keep_bits=keep_bits, overwrite=True)
        converted = convert_folder(
            folder, output, options=options, on_image=on_image, write_page=write_conversion_page
        )
    except UserError as error:
        raise _without_flags(error, folder) from error
    if not converted.train:
        raise UserError(
            f"the data set states {count_text(converted.validation_images, 'image')} to score on "
            "and none to train on",
            where=str(folder),
            fix="give the folder that has its images to train on as well",
        )
    if "train" in converted.without_boxes:
        raise UserError(
            "the images to train on have no box that can be used",
            where=str(folder),
            fix=f"see what was found in {converted.report}",
        )
    how = "used again, converted before from" if converted.reused else "converted from"
    lines = [
        f"{folder} is {converted.title}: {converted.train_images:,} training and "
        f"{count_text(converted.validation_images, 'validation image')}, "
        f"{count_text(converted.boxes, 'box')}",
        f"the split: {converted.split}",
        f"records: {output}, {how} {folder}; report: {converted.report}",
        *converted.problems,
        *([f"look at {converted.page}: images with their boxes"] if converted.page else []),
    ]
    lines = [f"{name} has no box that can be used" for name in converted.without_boxes] + lines
    return FolderRecords(
        (converted.train,),
        (converted.validation,) if converted.validation else (),
        str(converted.label_map),
        tuple(lines),
        converted.image_kind,
    )


@dataclass(frozen=True)
class _Source:
    """The files of a data set: names and sizes, wherever the folder is."""

    files: int
    bytes: int
    digest: str

    def __str__(self) -> str:
        return f"{count_text(self.files, 'file')} of {count_text(self.bytes, 'byte')}"


def to_score(
    experiment: Experiment,
    data: Path,
    output: Path,
    on_image: Callable[[str, int, int], None],
    say: Callable[[str], None],
    *,
    all_images: bool = False,
) -> Experiment:
    """Returns the experiment with the images of a folder as its evaluation set.

    Args:
        data: as the folder of `records_of`; likewise `output` and `on_image`.
        say: called with a line for each thing that was done.
        all_images: images to train on too; otherwise only where there are no others.
    """
    records = records_of(data, output, on_image)
    for line in records.said:
        say(line)
    alone = records.validation or records.train
    scored = replace(
        experiment.data.evaluation,
        paths=(*records.train, *records.validation) if all_images else alone,
        label_map=records.label_map,
        annotations="",
    )
    return replace(experiment, data=replace(experiment.data, evaluation=scored))


def write_source(folder: Path, model_directory: Path) -> None:
    """Writes which files a run is trained on into its model directory."""
    source = asdict(_source(folder, model_directory))
    write_whole(model_directory / SOURCE, write_manifest(source))


def refuse_other_source(folder: Path, model_directory: Path) -> None:
    """Refuses a folder with other files than the run started with, if the run recorded them.

    Raises:
        UserError: files were added, removed, renamed or changed in size.
    """
    path = model_directory / SOURCE
    if not path.is_file():
        return
    stored = read_manifest(path, problem="it does not say what the run was trained on", fix=_REMOVE)
    now = _source(folder, model_directory)
    if stored.get("digest") == now.digest:
        return
    try:
        before = str(_Source(**stored))
    except (TypeError, ValueError) as error:
        raise UserError("the file is damaged", where=str(path), fix=_REMOVE) from error
    changed = f"{before} -> {now}" if before != str(now) else f"{now}, with other names or sizes"
    raise UserError(
        f"the model directory holds a run on other data: {changed}",
        where=str(folder),
        fix=f"give the folder that it was begun with, leave {Parameter('data')} out to resume the "
        "run as it is, " + another_directory(model_directory),
    )


def _source(folder: Path, model_directory: Path) -> _Source:
    data = DataFolder(folder, without=[model_directory])
    digest, total = hashlib.sha256(), 0
    for file in data.files:
        size = file.stat().st_size
        line = f"{file.relative_to(data.root).as_posix()}\0{size}\n"
        digest.update(line.encode(errors="surrogateescape"))
        total += size
    return _Source(len(data.files), total, digest.hexdigest())


def _without_flags(error: UserError, folder: Path) -> UserError:
    """Returns an error of the conversion with a remedy that works in training."""
    # The output folder of the conversion lies in the model directory.
    way = error.fix
    if any(isinstance(part, Parameter) for part in references(way)):
        command = Command("data convert", shlex.quote(str(folder)), output="RECORDS")
        way = f"convert the folder first, {command} with: {way}; then train on RECORDS"
    return UserError(error.what, where=error.where, fix=way)


def _finished(folder: Path, output: Path) -> FolderRecords | None:
    """Returns the records in a folder; None if there are none.

    A missing label map is made from the class texts and written into the output folder.
    """
    if not folder.is_dir():
        return None
    names = sorted(path.name for path in folder.iterdir() if _RECORDS.search(path.name))
    if not names:
        return None
    maps = sorted(folder.glob("*.pbtxt"))
    if len(maps) > 1:
        problem = f"the folder holds records and {len(maps)} label maps (*.pbtxt)"
        fix = (
            f"leave one in it, or give CONFIG and {Setting('data.train.paths', '...')} instead of "
            f"{Parameter('data')}"
        )
        raise UserError(problem, where=str(folder), fix=fix)
    validation = [name for name in names if _VALIDATION.search(name)]
    train = [name for name in names if _TRAIN.search(name) and name not in validation]
    if not train and len(validation) < len(names):
        train = [name for name in names if name not in validation]
    if not train:
        shown = printable_line(", ".join(names[:3]))
        problem = f"no file of the folder is named as records of training: {shown}"
        fix = "rename them, such as train.record and val.record"
        raise UserError(problem, where=str(folder), fix=fix)
    said = f"{folder} holds records: {', '.join(train[:2])}{' ...' * (len(train) > 2)} to train on"
    score = f"{', '.join(validation[:2]) or 'nothing'}{' ...' * (len(validation) > 2)} to score on"
    paths = [tuple(str(folder / name) for name in part) for part in (train, validation)]
    lines = [printable_line(f"{said}, {score}")]
    if not maps:
        label_map = _map_of_texts(folder, paths[0] + paths[1])
        maps = [output / LABEL_MAP_NAME]
        output.mkdir(parents=True, exist_ok=True)
        write_whole(maps[0], label_map.to_text().encode())
        lines.append(
            f"label map: {maps[0]}, {count_text(len(label_map), 'class')} of the records' own texts"
        )
    return FolderRecords(paths[0], paths[1], str(maps[0]), tuple(lines), image_kind_of(folder))


def _map_of_texts(folder: Path, paths: Sequence[str]) -> LabelMap:
    """Returns the classes that the records name, with their labels as ids if these are valid."""
    source = ExampleSource(paths, bad_records="drop")
    labels: dict[str, set[int]] = {}
    for file in source.files:
        for record in range(len(file)):
            with suppress(RecordError, BadRecordError):  # said when the record is loaded
                for text, label in class_texts(file.read(record)):
                    labels.setdefault(text, set()).add(label)
    ids = {
        text: min(numbers)
        for text, numbers in labels.items()
        if len(numbers) == 1 and min(numbers) > 0
    }
    if not labels:
        raise UserError(
            "the folder holds records and no label map (*.pbtxt), and the records have no class "
            "texts that it could be made of",
            where=str(folder),
            fix=f"put label_map.pbtxt into it: {SHAPE}, with the ids of image/object/class/label",
        )
    if len(set(ids.values())) < len(labels):
        return LabelMap.from_names(sorted(labels))
    return LabelMap(tuple(LabelMapItem(class_id, text) for text, class_id in ids.items()))
