"""Refuses a label map that belongs to other records, before anything is spent on the two.

A class text that the label map does not have means a dropped box. Where that happens to every box,
training sees nothing but background and evaluation nothing to find: the best known of all reasons
for an mAP of 0 (fact sheet 7.6).
"""

from collections import Counter

import numpy as np

from stillbox.errors import UserError
from stillbox.records.framing import RecordError
from stillbox.records.label_map import LabelMap
from stillbox.records.problems import BadRecordError
from stillbox.records.source import ExampleSource

# Enough to meet a box in any real data set, few enough to take no time.
_LOOKED_AT = 64
_SHOWN = 5


def refuse_foreign_label_map(
    source: ExampleSource, label_map: LabelMap, *, use_display_name: bool
) -> None:
    """Looks at records from all over the set; some unknown classes are none of its business.

    Args:
        source: the records.
        label_map: what is to give their classes ids.
        use_display_name: whether class texts are matched against display names.

    Raises:
        UserError: not one box has a class that the label map knows.
    """
    boxes, unknown = 0, Counter[str]()
    records = np.linspace(0, len(source) - 1, min(len(source), _LOOKED_AT)).astype(int)
    for record in np.unique(records).tolist():
        try:
            parsed = source.parse(record)
        except (RecordError, BadRecordError):
            continue  # what becomes of it is the policy's business, when it is read
        boxes += len(parsed.example.boxes)
        unknown.update(parsed.unknown.values())
    if boxes == 0 or unknown.total() < boxes:
        return
    said = [text for text, _ in unknown.most_common(_SHOWN)]
    names = [item.name for item in label_map][:_SHOWN]
    fix = "give the label map that was written together with these records"
    # The records' texts come in quotes, ids without.
    if any(label_map.id_of(t.strip("'"), use_display_name=not use_display_name) for t in said):
        fix = f"set use_display_name to {str(not use_display_name).lower()}"
    raise UserError(
        f"the label map knows none of the classes of {boxes} boxes: the records say "
        f"{', '.join(said)}, the label map {', '.join(map(repr, names)) or 'nothing'}",
        where=f"{label_map.where}, {source.location(0)}",
        fix=fix,
    )
