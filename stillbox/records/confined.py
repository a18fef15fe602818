"""Image files that annotations name: always inside the folder of the images.

Annotations are not trusted. A name such as `../../x`, an absolute one, or one that
passes through a symbolic link could make any file of this machine part of the records.
"""

import json
import os
from pathlib import Path, PurePosixPath, PureWindowsPath
from xml.sax.saxutils import escape

from stillbox.errors import UserError
from stillbox.untrusted import read_untrusted

# A message is not worth a second reading of more.
_MOST_SEARCHED = 2**28


class ImageRoot:
    """The folder that the image names of an annotation may not leave."""

    def __init__(self, folder: str | Path) -> None:
        self.folder = Path(folder)
        self._real = os.path.realpath(folder)
        self._inside: dict[str, bool] = {}

    def path(self, name: str, annotation: Path, near: Path | None = None) -> Path:
        """Returns the path of an image name, which need not exist.

        Args:
            name: as the annotation has it, relative to `near`.
            annotation: the file with the name, for messages.
            near: a folder inside this one; by default this one.

        Raises:
            UserError: the name is absolute or leads out of the folder.
        """
        written = name.replace("\\", "/")
        absolute = PurePosixPath(written).is_absolute() or PureWindowsPath(name).drive
        path = Path(os.path.normpath((near or self.folder) / written))
        if absolute or "\0" in name or not self.holds(path):
            linked = not absolute and path.is_relative_to(self.folder)
            through = ", through a symbolic link" if linked else ""
            fix = f"let the name be relative to {self.folder} and stay in it"
            if linked:
                fix = f"copy the images to {path.parent}, or give a folder that holds both"
            raise UserError(
                f"the image name {name!r} leads out of the folder of the images{through}",
                where=line_of(annotation, name),
                fix=fix,
            )
        return path

    def holds(self, path: Path) -> bool:
        """Tells whether a path stays inside after all symbolic links; it is not opened."""
        if not path.is_relative_to(self.folder):
            return False
        parent = str(path.parent)
        if parent not in self._inside:
            self._inside[parent] = self._below(os.path.realpath(parent))
        # os.path: a name that is too long for a file is no link, and no error.
        return self._inside[parent] and (
            not os.path.islink(path) or self._below(os.path.realpath(path))  # noqa: PTH114
        )

    def _below(self, real: str) -> bool:
        return real == self._real or real.startswith(self._real.rstrip("/") + "/")


def line_of(file: Path, text: str) -> str:
    """Returns `file:line` of the first line with a text, which may be escaped as JSON or XML."""
    try:
        content = read_untrusted(file, most=_MOST_SEARCHED)
    except UserError:
        return str(file)
    spellings = (text, json.dumps(text)[1:-1], json.dumps(text, ensure_ascii=False)[1:-1])
    for spelling in (*spellings, escape(text, {'"': "&quot;"})):
        at = content.find(spelling.encode(errors="replace")) if spelling else -1
        if at >= 0:
            return f"{file}:{content.count(10, 0, at) + 1}"
    return str(file)
