"""The list of the files that stillbox has written into a folder, where files of others may lie too.

A name is listed before its file is written. Commands replace what is listed, and nothing else.
"""

from collections.abc import Collection, Iterable
from os.path import lexists
from pathlib import Path

from stillbox.errors import UserError
from stillbox.printing import json_text
from stillbox.records.files import refuse_url, remove_partial_files, write_whole
from stillbox.records.foreign_files import read_json
from stillbox.references import Parameter

LIST = ".stillbox.json"


def refuse_others(folder: Path, names: Iterable[str], *, known: Collection[str] = ()) -> None:
    """Refuses to replace a file of somebody else.

    Args:
        folder: of the files; it need not exist.
        names: what is to be written, as paths below the folder; a folder stands for all it holds.
        known: names that are stillbox's although the list lacks them.

    Raises:
        UserError: a file of such a name, or a folder that is not empty, is there and not listed;
            or the place is a URL.
    """
    _refuse(folder, names, {*known, *_listed(folder)})


def _refuse(folder: Path, names: Iterable[str], listed: Collection[str]) -> None:
    for name in names:
        refuse_url(folder / name)
        if name not in listed and _is_taken(folder / name):
            problem = "this would be replaced, and stillbox did not write it"
            fix = f"move it away, or choose another {Parameter('output')}"
            raise UserError(problem, where=str(folder / name), fix=fix)


def claim_files(folder: Path, names: Iterable[str], *, known: Collection[str] = ()) -> None:
    """Lists what is about to be written, and removes what killed writers of it have left.

    The arguments are as in `refuse_others`.

    Raises:
        UserError: see `refuse_others`; or the list cannot be written.
    """
    names, listed = [*names], _listed(folder)
    _refuse(folder, names, {*known, *listed})
    if not listed.issuperset(names):
        content = json_text({"written": sorted(listed.union(names))}, indent=0)
        write_whole(folder / LIST, content.encode(), below=folder)
    inner = (folder / name for name in names)
    for place in (folder, *(path for path in inner if path.is_dir() and not path.is_symlink())):
        remove_partial_files(place)


def _listed(folder: Path) -> set[str]:
    path = folder / LIST
    if not lexists(path):
        return set()
    content = read_json(path)
    names = content.get("written") if isinstance(content, dict) else None
    if not isinstance(names, list):
        problem = "the list of stillbox's files is damaged"
        fix = "remove it, and the files it names"
        raise UserError(problem, where=str(path), fix=fix)
    return set(map(str, names))


def _is_taken(path: Path) -> bool:
    if path.is_dir() and not path.is_symlink():
        return any(path.iterdir())
    return lexists(path)
