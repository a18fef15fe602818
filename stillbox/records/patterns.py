"""Expands paths and patterns to files."""

import glob
import re
from collections.abc import Iterable, Sequence
from pathlib import Path

from stillbox.errors import UserError, nearest
from stillbox.printing import count_text, printable_line

_SHARDS = re.compile(r"(?P<stem>.+)@(?P<count>\d+)(?P<ending>\.\w+)?$")
_OF = re.compile(r"(?P<stem>.+)-(?P<shard>\d{5})-of-(?P<count>\d{5})(?P<ending>\.\w+)?$")
_BESIDE = re.compile(r".+\.report\.(json|txt)|conversion\.(json|txt)|.+\.pbtxt")
"""Names of reports and label maps, which lie beside records."""
_SHOWN = 8
_LONGEST_HINT = 200


def expand(paths: Sequence[str]) -> list[Path]:
    """Returns the files of the paths, sorted within each pattern and without repetition.

    A path is a file, a glob pattern (`*`, `?`, `[...]`), `name@10` for `name-00000-of-00010` to
    `name-00009-of-00010`, or `name@10.tfrecord` for names with that ending. A pattern passes over
    the reports and label maps that conversions write.

    Raises:
        UserError: no path is given, a pattern matches nothing, or a shard of `name@10` is absent.
    """
    if not paths:
        raise UserError(
            "no record file is named", fix="give one or more TFRecord files or patterns"
        )
    files: dict[Path, None] = {}
    for pattern in paths:
        files |= dict.fromkeys(_expand_one(pattern))
    return list(files)


def glob_files(pattern: Path, *, recursive: bool = False) -> list[Path]:
    """Returns what a pattern matches, sorted.

    Folders in front that exist under the very name, as `run[1]`, are no pattern.
    """
    there = pattern
    while not there.exists() and there != there.parent:
        there = there.parent
    words = str(Path(glob.escape(str(there)), pattern.relative_to(there)))
    return sorted(map(Path, glob.glob(words, recursive=recursive)))  # noqa: PTH207 - is absolute


def missing_shards(files: Iterable[Path]) -> list[str]:
    """Returns a phrase such as `train.record: 1 of 10 shards` for each incomplete set."""
    found: dict[tuple[str, int], set[int]] = {}
    for file in files:
        if match := _OF.match(file.name):
            name = file.with_name(match["stem"] + (match["ending"] or ""))
            key = (str(name), int(match["count"]))
            found.setdefault(key, set()).add(int(match["shard"]))
    return [
        f"{name}: {len(shards)} of {count_text(count, 'shard')}"
        for (name, count), shards in found.items()
        if len(shards) < count
    ]


def _expand_one(pattern: str) -> list[Path]:
    if "://" in pattern:
        raise UserError(
            "records are read from this machine's disk only",
            where=pattern,
            fix="copy the files here or mount the bucket, and give that path",
        )
    path = Path(pattern).expanduser()
    if path.is_file():
        return [path]
    if path.is_dir():
        raise UserError(
            "this is a folder, not a record file", where=pattern, fix=_content_of(path, "")
        )
    if match := _SHARDS.match(str(path)):
        return _numbered(pattern, match["stem"], int(match["count"]), match["ending"] or "")
    found = (file for file in glob_files(path) if not file.is_dir())
    files = [file for file in found if not _BESIDE.fullmatch(file.name)]
    if not files:
        what = "matches no file" if glob.has_magic(pattern) else "there is no such file"
        raise UserError(what, where=pattern, fix=_nearby(path))
    return files


def _numbered(pattern: str, stem: str, count: int, ending: str) -> list[Path]:
    files = [Path(f"{stem}-{shard:05d}-of-{count:05d}{ending}") for shard in range(count)]
    absent = [file for file in files if not file.is_file()]
    if absent or not files:
        raise UserError(
            f"absent: {len(absent)} of {count_text(count, 'shard')}",
            where=pattern,
            fix=_nearby(absent[0]) if absent else "give a number of shards above 0",
        )
    return files


def _nearby(path: Path) -> str:
    """Suggests what a path that does not exist may have been meant to be."""
    folder = path.parent
    while not folder.is_dir() and folder != folder.parent:
        folder = folder.parent
    if folder != path.parent:
        wanted = path.parts[len(folder.parts)]
        inside = [entry.name for entry in folder.iterdir() if entry.is_dir()]
        return f"there is no folder {folder / wanted}; {nearest(wanted, inside)[:_LONGEST_HINT]}"
    return _content_of(folder, path.name)


def _content_of(folder: Path, wanted: str) -> str:
    names = sorted(p.name for p in folder.iterdir() if p.is_file() and p.name[0] != ".")
    if not names:
        return f"the folder {folder} holds no file"
    if wanted:
        # The characters of the pattern are not part of a file name.
        hint = nearest(re.sub(r"[*?\[\]]", "0", wanted), names)
        if hint.startswith("did you mean"):
            return f"{hint} (in {folder})"
    more = f" and {len(names) - _SHOWN} more" if names[_SHOWN:] else ""
    return f"{folder} holds {printable_line(', '.join(names[:_SHOWN]))}{more}"
