"""Assigns images to training and validation, and finds images that are in both.

Identical images have the same content hash. Near-identical ones are at most 32 of 256 bits of the
difference hash apart and correlate above 0.9 as thumbnails of 16 x 16. Re-encoded, halved,
brightened and squeezed copies of photographs are at most 26 bits apart, different photographs at
least 60. Crops are different images. Source: N. Krawetz, "Kind of Like That", 2013 (difference
hash).
"""

import hashlib
import io
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from stillbox.errors import UserError
from stillbox.printing import count_text
from stillbox.records.annotations import AnnotatedImage
from stillbox.records.data_folder import Split
from stillbox.records.image_files import in_eight_bits, inspect_image, open_image
from stillbox.records.parallel import ordered_map
from stillbox.records.problems import BadRecordError, ProblemLog

_SIDE = 16
_BITS = 32
_CORRELATION = 0.9
_EXACT_BELOW = 50_000
"""Images up to which no pair within `_BITS` is missed, but for those that share flat bands only."""
_MOST_FLAT = 2000
"""Images whose flat band is compared, each with each."""


@dataclass(frozen=True)
class Fingerprints:
    """Fingerprints of N images that can be decoded."""

    rows: NDArray[np.int64]
    """`[N]`, their places in the list of all images."""
    digests: list[bytes]
    """`[N]`, of the file's content."""
    hashes: NDArray[np.uint64]
    """`[N, 4]`, difference hash of 256 bits."""
    thumbnails: NDArray[np.float32]
    """`[N, 256]`, gray, of mean 0 and norm 1."""

    @cached_property
    def near_identical(self) -> list[list[int]]:
        """Groups of two or more rows that are near-identical, or identical.

        A row belongs to a group if it is near-identical to any of its rows, as frames of a video
        are.
        """
        return _near_identical(self)


def fingerprints(
    items: Sequence[AnnotatedImage],
    *,
    workers: int = 0,
    on_image: Callable[[int, int], None] = lambda done, total: None,
) -> Fingerprints:
    """Reads the images; those that cannot be decoded are left out."""
    rows, found = [], []
    for row, one in enumerate(ordered_map(_fingerprint, items, workers)):
        on_image(row + 1, len(items))
        if one is not None:
            rows.append(row)
            found.append(one)
    return Fingerprints(
        np.array(rows, np.int64),
        [digest for digest, _, _ in found],
        np.array([hashed for _, hashed, _ in found], np.uint64).reshape(-1, 4),
        np.array([small for _, _, small in found], np.float32).reshape(-1, _SIDE * _SIDE),
    )


def _fingerprint(item: AnnotatedImage) -> tuple[bytes, NDArray, NDArray] | None:
    try:
        data = item.content()
        inspect_image(data, whole=False)  # refuses images of gigapixels
        image = open_image(io.BytesIO(data))
        image.draft("L", (4 * _SIDE, 4 * _SIDE))
        size = (_SIDE + 1, _SIDE)
        box = Image.Resampling.BOX
        small = in_eight_bits(image).convert("L").resize(size, box, reducing_gap=2.0)
    except (OSError, BadRecordError, SyntaxError, ValueError):
        return None
    pixels = np.asarray(small, np.float32)
    hashed = np.packbits(pixels[:, 1:] > pixels[:, :-1]).view(np.uint64)
    flat = pixels[:, :-1].reshape(-1)
    flat = flat - flat.mean()
    norm = max(float(np.linalg.norm(flat)), 1e-6)
    return hashlib.blake2b(data, digest_size=16).digest(), hashed, flat / norm


def identical(prints: Fingerprints) -> list[list[int]]:
    """Returns groups of two or more rows of `prints` with the same content."""
    groups: dict[bytes, list[int]] = defaultdict(list)
    for row, digest in enumerate(prints.digests):
        groups[digest].append(row)
    return [rows for rows in groups.values() if len(rows) > 1]


