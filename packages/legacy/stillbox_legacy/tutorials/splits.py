"""Divides a folder of labelled images into folders for training and for tests.

The originals draw anew in each run. Here the draw depends on the names of the images and a seed, so
that a second run, or one after a run that was stopped, ends in the same folders.
Source: `partition_dataset.py` of the tutorial of L. Vladimirov, `train_val_test_split.py` of
github.com/EdjeElectronics (Apache-2.0).
"""

import math
import random
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from stillbox.errors import UserError
from stillbox.printing import count_text
from stillbox.records.files import make_folder, write_whole
from stillbox.records.image_files import IMAGE_SUFFIXES, MAX_IMAGE_BYTES
from stillbox.untrusted import read_untrusted


def image_names(folder: Path) -> list[str]:
    """Returns the names of the images directly in a folder, sorted.

    Raises:
        UserError: there is no such folder.
    """
    if not folder.is_dir():
        raise UserError(
            "there is no such folder", where=str(folder), fix="give the folder of the images"
        )
    files = (file for file in folder.iterdir() if file.suffix.lower() in IMAGE_SUFFIXES)
    return sorted(file.name for file in files if file.is_file())


def draw(names: Sequence[str], counts: Mapping[str, int], seed: int) -> dict[str, list[str]]:
    """Returns the names of each part, drawn at random.

    Args:
        names: all of them.
        counts: by part, how many it gets; the last gets the rest.
        seed: of the draw.
    """
    left = list(names)
    random.Random(seed).shuffle(left)
    *parts, last = counts
    drawn = {}
    for part in parts:
        drawn[part], left = sorted(left[: counts[part]]), left[counts[part] :]
    return drawn | {last: sorted(left)}


def partition(
    images: Path, output: Path, *, ratio: float, with_xml: bool, seed: int
) -> dict[str, list[str]]:
    """Copies the images of a folder, and their XML files, into `output/train` and `output/test`.

    Args:
        ratio: share of the images that are for tests, rounded up.
        with_xml: copy the XML file of each image.
        seed: of the draw.

    Raises:
        UserError: a folder or XML file is absent, or `train` or `test` has images of another draw.
    """
    if not 0 <= ratio <= 1:
        raise UserError(f"{ratio} is no share", where="--ratio", fix="give 0 to 1, such as 0.1")
    names = image_names(images)
    if not names:
        raise UserError("the folder has no image", where=str(images), fix="see --imageDir")
    parts = draw(names, {"test": math.ceil(ratio * len(names)), "train": 0}, seed)
    if with_xml:
        _check_xml(images, names)
    for part, drawn in parts.items():
        folder = output / part
        others = set(image_names(folder)) - set(drawn) if folder.is_dir() else set()
        if others:
            raise UserError(
                f"the folder has images of another division, such as {min(others)}",
                where=str(folder),
                fix="move them away, or give another --outputDir",
            )
    for part, drawn in parts.items():
        for name in drawn:
            for file in _files(name, with_xml):
                content = read_untrusted(images / file, most=MAX_IMAGE_BYTES)
                write_whole(output / part / file, content)
    return parts


def split(images: Path, *, shares: Mapping[str, float], seed: int) -> dict[str, list[str]]:
    """Moves images and their XML files into folders beside theirs.

    Images that a stopped run has moved already count as its part.

    Args:
        images: the folder.
        shares: of the images for each folder, by its name; the last gets the rest.
        seed: of the draw.

    Raises:
        UserError: a folder or XML file is absent, or a file is there already.
    """
    here = image_names(images)
    folders = {name: make_folder(images.parent / name, below=images.parent) for name in shares}
    moved = [name for folder in folders.values() for name in image_names(folder)]
    if not here and not moved:
        raise UserError("the folder has no image", where=str(images), fix="put all images there")
    everything = sorted({*here, *moved})
    counts = {name: int(len(everything) * share) for name, share in shares.items()}
    parts = draw(everything, counts, seed)
    _check_xml(images, here)
    for part, names in parts.items():
        for name in sorted(set(names) & set(here)):
            # The image last: one that is still here has both files here or one of each place.
            for file in reversed(_files(name, with_xml=(images / _xml(name)).is_file())):
                target = folders[part] / file
                if target.exists():
                    raise UserError(
                        "the file exists", where=str(target), fix=f"remove it, or {images / file}"
                    )
                (images / file).rename(target)
    return parts


def _files(name: str, with_xml: bool) -> list[str]:
    return [name, _xml(name)] if with_xml else [name]


def _xml(name: str) -> str:
    return f"{Path(name).stem}.xml"


def _check_xml(folder: Path, names: Iterable[str]) -> None:
    missing = [name for name in names if not (folder / _xml(name)).is_file()]
    # A stopped run may have moved the XML of one image.
    if len(missing) > 1 or (missing and not any(folder.parent.glob(f"*/{_xml(missing[0])}"))):
        have = "has" if len(missing) == 1 else "have"
        raise UserError(
            f"{count_text(len(missing), 'image')} {have} no XML file of their name, such as "
            f"{missing[0]}",
            where=str(folder),
            fix="label them with labelImg, as Pascal VOC, or move them away",
        )
