"""Assigns images to training and validation, and finds images that are in both.

Identical images have the same content hash. Near-identical ones are at most 32 of 256 bits of the
difference hash apart and correlate above 0.9 as thumbnails of 16 x 16. Re-encoded, halved,
brightened and squeezed copies of photographs are at most 26 bits apart, different photographs at
least 60. Crops are different images. Source: N. Krawetz, "Kind of Like That", 2013 (difference
hash).

Mirrored and turned copies are found in the same way after each image is brought into one of its
eight positions by where its brightness lies. Versions that Roboflow has made of a photograph have
its name.
"""

import hashlib
import io
import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from stillbox.errors import UserError
from stillbox.printing import count_text
from stillbox.records.annotations import AnnotatedImage
from stillbox.records.data_folder import Split
from stillbox.records.image_files import inspect_image, open_image
from stillbox.records.parallel import OrderedMap, ordered_map
from stillbox.records.pixels import in_eight_bits
from stillbox.records.problems import BadRecordError, ProblemLog

_SIDE = 16
_BITS = 32
_CORRELATION = 0.9
_EXACT_BELOW = 50_000
"""Images up to which no pair within `_BITS` is missed, but for those that share flat bands only."""
_MOST_FLAT = 2000
"""Greatest number of images with a flat band that are compared, each with each."""


@dataclass(frozen=True)
class Views:
    """Images as small as they are compared."""

    hashes: NDArray[np.uint64]
    """`[N, 4]`, difference hash of 256 bits."""
    thumbnails: NDArray[np.float32]
    """`[N, 256]`, gray, of mean 0 and norm 1."""

    @classmethod
    def of(cls, pixels: NDArray[np.uint8]) -> "Views":
        """Returns the views of small gray images `[N, 17, 17]`, without their last row."""
        rows = pixels[:, :_SIDE]
        hashes = np.packbits((rows[:, :, 1:] > rows[:, :, :-1]).reshape(-1, _SIDE**2), axis=1)
        flat = rows[:, :, :-1].reshape(-1, _SIDE**2).astype(np.float32)
        flat -= flat.mean(axis=1, keepdims=True)
        flat /= np.maximum(np.linalg.norm(flat, axis=1, keepdims=True), 1e-6)
        return cls(hashes.view(np.uint64), flat)


@dataclass(frozen=True)
class Fingerprints:
    """Fingerprints of N images that can be decoded."""

    rows: NDArray[np.int64]
    """`[N]`, their places in the list of all images."""
    digests: list[bytes]
    """`[N]`, of the file's content."""
    versions: list[str]
    """`[N]`, name of the photograph of which an image is a version, or nothing."""
    upright: Views
    turned: Views
    """In the position that all mirrored and turned copies of an image share."""

    @cached_property
    def near_identical(self) -> list[list[int]]:
        """Groups of two or more rows that are near-identical, or identical.

        A row belongs to a group if it is near-identical to any of its rows, as frames of a video
        are.
        """
        same = _chained(identical(self))
        close = _close_pairs(self.digests, self.upright, _bands(len(self.digests)))
        return _joined(len(self.digests), [*same, *close])

    @cached_property
    def of_one_photograph(self) -> list[list[int]]:
        """Groups of two or more rows that are near-identical, copies in other positions, versions.

        They show the same, whatever was done to the pixels.
        """
        # Copies differ in few bits: few bands find them.
        turned = _close_pairs(self.digests, self.turned, np.uint16)
        known = [*_chained(self.near_identical), *_chained(self.same_versions)]
        return _joined(len(self.digests), [*known, *turned])

    @property
    def same_versions(self) -> list[list[int]]:
        """Groups of two or more rows that have the name of one photograph."""
        groups: dict[str, list[int]] = defaultdict(list)
        for row, name in enumerate(self.versions):
            groups[name].append(row)
        return [rows for name, rows in groups.items() if name and len(rows) > 1]


