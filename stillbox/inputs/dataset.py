"""Records with classes, sizes, policies and cache: samples for a model, images or their tiles.

A label map that does not belong to the records is rejected before training starts: it would drop
all boxes, the most frequent reason for an mAP of 0.
"""

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from typing import Literal

import numpy as np
from numpy.random import Generator
from numpy.typing import NDArray

from stillbox.errors import UserError
from stillbox.experiment import schema
from stillbox.image_kind import RGB_8, ImageKind
from stillbox.inputs.decode import ImageError, decode_image
from stillbox.inputs.memory import RecentImages, SampleCache
from stillbox.inputs.repeats import repeat_factors
from stillbox.inputs.sample import Pixels, Sample, Size, StoredImage, StoredSample
from stillbox.inputs.tiles import ImageTiles, tile_of
from stillbox.printing import count_text
from stillbox.records.example import COUNT_FROM_ONE, ID_ZERO, Example
from stillbox.records.label_map import ClassSlots, LabelMap, assign_slots
from stillbox.records.problems import BadRecordError, Problem, one_case
from stillbox.records.source import ExampleSource
from stillbox.records.tfrecord import RecordError

# Enough records to find boxes in real data sets, few enough to be fast; and those that are looked
# through before a map of rare classes is refused.
_SAMPLED, _SAMPLED_AT_MOST = 64, 4096
_SHOWN = 5
# Records that are drawn for one partner until one can be used, as in mmdet.
_DRAWS = 15


def reject_unrelated_label_map(
    source: ExampleSource, label_map: LabelMap, *, use_display_name: bool
) -> None:
    """Checks classes of records from all over the set; some unknown ones are accepted.

    Raises:
        UserError: the label map has none of the boxes' classes, or labels begin at 0.
    """
    for most in (_SAMPLED, _SAMPLED_AT_MOST):
        boxes, unknown, greatest = _sampled_classes(source, most)
        if boxes == 0 or (unknown.total() < boxes and not unknown[ID_ZERO]):
            return
    if unknown[ID_ZERO] and greatest == label_map.max_id - 1:
        problem = (
            f"labels begin at 0: the greatest of {count_text(boxes, 'box')} is {greatest}, and the "
            f"ids of the label map end at {label_map.max_id}"
        )
        raise UserError(
            problem, where=f"{label_map.where}, {source.location(0)}", fix=COUNT_FROM_ONE
        )
    if unknown.total() < boxes:
        return
    texts = [text for text, _ in unknown.most_common(_SHOWN)]
    names = [item.name for item in label_map][:_SHOWN]
    fix = "give the label map that was written together with these records"
    # Texts are quoted, ids are not.
    if any(label_map.id_of(t.strip("'"), use_display_name=not use_display_name) for t in texts):
        fix = f"set use_display_name to {str(not use_display_name).lower()}"
    raise UserError(
        f"the label map has none of the classes of {count_text(boxes, 'box')}: the records have "
        f"{', '.join(texts)}, the label map {', '.join(map(repr, names)) or 'nothing'}",
        where=f"{label_map.where}, {source.location(0)}",
        fix=fix,
    )


def _sampled_classes(source: ExampleSource, most: int) -> tuple[int, Counter[str], int]:
    """Returns boxes, boxes of each unknown class and greatest id of at most so many records."""
    boxes, unknown, greatest = 0, Counter[str](), 0
    records = np.linspace(0, len(source) - 1, min(len(source), most)).astype(int)
    for record in np.unique(records).tolist():
        try:
            parsed = source.parse(record)
        except (RecordError, BadRecordError):
            continue  # handled by the policy when the record is loaded
        boxes += len(parsed.example.boxes)
        unknown.update(parsed.unknown.values())
        greatest = max(greatest, int(parsed.example.class_ids.max(initial=0)))
    return boxes, unknown, greatest


_NO_PIXELS = np.empty((0, 0, 3), np.uint8)


