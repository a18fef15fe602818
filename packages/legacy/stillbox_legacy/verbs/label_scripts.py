"""The helpers that tutorials of the Object Detection API ship, with their flags.

They turn the XML files of labelImg into tables and records, and divide folders of images.
"""

import argparse
from pathlib import Path

from stillbox.cli.arguments import add_option, note, warn
from stillbox.errors import UserError
from stillbox.printing import count_text
from stillbox.records.files import write_whole
from stillbox.records.formats.voc import read_voc
from stillbox.records.label_map import LabelMap
from stillbox.records.problems import ConversionLog
from stillbox.records.tfrecord import tfrecord_writer
from stillbox_legacy.tutorials.splits import partition, split
from stillbox_legacy.tutorials.tables import read_boxes, read_labels, read_table, write_table
from stillbox_legacy.tutorials.writing import write_records

# The names that tutorials give to the same option.
_LABELS = (
    *("-l", "--labels_path", "--label_map", "--label_map_path", "--labelmap", "--labels"),
    "--labelmap_path",
)
_IMAGES = ("-i", "--image_dir", "--img_path", "--image_path", "--images_dir", "--img_folder")
_OUTPUT = ("-o", "--output_path", "--output_file", "--output_tfrecord", "--output_dir", "--output")
_CSV = ("--csv_input", "--input_csv")
_SEED = "of the draw; the originals draw anew each time"


def add_generate_tfrecord(parser: argparse.ArgumentParser) -> None:
    """`generate_tfrecord.py`: labels of labelImg, or a table of them, to one file of records.

    With -x it reads XML files, with --csv_input what xml_to_csv.py writes.
    """
    parser.add_argument("-x", "--xml_dir", type=Path, metavar="DIR", help="folder of XML files")
    _add_table(parser)
    parser.add_argument("-c", "--csv_path", type=Path, metavar="CSV", help="table to write too")


def _add_table(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        *_CSV, dest="csv_input", type=Path, metavar="CSV", help="table with one box in a row"
    )
    about = "label map, or text with a class in each line"
    parser.add_argument(*_LABELS, dest="labels_path", type=Path, metavar="FILE", help=about)
    parser.add_argument(
        *("--label", "--label0"), dest="label", metavar="NAME", help="the only class, or the first"
    )
    for number in range(1, 10):
        parser.add_argument(f"--label{number}", metavar="NAME", help=argparse.SUPPRESS)
    about = "folder of the images (default: that of the XML files; for a table `images`)"
    parser.add_argument(*_IMAGES, dest="image_dir", type=Path, metavar="DIR", help=about)
    about = "file of the records, which is replaced"
    parser.add_argument(
        *_OUTPUT, dest="output_path", type=Path, required=True, metavar="RECORD", help=about
    )


def run_generate_tfrecord(arguments: argparse.Namespace) -> int:
    """Writes the records."""
    if (arguments.xml_dir is None) == (arguments.csv_input is None):
        sentence = (
            "there is nothing to read" if arguments.xml_dir is None else "there are two inputs"
        )
        fix = "give -x FOLDER or --csv_input TABLE"
        raise UserError(sentence, where="generate_tfrecord.py", fix=fix)
    if arguments.xml_dir is None:
        if arguments.csv_path is not None:
            note("--csv_path: the table is there already, at --csv_input")
        _table_to_records(arguments)
    else:
        _xml_to_records(arguments)
    return 0


def _xml_to_records(arguments: argparse.Namespace) -> None:
    log, output = ConversionLog(), arguments.output_path
    label_map = _labels(arguments)
    if label_map is None:
        raise UserError(
            "the classes are not given", where="--labels_path", fix="give a label map with -l"
        )
    table = read_table(arguments.xml_dir, ConversionLog())
    images = arguments.image_dir or arguments.xml_dir
    items, _ = read_voc(arguments.xml_dir, images, log, label_map=label_map)
    written = write_records(items, label_map, tfrecord_writer(_placed(output)), log)
    _show(log)
    print(f"{written}\nSuccessfully created the TFRecord file: {output}")
    if arguments.csv_path is not None:
        write_table(table.rows, arguments.csv_path)
        print(f"Successfully created the CSV file: {arguments.csv_path}")