def fingerprints(
    items: Sequence[AnnotatedImage],
    *,
    engine: OrderedMap = ordered_map,
    on_image: Callable[[int, int], None] = lambda done, total: None,
) -> Fingerprints:
    """Reads the images; those that cannot be decoded are left out."""
    rows, digests, small = [], [], []
    for row, fingerprint in enumerate(engine(_fingerprint, items)):
        on_image(row + 1, len(items))
        if fingerprint is not None:
            rows.append(row)
            digests.append(fingerprint[0])
            small.append(fingerprint[1])
    side = _SIDE + 1
    pixels = np.frombuffer(b"".join(small), np.uint8).reshape(-1, side, side)
    return Fingerprints(
        np.array(rows, np.int64),
        digests,
        [_version_of(items[row].path.name) for row in rows],
        Views.of(pixels),
        Views.of(_in_position(pixels)),
    )


# `NAME_jpg.rf.HASH.jpg`
_VERSION = re.compile(r"(.+)\.rf\.[0-9a-zA-Z]{8,}\.\w+$")


def _version_of(name: str) -> str:
    version = _VERSION.match(name)
    return version[1] if version else ""


def _fingerprint(item: AnnotatedImage) -> tuple[bytes, bytes] | None:
    """Returns the digest of an image file, and the image as 17 x 17 gray pixels."""
    try:
        data = item.content()
        inspect_image(data, whole=False)  # refuses images of gigapixels
        image = open_image(io.BytesIO(data))
        image.draft("L", (4 * _SIDE, 4 * _SIDE))
        size = (_SIDE + 1, _SIDE + 1)
        box = Image.Resampling.BOX
        small = in_eight_bits(image).convert("L").resize(size, box, reducing_gap=2.0)
    except (OSError, BadRecordError, SyntaxError, ValueError):
        return None
    return hashlib.blake2b(data, digest_size=16).digest(), small.tobytes()