def _near_identical(prints: Fingerprints) -> list[list[int]]:
    parent = list(range(len(prints.digests)))

    def root(row: int) -> int:
        while parent[row] != row:
            parent[row] = row = parent[parent[row]]
        return row

    for group in identical(prints):
        for row in group[1:]:
            parent[root(row)] = root(group[0])
    for one, other in _close_pairs(prints):
        parent[max(root(one), root(other))] = min(root(one), root(other))
    groups: dict[int, list[int]] = defaultdict(list)
    for row in range(len(parent)):
        groups[root(row)].append(row)
    return [rows for rows in groups.values() if len(rows) > 1]


def _close_pairs(prints: Fingerprints) -> Iterator[tuple[int, int]]:
    """Yields pairs of rows, of images with different content.

    Two hashes that differ in fewer bits than there are bands agree in a band, so only images that
    agree in one are compared. A band of many images that is all zeros or ones, as of walls and
    skies, says nothing of them.
    """
    first = np.array(sorted({digest: row for row, digest in enumerate(prints.digests)}.values()))
    band = np.uint8 if len(first) < _EXACT_BELOW else np.uint16
    bands = prints.hashes[first].view(band)
    for column in bands.T:
        flat = (column == 0) | (column == np.iinfo(band).max)
        compared = ~flat | (flat.sum() <= _MOST_FLAT)
        rows, keys = first[compared], column[compared]
        yield from _pairs_of_runs(prints, rows[np.argsort(keys, kind="stable")], np.sort(keys))


def _pairs_of_runs(
    prints: Fingerprints, order: NDArray[np.int64], keys: NDArray
) -> Iterator[tuple[int, int]]:
    """Yields the close pairs among rows `order` `[M]` with the same of the sorted `keys` `[M]`."""
    starts = np.arange(len(order))
    for step in range(1, len(order)):
        starts = starts[starts < len(order) - step]
        starts = starts[keys[starts] == keys[starts + step]]
        if not len(starts):
            return
        one, other = order[starts], order[starts + step]
        apart = np.bitwise_count(prints.hashes[one] ^ prints.hashes[other]).sum(axis=1)
        one, other = one[apart <= _BITS], other[apart <= _BITS]
        alike = np.einsum("nd,nd->n", prints.thumbnails[one], prints.thumbnails[other])
        for a, b in zip(one[alike > _CORRELATION], other[alike > _CORRELATION], strict=True):
            yield int(a), int(b)


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
    """Returns the split of each image, None for one in no split, and a description of the origin.

    The split that the data set states has precedence; without `val`, `test` takes its place. If it
    states neither, a share of all images validates. Images to score are never trained on.

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
    items: Sequence[AnnotatedImage], prints: Fingerprints, share: float, seed: int, log: ProblemLog
) -> list[Split]:
    """Returns the split of each image by a hash; near-identical images are on one side.

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
    # Images that cannot be decoded are not written either.
    places = [_place(keys.get(row, item.filename.encode()), seed) for row, item in enumerate(items)]
    ordered = sorted({places[row] for row in keys})
    if len(ordered) < 2:
        what = f"{count_text(len(ordered), 'image')} cannot be split into training and validation"
        raise UserError(what, fix="add images, or state a split by folders named train and val")
    # At least one on each side, even of few.
    limit = min(max(share, ordered[0]), ordered[-2])
    return ["val" if place <= limit else "train" for place in places]


def _groups(prints: Fingerprints, log: ProblemLog) -> list[list[int]]:
    groups = prints.near_identical
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
    """Reports images that occur twice, within a split or in two; arguments are of all images."""
    same = {row: group[0] for group in identical(prints) for row in group[1:]}
    for group in prints.near_identical:
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
    similar: dict[str, list[str]] = defaultdict(list)
    for name in names:
        similar["".join(name.split()).casefold()].append(name)
    for same in similar.values():
        if len(same) > 1:
            reason, shown = "classes that differ only by case or spaces", ", ".join(map(repr, same))
            log.add(reason, shown, action="kept as different classes")