class Dataset:
    """The samples of a set of records, loaded by index from any thread.

    A sample is the image of a record, or with `tiles` each tile of it.

    Args:
        slots: class indices of the model.
        crowds: treatment of crowd boxes, as in `schema.Records`.
        annotations: COCO JSON with the ground truth of evaluation; empty: the records' own.
        num_epochs: passes of training over the samples; 0: no limit.
        cache: keeps decoded images.
        tiles: what images are cut into.
        recent: keeps the images that tiles were last cut out of.
        factors: how often training draws each sample, in any unit; None: each once an epoch.
        kind: channels and bits that images are decoded to.
    """

    def __init__(
        self,
        source: ExampleSource,
        label_map: LabelMap,
        slots: ClassSlots,
        resizer: schema.Resizer,
        *,
        max_boxes: int = 100,
        crowds: Literal["train", "ignore", "drop"] = "train",
        annotations: str = "",
        num_epochs: int = 0,
        cache: SampleCache | None = None,
        tiles: ImageTiles | None = None,
        recent: RecentImages | None = None,
        factors: NDArray[np.int64] | None = None,
        kind: ImageKind = RGB_8,
    ) -> None:
        self.source, self.resizer = source, resizer
        self.label_map, self.slots = label_map, slots
        self.max_boxes, self.annotations = max_boxes, annotations
        self.num_epochs, self.cache, self.tiles = num_epochs, cache, tiles
        self._crowds, self._recent = crowds, recent
        self.factors, self.kind = factors, kind
        self._ends = None if factors is None else np.cumsum(factors)
        self._keeps = cache is not None or recent is not None

    def __len__(self) -> int:
        return len(self.source) if self.tiles is None else len(self.tiles)

    def samples_of(self, records: int) -> int:
        """Returns the number of samples in the first so many records."""
        return records if self.tiles is None else int(self.tiles.starts[records])

    def record_of(self, index: int) -> int:
        """Returns the record of a sample."""
        return index if self.tiles is None else self.tiles.locate(index)[0]

    @property
    def class_names(self) -> Mapping[int, str]:
        """Display names by label map id."""
        return self.label_map.names

    def load(self, index: int) -> Sample | None:
        """Returns a decoded sample, or None if the policy drops its record.

        Raises:
            UserError: record, box or image is bad and the policy is `fail`; it names the record.
        """
        return self._sample(index, self._load)

    def open(self, index: int) -> Sample | None:
        """Returns a sample as `load` does, but decodes JPEG files only if images are kept.

        Raises:
            UserError: see `load`.
        """
        return self._sample(index, self._load if self._keeps else self._open)

    def _sample(self, index: int, read: Callable[[int], Sample | None]) -> Sample | None:
        if self.tiles is None:
            return read(index)
        record, window = self.tiles.locate(index)
        whole = read(record)
        try:
            return None if whole is None else tile_of(whole, window)
        except ImageError as error:
            self.reject(index, error)
            return None

    def _load(self, record: int) -> Sample | None:
        if self._recent is not None:
            return self._recent.get(record, self._read)
        sample = self.cache.get(record) if self.cache is not None else None
        return self._read(record) if sample is None else sample

    def _read(self, record: int) -> Sample | None:
        example = self.source.example(record)
        return None if example is None else self._decode(record, example)

    def _open(self, record: int) -> Sample | None:
        example = self.source.example(record)
        if example is None:
            return None
        stored = StoredImage.read(example.encoded, self.kind)
        if stored is None:
            return self._decode(record, example)
        self._check_size(record, example, stored.size)
        return StoredSample(**vars(self._prepare(example, _NO_PIXELS)), stored=stored)

    def draw(self, rng: Generator, *, with_boxes: bool = False) -> Sample | None:
        """Returns a decoded sample, as likely as its factor; None if 15 draws gave no usable one.

        Raises:
            UserError: see `load`.
        """
        for _ in range(_DRAWS):
            index = self._index_at(rng.random())
            sample = self.open(index)
            if sample is None or (with_boxes and not len(sample.boxes)):
                continue
            try:
                return sample.decoded()
            except ImageError as error:
                self.reject(index, error)
        return None

    def _index_at(self, share: float) -> int:
        """Returns the sample at a share in `[0, 1)` of all samples, each as long as its factor."""
        if self._ends is None:
            return int(share * len(self))
        return int(np.searchsorted(self._ends, int(share * self._ends[-1]), side="right"))

    def _decode(self, record: int, example: Example) -> Sample | None:
        try:
            image = decode_image(example.encoded, kind=self.kind)
        except ImageError as error:
            self._reject(record, error)
            return None
        self._check_size(record, example, (image.shape[0], image.shape[1]))
        sample = self._prepare(example, image)
        if self.cache is not None:
            self.cache.add(record, sample)
        return sample

    def reject(self, index: int, error: ImageError) -> None:
        """Reports a sample of an image that cannot be decoded.

        Raises:
            UserError: the policy is `fail`; it names the record.
        """
        self._reject(self.record_of(index), error)

    def _reject(self, record: int, error: ImageError) -> None:
        self.source.reject(record, "image cannot be decoded", error.reason)

    def image(self, index: int) -> Pixels:
        """Returns the pixels of a sample as they are stored.

        Raises:
            UserError: there are none.
        """
        sample = self.load(index)
        if sample is None:
            where = self.source.location(self.record_of(index))
            raise UserError("this record has no usable image", where=where)
        return sample.image

    def describe(self, index: int) -> str:
        """Returns location, image id and tile of a sample, for messages."""
        record = self.record_of(index)
        example = self.source.example(record)
        name = f" (image {example.image_id})" if example is not None else ""
        if self.tiles is not None:
            ymin, xmin, _, _ = self.tiles.locate(index)[1]
            name += f", the tile at row {ymin}, column {xmin}"
        return self.source.location(record) + name

    def _prepare(self, example: Example, image: Pixels) -> Sample:
        weights = example.weights
        if self._crowds == "ignore":
            weights = np.where(example.is_crowd, np.float32(0), weights)
        sample = Sample(image, example.boxes, example.class_ids, weights)
        return sample.select(~example.is_crowd) if self._crowds == "drop" else sample

    def _check_size(self, record: int, example: Example, real: Size) -> None:
        """Reports a wrong size in a record. Boxes are normalised, so the pixels' size is used."""
        claimed = example.height, example.width
        if all(claimed) and claimed != real:
            self.source.report("size", record, self._wrong_size(record, claimed, real))

    def _wrong_size(self, record: int, claimed: Size, real: Size) -> Iterator[Problem]:
        yield one_case(
            "record claims a wrong image size",
            self.source.location(record),
            f"{claimed[0]}x{claimed[1]} (height x width) claimed, {real[0]}x{real[1]} found",
            action="size of the pixels used",
        )


