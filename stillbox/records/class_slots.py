"""Class indices of a model and label map ids.

Records, annotations, tables and predictions use ids, arrays use indices. Ids start at 1 and may
have gaps; indices start at 0 and have none.
"""

from dataclasses import dataclass
from functools import cached_property
from itertools import groupby
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from stillbox.errors import UserError
from stillbox.printing import count_text
from stillbox.records.label_map import LabelMap

SlotRule = Literal["label_map_id", "contiguous"]
"""`label_map_id`: class index c is id c + 1; gaps between ids leave indices unused.
`contiguous`: class index c is the c-th id of the label map."""


@dataclass(frozen=True)
class ClassSlots:
    """The label map ids of a model's class indices."""

    ids: tuple[int, ...]
    """`[num_classes]`, the id of each class index, ascending."""

    def __len__(self) -> int:
        return len(self.ids)

    def __contains__(self, class_id: object) -> bool:
        return class_id in self.ids

    def __str__(self) -> str:
        """Returns the ids as text, such as `1 to 11, 13`."""
        runs = [
            [class_id for _, class_id in run]
            for _, run in groupby(enumerate(self.ids), lambda pair: pair[1] - pair[0])
        ]
        return ", ".join(f"{r[0]} to {r[-1]}" if len(r) > 1 else f"{r[0]}" for r in runs)

    def index_of(self, class_ids: NDArray[np.integer]) -> NDArray[np.int32]:
        """Returns class indices `[N]` of label map ids `[N]`.

        An id that the model does not have becomes `num_classes`, whose target is all zeros.
        """
        places = np.searchsorted(self._ids, class_ids)
        known = self._ids[np.minimum(places, len(self) - 1)] == class_ids
        return np.where(known, places, len(self)).astype(np.int32)

    def id_of(self, indices: NDArray[np.integer]) -> NDArray[np.int64]:
        """Returns label map ids `[N]` of class indices `[N]` below `num_classes`."""
        return self._ids[indices]

    @cached_property
    def _ids(self) -> NDArray[np.int64]:
        return np.array(self.ids, np.int64)


def required_classes(label_map: LabelMap, rule: SlotRule) -> int:
    """Returns the `num_classes` of a label map; with `label_map_id`, the least possible."""
    return len(label_map) if rule == "contiguous" else label_map.max_id


def assign_slots(label_map: LabelMap, num_classes: int, rule: SlotRule) -> ClassSlots:
    """Returns the class slots of a model with `num_classes` foreground classes.

    Raises:
        UserError: label map and `num_classes` do not fit together under this rule; the message
            names a number that does, and the other rule if it does.
    """
    required = required_classes(label_map, rule)
    if rule == "contiguous":
        if required != num_classes:
            raise UserError(
                f"the label map has {count_text(required, 'class')}, the model {num_classes}, and "
                "with model.class_slots=contiguous each has one of the model's",
                where=label_map.where,
                fix=_remedy(f"{required} (the number of items)", label_map, num_classes, rule),
            )
        return ClassSlots(tuple(item.id for item in label_map))
    if required > num_classes:
        raise UserError(
            f"the label map goes up to id {required}, the model has "
            f"{count_text(num_classes, 'class')}",
            where=label_map.where,
            fix=_remedy(f"{required} (the greatest id, with gaps)", label_map, num_classes, rule),
        )
    return ClassSlots(tuple(range(1, num_classes + 1)))


def _remedy(number: str, label_map: LabelMap, num_classes: int, rule: SlotRule) -> str:
    other: SlotRule = "label_map_id" if rule == "contiguous" else "contiguous"
    fits = required_classes(label_map, other) == num_classes
    return (
        f"set model.num_classes={number}, or "
        + f"set model.class_slots={other}, or " * fits
        + "give the label map that belongs to the model"
    )
