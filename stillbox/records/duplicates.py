"""Identical and near-identical images, by content hash and by a perceptual hash.

Near-identical means at most 32 of 256 bits of the difference hash apart and correlated above 0.9 as
thumbnails of 16 x 16. Re-encoded, halved, brightened and squeezed copies of photographs are at most
26 bits apart, different photographs at least 60. Crops are different images.
Source: N. Krawetz, "Kind of Like That", 2013 (difference hash).
"""

import hashlib
import io
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from stillbox.records.annotated import AnnotatedImage
from stillbox.records.image_files import inspect_image
from stillbox.records.parallel import ordered_map
from stillbox.records.problems import BadRecordError

_SIDE = 16
_BITS = 32
_CORRELATION = 0.9
_EXACT_BELOW = 50_000
"""Images up to which no pair within `_BITS` is missed."""


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


def fingerprints(
    items: Sequence[AnnotatedImage],
    *,
    workers: int = 0,
    on_image: Callable[[int, int], None] = lambda done, total: None,
) -> Fingerprints:
    """Reads the images; those that cannot be decoded are left out."""
    rows, digests, hashes, thumbnails = [], [], [], []
    for row, found in enumerate(ordered_map(_fingerprint, items, workers)):
        on_image(row + 1, len(items))
        if found is not None:
            rows.append(row)
            digests.append(found[0])
            hashes.append(found[1])
            thumbnails.append(found[2])
    return Fingerprints(
        np.array(rows, np.int64),
        digests,
        np.array(hashes, np.uint64).reshape(-1, 4),
        np.array(thumbnails, np.float32).reshape(-1, _SIDE * _SIDE),
    )


def _fingerprint(item: AnnotatedImage) -> tuple[bytes, NDArray, NDArray] | None:
    try:
        data = item.content()
        inspect_image(data, whole=False)  # refuses images of gigapixels
        image = Image.open(io.BytesIO(data))
        image.draft("L", (4 * _SIDE, 4 * _SIDE))
        size = (_SIDE + 1, _SIDE)
        box = Image.Resampling.BOX
        small = image.convert("L").resize(size, box, reducing_gap=2.0)
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


def near_identical(prints: Fingerprints) -> list[list[int]]:
    """Returns groups of two or more rows of `prints` that are near-identical, or identical.

    A row belongs to a group if it is near-identical to any row of it, as the frames of a video are.
    """
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
    agree in one are compared.
    """
    first = np.array(sorted({digest: row for row, digest in enumerate(prints.digests)}.values()))
    band = np.uint8 if len(first) < _EXACT_BELOW else np.uint16
    bands = prints.hashes[first].view(band)
    for column in bands.T:
        order = first[np.argsort(column, kind="stable")]
        keys = np.sort(column, kind="stable")
        yield from _pairs_of_runs(prints, order, keys)


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