def _table_to_records(arguments: argparse.Namespace) -> None:
    log, output = ConversionLog(), arguments.output_path
    given = _labels(arguments)
    images = arguments.image_dir or Path("images")
    table = read_boxes(arguments.csv_input, images, given)
    if given is None:
        names = ", ".join(item.name for item in table.label_map)
        note(
            f"classes by name, without ids: {names}; training finds the ids of its label map by "
            "these names, so that there is nothing to edit in this script"
        )
    writer = tfrecord_writer(_placed(output))
    # Ids of our own choice would contradict the label map of training.
    labels = given is not None
    written = write_records(table.images, table.label_map, writer, log, labels=labels)
    _show(log)
    print(f"{written}\nSuccessfully created the TFRecords: {output.absolute()}")


def _labels(arguments: argparse.Namespace) -> LabelMap | None:
    named = [arguments.label, *(getattr(arguments, f"label{number}") for number in range(1, 10))]
    named = [name for name in named if name]
    if arguments.labels_path is None:
        return LabelMap.from_names(named) if named else None
    if named:
        raise UserError("classes are given twice", where="--label", fix="leave --label out")
    return read_labels(arguments.labels_path)


def _placed(output: Path) -> Path:
    """Returns the path of a file in a folder that exists."""
    if not output.parent.is_dir():
        raise UserError(
            "there is no such folder", where=str(output.parent), fix=f"mkdir -p {output.parent}"
        )
    return output


def _show(log: ConversionLog) -> None:
    for line in log.lines():
        warn(line)


def add_create_tfrecord(parser: argparse.ArgumentParser) -> None:
    """`create_tfrecord.py`: a table of labels to one file of records, and a label map.

    It also writes `labelmap.pbtxt` into the working directory.
    """
    _add_table(parser)


def run_create_tfrecord(arguments: argparse.Namespace) -> int:
    """Writes the records, and `labelmap.pbtxt`."""
    if arguments.csv_input is None or arguments.labels_path is None:
        missing = "--labelmap" if arguments.csv_input else "--csv_input"
        raise UserError(f"{missing} is missing", fix="give a table and a file of class names")
    _table_to_records(arguments)
    text = read_labels(arguments.labels_path).to_text()
    write_whole(Path("labelmap.pbtxt"), text.encode())
    return 0


def add_xml_to_csv(parser: argparse.ArgumentParser) -> None:
    """`xml_to_csv.py`: XML files of labelImg to a table with one box in a row.

    Without options it reads the folders `train`, `test` and `validation` of `images`, or else
    `annotations`.
    """
    parser.add_argument(
        *("-i", "--inputDir", "--input_dir", "--input", "--xml_dir"),
        dest="input_dir",
        type=Path,
        metavar="DIR",
        help="folder of XML files",
    )
    parser.add_argument(
        *("-o", "--outputFile", "--output_file", "--output", "--csv_path"),
        dest="output_file",
        type=Path,
        metavar="CSV",
        help="the table (default: labels.csv in the folder)",
    )


def run_xml_to_csv(arguments: argparse.Namespace) -> int:
    """Writes the tables."""
    if arguments.input_dir is not None:
        default = arguments.input_dir / "labels.csv"
        return _write_tables([(arguments.input_dir, arguments.output_file or default)])
    if arguments.output_file is not None:
        raise UserError("-o needs a folder of XML files", where="-o", fix="give -i too")
    sets = _sets("train", "test", "validation")
    annotations = Path("annotations")
    if not sets and annotations.is_dir():
        # Of the data set for which the script was written.
        sets = [(annotations, Path("raccoon_labels.csv"))]
    return _write_tables(sets)


