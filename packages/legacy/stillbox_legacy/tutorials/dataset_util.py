"""`object_detection.utils.dataset_util`: features of a `tf.train.Example`, lists and XML.

The functions have the names, arguments and results of the original. Features need TensorFlow.
"""

import xml.etree.ElementTree as ElementTree
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from stillbox.extras import import_extra
from stillbox.records.foreign_files import read_lines

Feature = Any
"""A message `tf.train.Feature`."""


def _train() -> Any:  # noqa: ANN401
    return import_extra("tensorflow", "tf").train


def int64_list_feature(value: Sequence[int]) -> Feature:
    """Returns a feature of whole numbers."""
    return _train().Feature(int64_list=_train().Int64List(value=value))


def int64_feature(value: int) -> Feature:
    """Returns a feature of one whole number."""
    return int64_list_feature([value])


def bytes_list_feature(value: Sequence[bytes]) -> Feature:
    """Returns a feature of texts."""
    return _train().Feature(bytes_list=_train().BytesList(value=value))


def bytes_feature(value: bytes) -> Feature:
    """Returns a feature of one text."""
    return bytes_list_feature([value])


def float_list_feature(value: Sequence[float]) -> Feature:
    """Returns a feature of numbers."""
    return _train().Feature(float_list=_train().FloatList(value=value))


def float_feature(value: float) -> Feature:
    """Returns a feature of one number."""
    return float_list_feature([value])


def read_examples_list(path: str) -> list[str]:
    """Returns the first word of each line of a list of images."""
    return [line.split(" ")[0] for line in read_lines(Path(path))]


def recursive_parse_xml_to_dict(xml: ElementTree.Element) -> dict[str, Any]:
    """Returns an element with its children; each `object` is one of a list.

    Elements of lxml are taken too.
    """
    if not len(xml):
        return {xml.tag: xml.text}
    result: dict[str, Any] = {}
    for child in xml:
        content = recursive_parse_xml_to_dict(child)[child.tag]
        if child.tag == "object":
            result.setdefault(child.tag, []).append(content)
        else:
            result[child.tag] = content
    return {xml.tag: result}
