"""`stillbox tutorial`, and the converters of `object_detection/dataset_tools` with their flags.

`stillbox data convert` reads the same data with stillbox's own options.
"""

import argparse
import shlex
import sys
from collections.abc import Sequence
from pathlib import Path

from stillbox.cli.arguments import add_bool, warn
from stillbox.cli.original_flags import Flag, add_flags, explain_flags
from stillbox.errors import UserError, nearest
from stillbox.printing import count_text
from stillbox.records.annotations import AnnotatedImage, only_boxes
from stillbox.records.files import make_folder
from stillbox.records.formats.coco import read_coco
from stillbox.records.label_map import LabelMap
from stillbox.records.problems import ConversionLog
from stillbox.records.tfrecord import sharded_writer, tfrecord_writer
from stillbox_legacy.tutorials.dataset_tools import SETS, YEARS, read_pascal, read_pets
from stillbox_legacy.tutorials.writing import Written, write_records


def add_tutorial(parser: argparse.ArgumentParser) -> None:
    """`stillbox tutorial`: write a folder in which tutorials of the Object Detection API run.

    It takes the place of `models/research`: scripts under the names that people run, and modules
    for `import object_detection`. Put it on PYTHONPATH for the latter.
    """
    parser.add_argument("folder", type=Path, metavar="DIR", help="folder, such as models/research")
    add_bool(parser, "--overwrite", "write into a folder that is not empty")


def run_tutorial(arguments: argparse.Namespace) -> int:
    """Writes the folder and prints what to do with it."""
    from stillbox_legacy.tutorials.folder import write_folder

    folder: Path = arguments.folder
    count = write_folder(folder, overwrite=arguments.overwrite)
    test = folder / "object_detection" / "builders" / "model_builder_tf2_test.py"
    print(f"{folder}: {count} files in place of models/research")
    print(f"export PYTHONPATH={shlex.quote(str(folder.resolve()))}")
    print(f"python {shlex.quote(str(test))}")
    return 0


def add_model_builder_tf2_test(parser: argparse.ArgumentParser) -> None:
    """`model_builder_tf2_test.py`: checks the installation; exit code 1 if something is wrong."""


def run_model_builder_tf2_test(arguments: argparse.Namespace) -> int:
    """Runs the checks."""
    from stillbox.devices.setup import prepare_process
    from stillbox_legacy.tutorials.installation import check_installation

    prepare_process()
    return 0 if check_installation(sys.stderr) else 1


add_model_builder_tf1_test, run_model_builder_tf1_test = (
    add_model_builder_tf2_test,
    run_model_builder_tf2_test,
)


_MASKS = "masks are not read; leave it out"
_KEYPOINTS = "keypoints are not read; leave it out"

_PASCAL = (
    Flag("data_dir", "folder VOCdevkit", Path, required=True, metavar="DIR"),
    Flag("set", ", ".join(SETS), default="train", choices=SETS),
    Flag("annotations_dir", "folder of the XML files", default="Annotations", metavar="NAME"),
    Flag("year", ", ".join(YEARS), default="VOC2007", choices=YEARS),
    Flag("output_path", "file of the records, which is replaced", Path, required=True),
    Flag("label_map_path", "the classes", Path, Path("data/pascal_label_map.pbtxt"), "FILE"),
    Flag("ignore_difficult_instances", "leave difficult objects out", bool),
)


def add_create_pascal_tf_record(parser: argparse.ArgumentParser) -> None:
    """`create_pascal_tf_record.py`: a set of Pascal VOC to one file of records."""
    add_flags(parser, _PASCAL)


def run_create_pascal_tf_record(arguments: argparse.Namespace) -> int:
    """Writes the records."""
    explain_flags(arguments, _PASCAL)
    log = ConversionLog()
    label_map = LabelMap.from_file(arguments.label_map_path)
    items = read_pascal(
        arguments.data_dir, arguments.year, arguments.set, arguments.annotations_dir, label_map, log
    )
    if arguments.ignore_difficult_instances:
        items = [only_boxes(item, ~item.difficult) for item in items]
    make_folder(arguments.output_path.parent, below=arguments.output_path.parent)
    written = write_records(items, label_map, tfrecord_writer(arguments.output_path), log)
    _show(log, str(arguments.output_path), written)
    return 0


_PET_MASKS = (
    "whole bodies are masks, which are not read; leave it out, and boxes of the heads are written"
)
_PET = (
    Flag("data_dir", "folder with images and annotations", Path, required=True, metavar="DIR"),
    Flag("output_dir", "folder of the records", Path, required=True, metavar="DIR"),
    Flag("label_map_path", "the breeds", Path, Path("data/pet_label_map.pbtxt"), "FILE"),
    Flag("faces_only", "boxes of the heads (default: true)", bool, default=True),
    Flag("mask_type", note="no masks are written"),
    Flag("num_shards", "files of each set", default=10),
)


def add_create_pet_tf_record(parser: argparse.ArgumentParser) -> None:
    """`create_pet_tf_record.py`: the Oxford-IIIT Pets to two sets of records."""
    add_flags(parser, _PET)


