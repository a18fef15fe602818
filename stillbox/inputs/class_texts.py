"""Rejects a label map that does not belong to the records, before training starts.

A class text that is not in the label map drops its box. If all are dropped, training sees only
background and evaluation has no ground truth, the most frequent reason for an mAP of 0.
"""

from collections import Counter

import numpy as np

from stillbox.errors import UserError
from stillbox.printing import count_text
from stillbox.records.framing import RecordError
from stillbox.records.label_map import LabelMap
from stillbox.records.problems import BadRecordError
from stillbox.records.source import ExampleSource

# Records that are read: enough to find boxes in real data sets, few enough to be fast.
_SAMPLED = 64
_SHOWN = 5


def reject_unrelated_label_map(
    source: ExampleSource, label_map: LabelMap, *, use_display_name: bool
) -> None:
    """Checks class texts of records from all over the set; some unknown ones are accepted.

    Raises:
        UserError: the label map has none of the boxes' classes.
    """
    boxes, unknown = 0, Counter[str]()
    records = np.linspace(0, len(source) - 1, min(len(source), _SAMPLED)).astype(int)
    for record in np.unique(records).tolist():
        try:
            parsed = source.parse(record)
        except (RecordError, BadRecordError):
            continue  # handled by the policy when the record is loaded
        boxes += len(parsed.example.boxes)
        unknown.update(parsed.unknown.values())
    if boxes == 0 or unknown.total() < boxes:
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
