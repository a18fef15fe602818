"""Which images train and which validate, and whether the same image does both."""

import hashlib
from collections import Counter
from collections.abc import Sequence

from stillbox.errors import UserError
from stillbox.printing import count_text
from stillbox.records.annotated import AnnotatedImage
from stillbox.records.data_folder import Split
from stillbox.records.duplicates import Fingerprints, identical, near_identical
from stillbox.records.problems import ProblemLog

_MOST_IN_A_GROUP = 0.5
"""Share of the images that may be near-identical before each is taken by itself."""


def assign_splits(
    items: Sequence[AnnotatedImage],
    stated: Sequence[Split | None],
    prints: Fingerprints,
    share: float,
    seed: int,
    log: ProblemLog,
) -> tuple[list[Split | None], str]:
    """Returns the split of each image, None for one in no split, and the origin in words.

    The split that the data set states counts; without `val`, `test` takes its place. If it states
    neither, a share of all images validates. Images to score are never trained on.

    Raises:
        UserError: see `own_split`.
    """
    names = set(stated) - {None}
    if names - {"train"}:
        if "val" not in names:
            stated = ["val" if split == "test" else split for split in stated]
        only = "" if "train" in names else ": images to score on, none to train on"
        return list(stated), f"stated by the data set{only}"
    origin = f"{share:.0%} of the images validate, chosen by a hash of their content, seed {seed}"
    if names:
        origin = f"the data set states no image to score on; {origin}"
    return list(own_split(items, prints, share, seed, log)), origin


def own_split(
    items: Sequence[AnnotatedImage],
    prints: Fingerprints,
    share: float,
    seed: int,
    log: ProblemLog,
) -> list[Split]:
    """Returns the split of each image, by a hash of its content.

    An image keeps its side when others are added. Near-identical images are on one side.

    Raises:
        UserError: there are not two images to distribute.
    """
    keys = {int(row): digest for row, digest in zip(prints.rows, prints.digests, strict=True)}
    for group in _groups(prints, log):
        least = min(prints.digests[row] for row in group)
        keys |= {int(prints.rows[row]): least for row in group}
    if len(set(keys.values())) < 2 <= len(keys):
        where, action = f"{len(keys):,} of {len(keys):,}", "split by name: scores will be too high"
        log.add("all images are near-identical", where, action=action)
        keys = {row: items[row].where.encode() for row in keys}
    # What cannot be decoded is not written either.
    places = [_place(keys.get(row, item.filename.encode()), seed) for row, item in enumerate(items)]
    ordered = sorted({places[row] for row in keys})
    if len(ordered) < 2:
        raise UserError(
            f"{count_text(len(ordered), 'image')} cannot be split into training and validation",
            fix="add images, or state a split by folders named train and val",
        )
    # At least one on each side, even of few.
    limit = min(max(share, ordered[0]), ordered[-2])
    return ["val" if place <= limit else "train" for place in places]


def _groups(prints: Fingerprints, log: ProblemLog) -> list[list[int]]:
    groups = near_identical(prints)
    greatest = max(map(len, groups), default=0)
    if greatest <= max(2, _MOST_IN_A_GROUP * len(prints.digests)):
        return groups
    action = "split image by image: scores will be too high"
    log.add(
        "most images are near-identical", f"{greatest:,} of {len(prints.digests):,}", action=action
    )
    return identical(prints)


def _place(key: bytes, seed: int) -> float:
    """Returns a number in [0, 1) that depends on key and seed."""
    digest = hashlib.blake2b(b"%d " % seed + key, digest_size=8).digest()
    return int.from_bytes(digest, "little") / 2**64


def report_duplicates(
    names: Sequence[str], splits: Sequence[Split | None], prints: Fingerprints, log: ProblemLog
) -> None:
    """Reports images that occur twice, within a split and in two.

    `names` and `splits` are those of all images.
    """
    same = {row: group[0] for group in identical(prints) for row in group[1:]}
    for group in near_identical(prints):
        rows = [int(prints.rows[row]) for row in group]
        for place, row in zip(group[1:], rows[1:], strict=True):
            kind = "identical" if place in same else "near-identical"
            twin = same.get(place, group[0])
            detail = f"as {names[int(prints.rows[twin])]}"
            log.add(f"{kind} images", names[row], detail, action="kept")
        _report_leak(rows, names, splits, log)


def _report_leak(
    rows: Sequence[int], names: Sequence[str], splits: Sequence[Split | None], log: ProblemLog
) -> None:
    trained = next((row for row in rows if splits[row] == "train"), None)
    if trained is None:
        return
    action = "kept: scores will be too high"
    for row in rows:
        if splits[row] in ("val", "test"):
            reason = f"image of train is in {splits[row]} too, or nearly so"
            log.add(reason, names[row], f"as {names[trained]}", action=action)


def report_similar_classes(names: Sequence[str], log: ProblemLog) -> None:
    """Reports classes that differ only by case or spaces."""
    plain = Counter("".join(name.split()).casefold() for name in names)
    for word, count in plain.items():
        if count > 1:
            same = [name for name in names if "".join(name.split()).casefold() == word]
            shown = ", ".join(map(repr, same))
            reason = "classes that differ only by case or spaces"
            log.add(reason, shown, action="kept as different classes")