def run_create_pet_tf_record(arguments: argparse.Namespace) -> int:
    """Writes `pet_faces_train.record-*` and `pet_faces_val.record-*`."""
    explain_flags(arguments, _PET)
    if not arguments.faces_only:
        raise UserError("--faces_only=false is not supported", fix=_PET_MASKS)
    log = ConversionLog()
    label_map = LabelMap.from_file(arguments.label_map_path)
    sets = read_pets(arguments.data_dir, label_map, log)
    for name, items in zip(("pet_faces_train", "pet_faces_val"), sets, strict=True):
        _write_set(items, label_map, arguments.output_dir, name, arguments.num_shards, log)
        log = ConversionLog()
    return 0


# Files of each set (`create_coco_tf_record.py`).
_COCO_SHARDS = {"train": 100, "val": 50, "testdev": 50}
_COCO = (
    Flag("train_image_dir", "images of train", Path, metavar="DIR"),
    Flag("val_image_dir", "images of val", Path, metavar="DIR"),
    Flag("test_image_dir", "images of testdev", Path, metavar="DIR"),
    Flag("train_annotations_file", "instances of train", Path, metavar="JSON"),
    Flag("val_annotations_file", "instances of val", Path, metavar="JSON"),
    Flag("testdev_annotations_file", "list of the images of testdev", Path, metavar="JSON"),
    Flag("output_dir", "folder of the records", Path, Path("/tmp"), "DIR"),
    Flag("include_masks", refusal=_MASKS),
    Flag("train_keypoint_annotations_file", refusal=_KEYPOINTS),
    Flag("val_keypoint_annotations_file", refusal=_KEYPOINTS),
    Flag("train_densepose_annotations_file", refusal="DensePose is not read; leave it out"),
    Flag("val_densepose_annotations_file", refusal="DensePose is not read; leave it out"),
    Flag("remove_non_person_annotations", "keep boxes of persons only", bool),
    Flag("remove_non_person_images", "keep images with persons only", bool),
)


def add_create_coco_tf_record(parser: argparse.ArgumentParser) -> None:
    """`create_coco_tf_record.py`: COCO to sets of records.

    Unlike the original it takes any of the three sets.
    """
    add_flags(parser, _COCO)


def run_create_coco_tf_record(arguments: argparse.Namespace) -> int:
    """Writes `coco_train.record-*`, `coco_val.record-*` and `coco_testdev.record-*`."""
    explain_flags(arguments, _COCO)
    given = []
    for name, images in (("train", "train"), ("val", "val"), ("testdev", "test")):
        pair = [getattr(arguments, f"{images}_image_dir")]
        pair.append(getattr(arguments, f"{name}_annotations_file"))
        if any(pair) and not all(pair):
            missing = f"--{images}_image_dir" if pair[1] else f"--{name}_annotations_file"
            raise UserError(f"{missing} is missing", fix=f"give both of {name}, or none")
        if all(pair):
            given.append((name, *pair))
    if not given:
        raise UserError(
            "no set is given", fix="give --train_image_dir and --train_annotations_file"
        )
    for name, images, annotations in given:
        log = ConversionLog()
        items, label_map = read_coco(annotations, images, log)
        items = _of_persons(items, label_map, arguments)
        # The list of testdev has images without boxes, which are all that it is for.
        _write_set(
            *(items, label_map, arguments.output_dir, f"coco_{name}", _COCO_SHARDS[name], log),
            keep_empty=True,
        )
    return 0


def _of_persons(
    items: Sequence[AnnotatedImage], label_map: LabelMap, arguments: argparse.Namespace
) -> list[AnnotatedImage]:
    if not (arguments.remove_non_person_annotations or arguments.remove_non_person_images):
        return list(items)
    person = label_map.find("person")
    if not person:
        sentence = "there is no category 'person'"
        fix = nearest("person", [item.name for item in label_map])
        raise UserError(sentence, where="--remove_non_person_annotations", fix=fix)
    if arguments.remove_non_person_images:
        items = [item for item in items if (item.class_ids == person).any()]
    if arguments.remove_non_person_annotations:
        items = [only_boxes(item, item.class_ids == person) for item in items]
    return list(items)


def _write_set(
    items: Sequence[AnnotatedImage],
    label_map: LabelMap,
    output: Path,
    name: str,
    shards: int,
    log: ConversionLog,
    *,
    keep_empty: bool = False,
) -> None:
    """Writes a set; it replaces a set of the same name, as the originals do."""
    writer = sharded_writer(output, name, shards, overwrite=True)
    written = write_records(items, label_map, writer, log, keep_empty=keep_empty)
    count = min(shards, written.images)
    _show(log, str(output / f"{name}.record-?????-of-{count:05d}"), written)
    if count < shards:
        there = "is" if count == 1 else "are"
        warn(f"there {there} {count_text(count, 'file')}, and not {shards}: no file is empty")


def _show(log: ConversionLog, records: str, written: Written) -> None:
    for line in log.lines():
        warn(line)
    print(f"{records}: {written}")