def open_dataset(
    data: schema.Data,
    records: schema.Records,
    model: schema.Model,
    tiles: ImageTiles | None = None,
    factors: NDArray[np.int64] | None = None,
) -> Dataset:
    """Opens `records`, one set of `data`, for a model.

    `tiles` are the set's tiles, if they are known; the headers of all images give them. Likewise
    `factors`, which the classes of all records give.

    Raises:
        UserError: there is no record or no label map, or the label map does not fit the model's
            classes or belongs to other records.
    """
    if not records.label_map:
        problem = "no label map is given, so that class names have no ids"
        fix = "set label_map to a .pbtxt file with an item for every class"
        raise UserError(problem, where=", ".join(records.paths) or None, fix=fix)
    label_map = LabelMap.from_file(records.label_map)
    slots = assign_slots(label_map, model.num_classes, model.class_slots)
    source = ExampleSource(
        records.paths,
        label_map,
        use_display_name=records.use_display_name,
        bad_records=data.bad_records,
        bad_boxes=data.bad_boxes,
        sample_1_of_n=records.sample_1_of_n,
    )
    reject_unrelated_label_map(source, label_map, use_display_name=records.use_display_name)
    if tiles is None and data.tiles is not None:
        tiles = ImageTiles.measure(source, data.tiles)
    if factors is None and records.repeat_threshold:
        crowds = records.crowds == "train"
        factors = repeat_factors(source, tiles, records.repeat_threshold, crowds=crowds)
    keeps_recent = tiles is not None and not (data.cache_images or data.reduced_decoding)
    return Dataset(
        source,
        label_map,
        slots,
        model.resizer,
        max_boxes=records.max_boxes,
        crowds=records.crowds,
        annotations=records.annotations,
        num_epochs=records.num_epochs,
        cache=SampleCache() if data.cache_images else None,
        tiles=tiles,
        recent=RecentImages() if keeps_recent else None,
        factors=factors,
        kind=model.image_kind,
    )
