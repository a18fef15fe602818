"""From the paths of a data set, patterns among them, to its files."""

import glob
import re
from collections.abc import Iterable, Sequence
from pathlib import Path

from stillbox.errors import UserError, nearest

_SHARDS = re.compile(r"(?P<stem>.+)@(?P<count>\d+)(?P<ending>\.\w+)?$")
_OF = re.compile(r"(?P<stem>.+)-(?P<shard>\d{5})-of-(?P<count>\d{5})(?P<ending>\.\w+)?$")
_SHOWN = 8


def expand(paths: Sequence[str]) -> list[Path]:
    """Returns the files that the paths mean, sorted within each pattern and without repetition.

    Args:
        paths: files, glob patterns (`*`, `?`, `[...]`), or `name@10` for `name-00000-of-00010` and
            its nine sisters; `name@10.tfrecord` where their names end so.

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


def missing_shards(files: Iterable[Path]) -> list[str]:
    """Returns what is absent from sets of which some `-of-00010` files were named.

    Each entry is a phrase such as `train.record: 1 of 10 shards`.
    """
    found: dict[tuple[str, int], set[int]] = {}
    for file in files:
        match = _OF.match(file.name)
        if match:
            name = file.with_name(match["stem"] + (match["ending"] or ""))
            key = (str(name), int(match["count"]))
            found.setdefault(key, set()).add(int(match["shard"]))
    return [
        f"{name}: {len(shards)} of {count} shards"
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
            "this is a folder, not a record file", where=pattern, fix=_what_lies_in(path, "")
        )
    match = _SHARDS.match(str(path))
    if match:
        return _numbered(pattern, match["stem"], int(match["count"]), match["ending"] or "")
    matches = glob.glob(str(path))  # noqa: PTH207 - Path.glob takes no absolute pattern
    files = sorted(Path(name) for name in matches if not Path(name).is_dir())
    if not files:
        what = "matches no file" if glob.has_magic(pattern) else "there is no such file"
        raise UserError(what, where=pattern, fix=_nearby(path))
    return files


def _numbered(pattern: str, stem: str, count: int, ending: str) -> list[Path]:
    files = [Path(f"{stem}-{shard:05d}-of-{count:05d}{ending}") for shard in range(count)]
    absent = [file for file in files if not file.is_file()]
    if absent or not files:
        raise UserError(
            f"{len(absent)} of {count} shards are absent",
            where=pattern,
            fix=_nearby(absent[0]) if absent else "give a number of shards above 0",
        )
    return files


def _nearby(path: Path) -> str:
    """Leads from a path that leads nowhere to what is there."""
    folder = path.parent
    while not folder.is_dir() and folder != folder.parent:
        folder = folder.parent
    if folder != path.parent:
        wanted = path.parts[len(folder.parts)]
        inside = [entry.name for entry in folder.iterdir() if entry.is_dir()]
        hint = nearest(wanted, inside) if len(inside) <= _SHOWN else nearest(wanted, inside)[:200]
        return f"there is no folder {folder / wanted}; {hint}"
    return _what_lies_in(folder, path.name)


def _what_lies_in(folder: Path, wanted: str) -> str:
    names = sorted(p.name for p in folder.iterdir() if p.is_file() and p.name[0] != ".")
    if not names:
        return f"the folder {folder} holds no file"
    if wanted:
        # A pattern's own characters are no part of the names that it is like.
        hint = nearest(re.sub(r"[*?\[\]]", "0", wanted), names)
        if hint.startswith("did you mean"):
            return f"{hint} (in {folder})"
    shown = ", ".join(names[:_SHOWN]) + (
        f" and {len(names) - _SHOWN} more" if names[_SHOWN:] else ""
    )
    return f"{folder} holds {shown}"
