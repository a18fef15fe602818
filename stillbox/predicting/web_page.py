"""The web page that shows the detections in images: of the server, and of exports for browsers.

Its scripts import `detect` from `api.js`, which the publisher of the page adds.
"""

import re
from collections.abc import Mapping
from pathlib import Path

from stillbox.predicting.selection import IOU, MIN_SCORE
from stillbox.printing import html_text

FOLDER = Path(__file__).with_name("page")
_INDEX = "index.html"
_VALUES: Mapping[str, object] = {
    "min_score": MIN_SCORE,
    "iou": IOU,
    "classes_per_object": "one",
    "max_body": "Infinity",
}
_PARTS = ("head", "note", "dialog")
_FIELD = re.compile(r"\{([A-Z_]+)\}")


def render_index(values: Mapping[str, object], parts: Mapping[str, str]) -> str:
    """Returns `index.html`, which refers to the other files as `page/NAME`.

    Args:
        values: `name`, and other values than the defaults of `min_score`, `iou`,
            `classes_per_object` and `max_body` (bytes of an image file); they are escaped.
        parts: HTML of `head`, `note` (in the empty page) and `dialog`; nothing by default.
    """
    texts = {name: html_text(str(value)) for name, value in {**_VALUES, **values}.items()}
    texts |= dict.fromkeys(_PARTS, "") | dict(parts)
    index = (FOLDER / _INDEX).read_text(encoding="utf-8")
    return _FIELD.sub(lambda field: texts[field[1].lower()], index)


def page_files(*folders: Path) -> dict[str, bytes]:
    """Returns all files of the page and of the given folders by name, without `index.html`."""
    return {
        path.name: path.read_bytes()
        for folder in (FOLDER, *folders)
        for path in sorted(folder.iterdir())
        if path.suffix in (".css", ".js", ".svg")
    }
