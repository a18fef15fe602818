"""The class names of a Hugging Face data set.

They are in the front matter of `README.md`, in `dataset_infos.json`, which older sets have, and in
the schema of parquet files. Source: huggingface.co/docs/datasets, "ClassLabel".
"""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from stillbox.errors import UserError
from stillbox.records.data_folder import DataFolder
from stillbox.records.guarded import read_json
from stillbox.records.problems import ConversionLog
from stillbox.textformat.text_file import read_text_file
from stillbox.textformat.yaml_tree import compose

_CARD, INFOS = "README.md", "dataset_infos.json"


def stated_names(folder: DataFolder, file: Path, log: ConversionLog) -> Sequence[str]:
    """Returns the names of the classes 0, 1, ... by the data set of `file`, none if it has none.

    The nearest folder above `file` counts, and `README.md` before `dataset_infos.json`.
    """
    stating = [f for f in folder.files if f.name in (_CARD, INFOS) and f.parent in file.parents]
    for other in sorted(stating, key=lambda other: (-len(other.parts), other.name != _CARD)):
        try:
            names = class_names(_front_matter(other) if other.name == _CARD else read_json(other))
        except UserError as error:
            where = folder.relative(other)
            log.add("no class names can be read", where, error.what, action="file passed over")
            continue
        if names:
            return names
    return ()


def class_names(content: Any) -> Sequence[str]:  # noqa: ANN401
    """Returns the names of the first class label below the column `objects`.

    It is `{_type: ClassLabel, names: [a, b]}`, or `class_label: {names: {'0': a, '1': b}}` in
    `README.md`.
    """
    columns = (
        one.get("objects", one if one.get("name") == "objects" else None)
        for one in _mappings(content)
    )
    for one in _mappings(next(filter(None, columns), None)):
        label = one if one.get("_type") == "ClassLabel" else one.get("class_label")
        names = label.get("names") if isinstance(label, dict) else None
        if isinstance(names, dict):
            names = [names.get(str(number), "") for number in range(len(names))]
        if names and isinstance(names, list):
            return [str(name) for name in names]
    return ()


def _mappings(content: Any) -> Iterator[dict[str, Any]]:  # noqa: ANN401
    """Yields all mappings, those outside first; not recursive, since the depth has no bound."""
    left = [content]
    while left:
        one = left.pop()
        if isinstance(one, dict):
            yield one
        inner = one.values() if isinstance(one, dict) else one if isinstance(one, list) else ()
        left.extend(reversed(list(inner)))


def _front_matter(file: Path) -> Any:  # noqa: ANN401
    """Returns the YAML between the first two lines of `---`, None if there is none."""
    first, *lines = read_text_file(file, fix="save it as text").split("\n")
    rules = [place for place, line in enumerate(lines) if line.rstrip() == "---"]
    if first.rstrip() != "---" or not rules:
        return None
    # An empty line in place of the first, so that errors have the right number.
    return compose("\n".join(["", *lines[: rules[0]]]), str(file)).plain()
