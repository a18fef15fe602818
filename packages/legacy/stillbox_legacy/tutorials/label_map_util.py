"""`object_detection.utils.label_map_util`: label maps as messages, dictionaries and categories.

The functions have the names, arguments and results of the original.
"""

import collections
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from stillbox.records.label_map import MAX_LABEL_MAP_BYTES, SHAPE
from stillbox.textformat.yaml_tree import read_text_file
from stillbox_legacy.tutorials.protos import load_module

Category = dict[str, Any]
"""`id` and `name`, and more where the label map has it."""
LabelMapProto = Any
"""A message `StringIntLabelMap`."""


def load_labelmap(path: str | os.PathLike[str]) -> LabelMapProto:
    """Reads a label map.

    Raises:
        UserError: there is no such file.
        ValueError: an id is below 0, or is 0 for a class that is not the background.
        google.protobuf.text_format.ParseError: the file has another form.
    """
    from google.protobuf import text_format

    text = read_text_file(Path(path), fix=SHAPE, most=MAX_LABEL_MAP_BYTES)
    label_map = load_module("string_int_label_map").StringIntLabelMap()
    text_format.Merge(text, label_map)
    for item in label_map.item:
        background = "background" in (item.name, item.display_name)
        if item.id < 0:
            raise ValueError("Label map ids should be >= 0.")
        if item.id == 0 and not background:
            raise ValueError("Label map id 0 is reserved for the background label")
    return label_map


def create_category_index(categories: Sequence[Category]) -> dict[int, Category]:
    """Returns the categories by id."""
    return {category["id"]: category for category in categories}


def get_max_label_map_index(label_map: LabelMapProto) -> int:
    """Returns the greatest id."""
    return max(item.id for item in label_map.item)


def convert_label_map_to_categories(
    label_map: LabelMapProto | None, max_num_classes: int, use_display_name: bool = True
) -> list[Category]:
    """Returns the categories with ids from 1 to `max_num_classes`, the first of each id.

    Args:
        label_map: None: categories of these ids without names of their own.
        max_num_classes: greatest id.
        use_display_name: name them by `display_name`, where there is one.
    """
    if not label_map:
        return [{"id": i, "name": f"category_{i}"} for i in range(1, max_num_classes + 1)]
    categories: dict[int, Category] = {}
    for item in label_map.item:
        if not 0 < item.id <= max_num_classes or item.id in categories:
            continue
        shown = use_display_name and item.HasField("display_name")
        categories[item.id] = {"id": item.id, "name": item.display_name if shown else item.name}
        if item.HasField("frequency"):
            words = load_module("string_int_label_map").LVISFrequency
            letters = {"FREQUENT": "f", "COMMON": "c", "RARE": "r"}
            if letter := letters.get(words.Name(item.frequency)):
                categories[item.id]["frequency"] = letter
        if item.HasField("instance_count"):
            categories[item.id]["instance_count"] = item.instance_count
    return list(categories.values())


def create_categories_from_labelmap(
    label_map_path: str, use_display_name: bool = True
) -> list[Category]:
    """Returns the categories of a file."""
    label_map = load_labelmap(label_map_path)
    greatest = get_max_label_map_index(label_map)
    return convert_label_map_to_categories(label_map, greatest, use_display_name)


def create_category_index_from_labelmap(
    label_map_path: str, use_display_name: bool = True
) -> dict[int, Category]:
    """Returns the categories of a file by id."""
    return create_category_index(create_categories_from_labelmap(label_map_path, use_display_name))


def create_class_agnostic_category_index() -> dict[int, Category]:
    """Returns the one category `object`."""
    return {1: {"id": 1, "name": "object"}}


def get_label_map_dict(
    label_map_path_or_proto: str | LabelMapProto,
    use_display_name: bool = False,
    fill_in_gaps_and_background: bool = False,
) -> dict[str, int]:
    """Returns the ids by name.

    Args:
        label_map_path_or_proto: a file or a message.
        use_display_name: take `display_name`.
        fill_in_gaps_and_background: add `background` with id 0, and the missing ids as their own
            names.

    Raises:
        ValueError: an id occurs twice and gaps were to be filled.
    """
    label_map = _loaded(label_map_path_or_proto)
    ids = {
        (item.display_name if use_display_name else item.name): item.id for item in label_map.item
    }
    if fill_in_gaps_and_background:
        values = set(ids.values())
        if 0 not in values:
            ids["background"] = 0
            values.add(0)
        if len(values) != len(ids) or not all(isinstance(class_id, int) for class_id in values):
            raise ValueError("The values in label map must be unique.")
        if min(values) < 0:
            raise ValueError("The values in the label map must be positive.")
        ids |= {
            str(class_id): class_id for class_id in range(max(values) + 1) if class_id not in values
        }
    return ids


def get_label_map_hierarchy_lut(
    label_map_path_or_proto: str | LabelMapProto, include_identity: bool = False
) -> tuple[np.ndarray, np.ndarray]:
    """Returns which classes are ancestors, and which are descendants, of which.

    Args:
        label_map_path_or_proto: a file or a message.
        include_identity: count a class as its own.

    Returns:
        Two matrices `[ids, ids]` of 0 and 1 without the background.
    """
    label_map = _loaded(label_map_path_or_proto)
    above: dict[int, list[int]] = collections.defaultdict(list)
    below: dict[int, list[int]] = collections.defaultdict(list)
    for item in label_map.item:
        above[item.id] += item.ancestor_ids
        below[item.id] += item.descendant_ids
    size = get_max_label_map_index(label_map) + 1
    tables = []
    for relation in (above, below):
        table = np.eye(size, dtype=np.int64) * int(include_identity)
        for class_id, others in relation.items():
            table[class_id, others] = 1
        tables.append(table[1:, 1:])
    return tables[0], tables[1]


def _loaded(label_map: str | LabelMapProto) -> LabelMapProto:
    return load_labelmap(label_map) if isinstance(label_map, str | os.PathLike) else label_map