def add_create_csv(parser: argparse.ArgumentParser) -> None:
    """`create_csv.py`: XML files of `images/train` and `images/validation` to two tables."""


def run_create_csv(arguments: argparse.Namespace) -> int:
    """Writes the tables."""
    return _write_tables(_sets("train", "validation"))


def _sets(*names: str) -> list[tuple[Path, Path]]:
    """Returns the folders of images that exist, each with the file of its table."""
    images = Path("images")
    return [(images / n, images / f"{n}_labels.csv") for n in names if (images / n).is_dir()]


def _write_tables(sets: list[tuple[Path, Path]]) -> int:
    if not sets:
        fix = "change into the folder that has it, or give one to xml_to_csv.py with -i and -o"
        raise UserError("there is no folder images/train", where=str(Path.cwd()), fix=fix)
    log = ConversionLog()
    tables = [(read_table(folder, log), table) for folder, table in sets]
    _show(log)
    for table, path in tables:
        if not table.rows:
            raise UserError("no XML file has a box", where=str(path), fix="label the images first")
        write_table(table.rows, path)
        boxes, files = count_text(len(table.rows), "box"), count_text(table.files, "file")
        print(f"{path}: {boxes} of {files}")
        print("Successfully converted xml to csv.")
    return 0


def add_partition_dataset(parser: argparse.ArgumentParser) -> None:
    """`partition_dataset.py`: copies labelled images into `train` and `test`."""
    parser.add_argument(
        *("-i", "--imageDir"), dest="images", type=Path, default=Path(), help="folder of images"
    )
    about = "folder of `train` and `test` (default: that of the images)"
    parser.add_argument(*("-o", "--outputDir"), dest="output", type=Path, help=about)
    parser.add_argument(
        *("-r", "--ratio"), type=float, default=0.1, help="share for tests (default: 0.1)"
    )
    parser.add_argument(
        *("-x", "--xml"), action="store_true", help="copy the XML file of each image"
    )
    add_option(parser, "--seed", 0, _SEED)


def run_partition_dataset(arguments: argparse.Namespace) -> int:
    """Copies the files."""
    output = arguments.output or arguments.images
    parts = partition(
        arguments.images, output, ratio=arguments.ratio, with_xml=arguments.xml, seed=arguments.seed
    )
    for part in ("train", "test"):
        print(f"{output / part}: {count_text(len(parts[part]), 'image')}")
    return 0


_TRAIN, _VALIDATION = 0.8, 0.1


def add_train_val_test_split(parser: argparse.ArgumentParser) -> None:
    """`train_val_test_split.py`: moves labelled images to `train`, `validation` and `test`."""
    about = (
        "folder of all images, beside which the others are (default: /content/images/all, "
        "or images/all)"
    )
    parser.add_argument(
        *("--image_path", "--datapath", "-i"), dest="images", type=Path, metavar="DIR", help=about
    )
    add_option(parser, "--train_percent", _TRAIN, "share for training", "SHARE")
    add_option(parser, "--val_percent", _VALIDATION, "share for validation", "SHARE")
    add_option(parser, "--seed", 0, _SEED)


def run_train_val_test_split(arguments: argparse.Namespace) -> int:
    """Moves the files."""
    images = arguments.images
    if images is None:
        content = Path("/content/images/all")
        images = content if content.is_dir() else Path("images/all")
    train, validation = arguments.train_percent, arguments.val_percent
    if min(train, validation) < 0 or train + validation > 1:
        fix = "their sum is 1 at most; the rest is for tests"
        raise UserError(f"{train} and {validation} are no shares", where="--train_percent", fix=fix)
    shares = {"train": train, "validation": validation, "test": 0.0}
    parts = split(images, shares=shares, seed=arguments.seed)
    print(f"Total images: {sum(map(len, parts.values()))}")
    for name, names in parts.items():
        print(f"Files moving to {name}: {len(names)}")
    return 0