def _in_position(pixels: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """Returns images `[N, 17, 17]` mirrored and turned: the right is brightest, then below."""
    from_centre = np.arange(_SIDE + 1, dtype=np.int64) - _SIDE // 2
    down, across = pixels.sum(2) @ from_centre, pixels.sum(1) @ from_centre
    turned = np.where((down < 0)[:, None, None], pixels[:, ::-1], pixels)
    turned = np.where((across < 0)[:, None, None], turned[:, :, ::-1], turned)
    upright = np.abs(across) >= np.abs(down)
    return np.where(upright[:, None, None], turned, turned.transpose(0, 2, 1))


def identical(prints: Fingerprints) -> list[list[int]]:
    """Returns groups of two or more rows of `prints` with the same content."""
    groups: dict[bytes, list[int]] = defaultdict(list)
    for row, digest in enumerate(prints.digests):
        groups[digest].append(row)
    return [rows for rows in groups.values() if len(rows) > 1]


def _chained(groups: Sequence[Sequence[int]]) -> Iterator[tuple[int, int]]:
    """Yields the first row of each group with each other one."""
    return ((group[0], row) for group in groups for row in group[1:])


def _joined(count: int, pairs: Iterable[tuple[int, int]]) -> list[list[int]]:
    """Returns the groups of two or more of `count` rows that pairs connect."""
    parent = list(range(count))

    def root(row: int) -> int:
        while parent[row] != row:
            parent[row] = row = parent[parent[row]]
        return row

    for first, other in pairs:
        parent[max(root(first), root(other))] = min(root(first), root(other))
    groups: dict[int, list[int]] = defaultdict(list)
    for row in range(count):
        groups[root(row)].append(row)
    return [rows for rows in groups.values() if len(rows) > 1]


def _bands(count: int) -> type[np.unsignedinteger]:
    """Returns the integer type with as many bits as a band."""
    return np.uint8 if count < _EXACT_BELOW else np.uint16


def _close_pairs(
    digests: Sequence[bytes], views: Views, band: type[np.unsignedinteger]
) -> Iterator[tuple[int, int]]:
    """Yields pairs of rows, of images with different content.

    Two hashes that differ in fewer bits than there are bands agree in a band, so only images that
    agree in one are compared. A band of many images that is all zeros or ones, as of walls and
    skies, says nothing of them.
    """
    first = np.array(sorted({digest: row for row, digest in enumerate(digests)}.values()))
    if not len(first):
        return
    bands = views.hashes[first].view(band)
    for column in bands.T:
        flat = (column == 0) | (column == np.iinfo(band).max)
        compared = ~flat | (flat.sum() <= _MOST_FLAT)
        rows, keys = first[compared], column[compared]
        yield from _pairs_of_runs(views, rows[np.argsort(keys, kind="stable")], np.sort(keys))


def _pairs_of_runs(
    views: Views, order: NDArray[np.int64], keys: NDArray
) -> Iterator[tuple[int, int]]:
    """Yields the close pairs among rows `order` `[M]` with the same of the sorted `keys` `[M]`."""
    starts = np.arange(len(order))
    for step in range(1, len(order)):
        starts = starts[starts < len(order) - step]
        starts = starts[keys[starts] == keys[starts + step]]
        if not len(starts):
            return
        first, other = order[starts], order[starts + step]
        apart = np.bitwise_count(views.hashes[first] ^ views.hashes[other]).sum(axis=1)
        first, other = first[apart <= _BITS], other[apart <= _BITS]
        alike = np.einsum("nd,nd->n", views.thumbnails[first], views.thumbnails[other])
        for a, b in zip(first[alike > _CORRELATION], other[alike > _CORRELATION], strict=True):
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
        problem = (
            f"{count_text(len(ordered), 'image')} cannot be split into training and validation"
        )
        raise UserError(problem, fix="add images, or state a split by folders named train and val")
    # At least one on each side, even of few.
    limit = min(max(share, ordered[0]), ordered[-2])
    return ["val" if place <= limit else "train" for place in places]


def _groups(prints: Fingerprints, log: ProblemLog) -> list[list[int]]:
    """Returns the groups that stay on one side."""
    groups = prints.of_one_photograph
    if _small(groups, prints):
        return groups
    near = prints.near_identical
    if not _small(near, prints):
        greatest, action = max(map(len, near)), "split image by image: scores will be too high"
        count = f"{greatest:,} of {len(prints.digests):,}"
        log.add("most images are near-identical", count, action=action)
        near = identical(prints)
    versions = _joined(len(prints.digests), [*_chained(near), *_chained(prints.same_versions)])
    return versions if _small(versions, prints) else near


def _small(groups: Sequence[Sequence[int]], prints: Fingerprints) -> bool:
    most = max(2, _MOST_IN_A_GROUP * len(prints.digests))
    return max(map(len, groups), default=0) <= most


def _place(key: bytes, seed: int) -> float:
    """Returns a number in [0, 1) that depends on key and seed."""
    digest = hashlib.blake2b(b"%d " % seed + key, digest_size=8).digest()
    return int.from_bytes(digest, "little") / 2**64


def report_duplicates(
    items: Sequence[AnnotatedImage],
    splits: Sequence[Split | None],
    prints: Fingerprints,
    log: ProblemLog,
) -> None:
    """Reports images that occur twice, within a split or in two; arguments are of all images."""
    names = [item.where for item in items]
    same = {row: group[0] for group in identical(prints) for row in group[1:]}
    near = {row: group[0] for group in prints.near_identical for row in group[1:]}
    version = {row: group[0] for group in prints.same_versions for row in group[1:]}
    kinds = (
        ("identical", same),
        ("near-identical", near),
        ("versions of one photograph by their names:", version),
    )
    for group in prints.of_one_photograph:
        rows = [int(prints.rows[row]) for row in group]
        for place, row in zip(group[1:], rows[1:], strict=True):
            twins_of = ((kind, twins[place]) for kind, twins in kinds if place in twins)
            kind, twin = next(twins_of, ("similar, mirrored or turned", group[0]))
            log.add(
                f"{kind} images", names[row], f"as {names[int(prints.rows[twin])]}", action="kept"
            )
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
