"""CSV with one box in a row: `filename,width,height,class,xmin,ymin,xmax,ymax`, in pixels."""

from pathlib import Path

from stillbox.errors import UserError
from stillbox.records.data_folder import DataFolder, folder_split, name_split
from stillbox.records.formats.build import Box, labelled
from stillbox.records.formats.registry import FolderContents, register
from stillbox.records.formats.sniff import csv_header
from stillbox.records.guarded import number, parse_int, read_csv
from stillbox.records.problems import ConversionLog

_SIDES = ("ymin", "xmin", "ymax", "xmax")


def _is_voc_csv(file: Path) -> bool:
    header = {name.strip().lower() for name in csv_header(file)}
    return header >= {"filename", "class", *_SIDES}


@register(
    "voc_csv",
    "CSV with the columns filename, class, xmin, ymin, xmax, ymax",
    lambda folder: [f for f in folder.with_suffix(".csv") if folder.memoized(_is_voc_csv, f)],
)
def read_voc_csv(folder: DataFolder, files: list[Path], log: ConversionLog) -> FolderContents:
    """Reads CSV files.

    A file with the rows of others, as `labels.csv` beside `train_labels.csv`, is passed over.

    Raises:
        UserError: a row is not like the header, or names a file outside the folder.
    """
    reading = FolderContents()
    parts = [file for file in files if name_split(file.relative_to(folder.root))]
    for file in files:
        if parts and file not in parts:
            log.add("CSV file of no split", folder.relative(file), action="passed over")
            continue
        split = name_split(file.relative_to(folder.root))
        rows: dict[str, list[tuple[str, Box, tuple[int, int]]]] = {}
        for _, row in read_csv(file):
            plain = {key.strip().lower(): value.strip() for key, value in row.items()}
            ymin, xmin, ymax, xmax = (number(plain[side]) for side in _SIDES)
            size = (parse_int(plain.get("height")), parse_int(plain.get("width")))
            box = (plain["class"], (ymin, xmin, ymax, xmax), size)
            rows.setdefault(plain["filename"], []).append(box)
        for name, boxes in rows.items():
            path = folder.image(name, file, file.parent, log)
            if path is not None:
                where = f"{folder.relative(file)}: {name}"
                own = split or folder_split(path.relative_to(folder.root))
                names = [label for label, _, _ in boxes]
                sides = [box for _, box, _ in boxes]
                one = labelled(path, where, names, sides, size=boxes[0][2], split=own)
                reading.images.append(one)
    if not reading.images:
        raise UserError("the CSV has no row", where=str(folder.shown / folder.relative(files[0])))
    return reading
