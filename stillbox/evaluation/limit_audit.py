"""The fixed numbers of a program beside a data set: what the data need, and what each number costs.

Every shape of a program is fixed, so a number of it can be too small for the data. Each such number
is proven harmless here, or comes with the objects that it costs and a remedy. Boxes and the sizes
of images are read; no image is decoded.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import cached_property
from typing import Literal, NamedTuple

import numpy as np

from stillbox.errors import UserError
from stillbox.evaluation.anchor_cells import (
    anchor_grids,
    cell_side,
    has_center,
    input_boxes,
    larger_input,
)
from stillbox.evaluation.coco import MOST_SCORED
from stillbox.evaluation.ground_truth import SAMPLE, read_sample
from stillbox.evaluation.limits import NO_LIMITS, Limit, LimitTable, Size
from stillbox.evaluation.results import ImageTruth, IntArray
from stillbox.evaluation.views import truths_in_views
from stillbox.experiment import schema
from stillbox.inputs.resize import misfit, resized_size
from stillbox.printing import count_text
from stillbox.references import Parameter, Setting

Split = Literal["train", "evaluation"]

_CANDIDATES = 10
"""Candidates of an object that suppression has to see: `gfl_mobile` needed 7.4 for each of a
hundred detections on fifty photographs, an SSD 6.6 (`boxes/nms_unrolled.py`)."""


def audit(
    experiment: schema.Experiment,
    truths: Sequence[ImageTruth],
    class_names: Mapping[int, str],
    *,
    split: Split,
    total: int = 0,
    searched_anchors: int = 0,
) -> LimitTable:
    """Compares every fixed number of a program with a set of images.

    Args:
        truths: the images of the set that were read.
        class_names: label map id -> name.
        split: what the set is for.
        total: images of the set; 0: as many as were read.
        searched_anchors: anchors that the suppression of an export searches; 0: all.
    """
    whole = _Set(experiment, truths, class_names)
    data = _Set(experiment, truths_in_views(truths, experiment.data.tiles), class_names)
    rows = [
        *(_boxes_to_train_on(data) if split == "train" else _boxes_to_score_on(data)),
        *_detections(data),
        *_candidates(data, searched_anchors),
        *_proposals(data),
        *_canvas(data),
        *_locations(data),
        *(_scored(whole) if split == "evaluation" else ()),
    ]
    purpose = "to train on" if split == "train" else "to score on"
    read = f"{len(truths):,} of {count_text(max(total, len(truths)), 'image')} {purpose}"
    return NO_LIMITS.joined(LimitTable(rows=tuple(rows), read=(read,)))


def audit_records(
    experiment: schema.Experiment, *, limit: int = SAMPLE, searched_anchors: int = 0
) -> LimitTable:
    """Compares a program with its own records, as far as they are on this machine; see `audit`.

    At most `limit` records of each set are read, 0: all.
    """
    data, limits = experiment.data, NO_LIMITS
    sets: dict[Split, schema.Records] = {"train": data.train, "evaluation": data.evaluation}
    for split, records in sets.items():
        # Each set may be on another machine, or be none.
        with suppress(UserError):
            truths, names, _, total = read_sample(records, limit)
            limits = limits.joined(
                audit(
                    experiment,
                    truths,
                    names,
                    split=split,
                    total=total,
                    searched_anchors=searched_anchors,
                )
            )
    return limits


class _Loss(NamedTuple):
    """Objects that a number costs."""

    by_class: IntArray
    """`[C]`."""
    total: int
    certain: bool = True
    """See `Limit`, likewise below."""
    certain_of_class: bool = True

    def possible(self) -> "_Loss":
        """Returns the loss as the most that is possible."""
        return self._replace(certain=False, certain_of_class=False)


class _Set:
    """Images of a set: as the network sees them, or whole."""

    def __init__(
        self,
        experiment: schema.Experiment,
        truths: Sequence[ImageTruth],
        class_names: Mapping[int, str],
    ) -> None:
        self.experiment, self.model = experiment, experiment.model
        self.truths, self._names = truths, class_names
        self.class_ids = [truth.class_ids[~truth.is_crowd] for truth in truths]
        """The class of each object of each image, without crowds."""
        self.ids = np.unique(np.concatenate([np.zeros(0, np.int64), *self.class_ids]))
        """`[C]`, the classes with objects, ascending."""
        self.counts = self.count(self.class_ids)
        """`[I, C]`, objects of each class in each image."""

    def count(self, class_ids: Sequence[IntArray]) -> IntArray:
        """Returns `[I, C]`, how often each class is in each list."""
        rows = [np.searchsorted(self.ids, ids) for ids in class_ids]
        counts = [np.bincount(row, minlength=len(self.ids)) for row in rows]
        return np.stack(counts) if counts else np.zeros((0, len(self.ids)), np.int64)

    @cached_property
    def most(self) -> int:
        """The most objects of an image."""
        return int(self.counts.sum(axis=1).max(initial=0))

    @cached_property
    def most_of_class(self) -> int:
        """The most objects of a class in an image."""
        return int(self.counts.max(initial=0))

    @cached_property
    def totals(self) -> IntArray:
        """`[C]`, objects of each class."""
        return self.counts.sum(axis=0)

    def limit(
        self, name: str, path: str, value: int | Size, needed: int | Size, loss: _Loss, remedy: str
    ) -> Limit:
        """Returns a row of the table."""
        shares = zip(self.ids.tolist(), (loss.by_class / self.totals).tolist(), strict=True)
        losing = sorted((pair for pair in shares if pair[1]), key=lambda pair: -pair[1])
        return Limit(
            name=name,
            path=path,
            value=value,
            needed=needed,
            lost=loss.total,
            objects=int(self.totals.sum()),
            classes={self._names.get(i, f"class {i}"): share for i, share in losing},
            certain=loss.certain,
            certain_of_class=loss.certain_of_class,
            remedy=remedy if loss.total else "",
        )

    def lists(self, class_ids: Sequence[IntArray]) -> _Loss:
        """Returns the loss of the objects with these classes."""
        by_class = self.count(class_ids).sum(axis=0)
        return _Loss(by_class, int(by_class.sum()))

    def beyond(self, most: int) -> _Loss:
        """Returns the loss beyond `most` objects in an image, which may be of any class."""
        over = np.maximum(self.counts.sum(axis=1) - most, 0)
        by_class = np.minimum(self.counts, over[:, None]).sum(axis=0)
        return _Loss(by_class, int(over.sum()), certain_of_class=False)

    def beyond_of_class(self, most: int) -> _Loss:
        """Returns the loss beyond `most` objects of a class in an image."""
        by_class = np.maximum(self.counts - most, 0).sum(axis=0)
        return _Loss(by_class, int(by_class.sum()))


def images_combined(augmentations: Sequence[schema.Augmentation]) -> int:
    """Returns the most images that augmentations make one of."""
    mixing = [step for step in augmentations if isinstance(step, schema.MixingAugmentation)]
    return 1 + sum(step.others for step in mixing)


def _boxes_to_train_on(data: _Set) -> Iterator[Limit]:
    """The last boxes of a full row of a batch are cut off, and become background."""
    records, path = data.experiment.data.train, "data.train.max_boxes"
    truths, room = data.truths, records.max_boxes
    if records.crowds == "drop":
        numbers, kept = [len(ids) for ids in data.class_ids], data.class_ids
        cut = [ids[room:] for ids in kept]
    else:
        numbers = [len(truth.class_ids) for truth in truths]
        cut = [truth.class_ids[room:][~truth.is_crowd[room:]] for truth in truths]
    images = images_combined(data.experiment.train.augmentations)
    needed = images * max(numbers, default=0)
    name, loss = "boxes to train on", data.lists(cut)
    if images > 1:
        name = f"boxes of {images} combined"
        share = _share_beyond(np.array(numbers), images, room)
        by_class = np.rint(share * data.totals).astype(np.int64)
        # Mixing may itself leave boxes out.
        loss = _Loss(by_class, int(by_class.sum())).possible()
    yield data.limit(name, path, room, needed, loss, f"{Setting(path, needed)}")


def _share_beyond(numbers: IntArray, images: int, room: int) -> float:
    """Returns the expected share of boxes beyond `room` in so many images drawn at random."""
    if not numbers.any():
        return 0.0
    size = images * int(numbers.max()) + 1
    chances = np.bincount(numbers) / len(numbers)
    # The chances of sums are a convolution.
    sums = np.fft.irfft(np.fft.rfft(chances, 2 * size) ** images, 2 * size)[:size]
    beyond = np.maximum(np.arange(size) - room, 0)
    return float(sums @ beyond / (images * numbers.mean()))


def _boxes_to_score_on(data: _Set) -> Iterator[Limit]:
    """Scores take the boxes of the records themselves, so that a row of a batch loses none."""
    room = data.experiment.data.evaluation.max_boxes
    name, path = "boxes to score on", "data.evaluation.max_boxes"
    yield data.limit(name, path, room, 0, data.lists([]), "")


def nms_path(model: schema.Model) -> str:
    """Returns the path of the suppression that ends in detections; empty: it has no fields."""
    if isinstance(model, schema.FasterRcnn):
        return "model.boxes.postprocessing.nms" if model.boxes else ""
    return "model.postprocessing.nms" if isinstance(model, schema.OneStage) else ""


def _detections(data: _Set) -> Iterator[Limit]:
    """An image has at most so many detections, and of one class at most so many."""
    nms, path = data.model.nms, nms_path(data.model)
    if nms is None or not path:
        return
    in_all = Setting(f"{path}.max_total", data.most)
    loss = data.beyond(nms.max_total)
    yield data.limit("detections", in_all.path, nms.max_total, data.most, loss, f"{in_all}")
    if nms.class_agnostic:
        return
    of_class = Setting(f"{path}.max_per_class", data.most_of_class)
    remedy = f"{in_all} {of_class}" if data.most_of_class > nms.max_total else f"{of_class}"
    loss = data.beyond_of_class(nms.max_per_class)
    name, value = "detections of a class", nms.max_per_class
    yield data.limit(name, of_class.path, value, data.most_of_class, loss, remedy)


def candidates_of_object(model: schema.Model) -> int:
    """Returns the candidates of an object that suppression has to see, so that it is not lost."""
    matcher = model.anchor_stage and model.anchor_stage.matcher
    if isinstance(matcher, schema.AtssMatcher | schema.TaskAlignedMatcher):
        return max(matcher.candidates, _CANDIDATES)
    return _CANDIDATES


def _candidates(data: _Set, searched_anchors: int) -> Iterator[Limit]:
    """Suppression sees the best candidates alone, and an object has several."""
    nms, path, each = data.model.nms, nms_path(data.model), candidates_of_object(data.model)
    if nms is None or not path:
        return
    in_all, of_class = each * data.most, each * data.most_of_class
    if value := nms.max_candidates_per_level:
        loss, field = data.beyond(value // each), f"{path}.max_candidates_per_level"
        name, remedy = "candidates of a map", f"{Setting(field, in_all)}"
        yield data.limit(name, field, value, in_all, loss.possible(), remedy)
    if value := nms.max_candidates_per_class:
        loss, field = data.beyond_of_class(value // each), f"{path}.max_candidates_per_class"
        name, remedy = "candidates of a class", f"{Setting(field, of_class)}"
        yield data.limit(name, field, value, of_class, loss.possible(), remedy)
    if searched_anchors:
        loss, name = data.beyond(searched_anchors // each), "anchors searched"
        remedy = f"raise {Parameter('max_detections')}: it searches more anchors for more of them"
        yield data.limit(name, "", searched_anchors, in_all, loss.possible(), remedy)


def _proposals(data: _Set) -> Iterator[Limit]:
    """The second stage sees the boxes of proposals alone."""
    if not isinstance(data.model, schema.FasterRcnn):
        return
    field = Setting("model.proposals.max_proposals", data.most)
    name, value = "proposals", data.model.proposals.max_proposals
    yield data.limit(name, field.path, value, data.most, data.beyond(value), f"{field}")


def _canvas(data: _Set) -> Iterator[Limit]:
    """An image that exceeds the canvas is a bad record, with all its objects."""
    resizer = data.model.resizer
    sizes = [(truth.height, truth.width) for truth in data.truths]
    inside = np.array([resized_size(size, resizer) for size in sizes] or [(0, 0)])
    height, width = inside.max(axis=0).tolist()
    outside = [
        ids
        for ids, size in zip(data.class_ids, sizes, strict=True)
        if misfit(size, resizer) is not None
    ]
    remedy = f"{Setting('model.resizer.canvas', [height, width])}"
    value, needed = resizer.input_size, (height, width)
    yield data.limit("canvas", "model.resizer", value, needed, data.lists(outside), remedy)


def _locations(data: _Set) -> Iterator[Limit]:
    """Adaptive matchers give a box anchors with their centre in it, and otherwise none."""
    stage, resizer = data.model.anchor_stage, data.model.resizer
    adaptive = schema.AtssMatcher | schema.TaskAlignedMatcher
    if stage is None or not isinstance(stage.matcher, adaptive) or not len(data.ids):
        return
    grids = anchor_grids(data.experiment)
    boxes = [input_boxes(truth, resizer) for truth in data.truths]
    missed = [~has_center(each, grids) for each in boxes]
    loss = data.lists([ids[rows] for ids, rows in zip(data.class_ids, missed, strict=True)])
    lost = np.concatenate([each[rows] for each, rows in zip(boxes, missed, strict=True)])
    sides = np.maximum(lost[:, 2:] - lost[:, :2], 1e-3)
    factor = float((cell_side(grids, resizer) / sides).max(initial=1.0))
    needed, larger = larger_input(resizer, factor, data.experiment.data.tiles)
    remedy = f"{larger}, so that each box has the centre of an anchor in it"
    name = "network input"
    yield data.limit(name, "model.resizer", resizer.input_size, needed, loss, remedy)


def _scored(data: _Set) -> Iterator[Limit]:
    """COCO scores at most a hundred detections of a class in an image."""
    if "coco" not in data.experiment.evaluation.metrics:
        return
    loss, name = data.beyond_of_class(MOST_SCORED), "COCO's of a class"
    totals = data.totals
    # Divided as COCO does, because a recall counts from its own value on.
    bounds = [greatest_ap(recall) for recall in ((totals - loss.by_class) / totals).tolist()]
    best = float(np.mean(bounds)) if bounds else None
    remedy = (
        f"none: by COCO's rule AP and AP50 are at most {best or 1:.3f}, of the worst class "
        f"{min(bounds, default=1):.3f}, whatever the model finds; other metrics have no such rule"
    )
    row = data.limit(name, "", MOST_SCORED, data.most_of_class, loss, remedy)
    yield replace(row, greatest_ap=best)


def greatest_ap(recall: float) -> float:
    """Returns COCO's AP of a detector without mistakes that finds a share of the objects.

    Precision is 1 at each of the 101 recalls that it reaches, and 0 at the others.
    """
    return float((np.linspace(0.0, 1.0, 101) <= recall).mean())
