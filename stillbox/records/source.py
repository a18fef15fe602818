"""Reads the examples of a data set in any order, from any thread; expands patterns of files."""

import glob
import hashlib
import json
import re
import threading
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from fnmatch import fnmatchcase
from functools import partial
from pathlib import Path, PurePath
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from stillbox.errors import UserError, nearest
from stillbox.object_storage import ObjectFolder, ObjectPath, url_of
from stillbox.printing import count_text, printable_line
from stillbox.records.example import (
    CLASS_ZERO,
    UNKNOWN_CLASS,
    BoxProblem,
    Example,
    apply_box_policy,
)
from stillbox.records.label_map import LabelMap
from stillbox.records.parallel import ordered_map
from stillbox.records.problems import (
    BadRecordError,
    BoxPolicy,
    Problem,
    ProblemLog,
    RecordPolicy,
    one_case,
    with_detail,
)
from stillbox.records.record_file import RecordFile
from stillbox.records.tf_example import ParsedExample, parse_example
from stillbox.records.tfrecord import DROP_RECORDS, RecordError
from stillbox.untrusted import named_path

_SHARDS = re.compile(r"(?P<stem>.+)@(?P<count>\d{1,5})(?P<ending>\.\w+)?$")
_OF = re.compile(r"(?P<stem>.+)-(?P<shard>\d{5})-of-(?P<count>\d{5})(?P<ending>\.\w+)?$")
_BESIDE = re.compile(r".+\.report\.(json|txt|html)|conversion\.(json|txt|html)|.+\.pbtxt")
"""Names of reports, pages and label maps, which lie beside records."""
_WILD = re.compile(r"[*?\[\]]")
_SHOWN = 8
_LONGEST_HINT = 200


def expand(paths: Sequence[str]) -> list[PurePath]:
    """Returns the files of the paths, sorted within each pattern and without repetition.

    A path, or a URL such as `s3://bucket/train*`, is a file, a glob pattern (`*`, `?`, `[...]`),
    `name@10` for `name-00000-of-00010` to `name-00009-of-00010`, or `name@10.tfrecord` for names
    with that ending. A pattern passes over the reports, pages and label maps that conversions
    write.

    Raises:
        UserError: no path is given, a pattern matches nothing, or a shard of `name@10` is absent.
    """
    if not paths:
        fix = "give one or more TFRecord files or patterns"
        raise UserError("no record file is named", fix=fix)
    return list(dict.fromkeys(file for pattern in paths for file in _expand_one(pattern)))


def glob_files(pattern: Path, *, recursive: bool = False) -> list[Path]:
    """Returns the sorted matches of a pattern; existing folders in it, as `run[1]`, are literal."""
    there = pattern
    while not there.exists() and there != there.parent:
        there = there.parent
    words = str(Path(glob.escape(str(there)), pattern.relative_to(there)))
    return sorted(map(Path, glob.glob(words, recursive=recursive)))  # noqa: PTH207 - is absolute


def missing_shards(files: Iterable[PurePath]) -> list[str]:
    """Returns a phrase such as `train.record: 1 of 10 shards` for each incomplete set."""
    sets: dict[tuple[str, int], set[int]] = {}
    for file in files:
        if match := _OF.match(file.name):
            name = file.with_name(match["stem"] + (match["ending"] or ""))
            key = (str(name), int(match["count"]))
            sets.setdefault(key, set()).add(int(match["shard"]))
    return [
        f"{name}: {len(shards)} of {count_text(count, 'shard')}"
        for (name, count), shards in sets.items()
        if len(shards) < count
    ]


def _expand_one(pattern: str) -> Sequence[PurePath]:
    if url := url_of(pattern):
        return _expand_url(url)
    path = named_path(pattern)
    if path.is_file():
        return [path]
    if path.is_dir():
        problem = "this is a folder, not a record file"
        raise UserError(problem, where=pattern, fix=_content_of(path, ""))
    if match := _SHARDS.match(str(path)):
        return _numbered(pattern, match["stem"], int(match["count"]), match["ending"] or "")
    matches = (file for file in glob_files(path) if not file.is_dir())
    files = [file for file in matches if not _BESIDE.fullmatch(file.name)]
    if not files:
        problem = "matches no file" if glob.has_magic(pattern) else "there is no such file"
        raise UserError(problem, where=pattern, fix=_nearby(path))
    return files


def _numbered(pattern: str, stem: str, count: int, ending: str) -> list[Path]:
    files = [Path(_shard_name(stem, shard, count, ending)) for shard in range(count)]
    absent = [file for file in files if not file.is_file()]
    if absent or not files:
        raise _no_shards(pattern, len(absent), count, _nearby(absent[0]) if absent else "")
    return files


def _expand_url(url: str) -> list[PurePath]:
    """Returns the objects of a URL with patterns in any part of it but the bucket."""
    scheme, _, rest = url.partition("://")
    parts = rest.split("/")
    plain = next((n for n, part in enumerate(parts) if glob.has_magic(part)), len(parts) - 1)
    base = f"{scheme}://{'/'.join(parts[:plain])}"
    there = ObjectFolder(base).list()
    wanted = parts[plain:]
    if match := _SHARDS.match(wanted[0]):
        count = int(match["count"])
        stem, ending = match["stem"], match["ending"] or ""
        names = [_shard_name(stem, shard, count, ending) for shard in range(count)]
        absent = [name for name in names if name not in there]
        if absent or not names:
            raise _no_shards(url, len(absent), count, nearest((absent or [""])[0], there))
    else:
        matches = sorted(name for name in there if _fits(name.split("/"), wanted))
        names = [name for name in matches if not _BESIDE.fullmatch(name) or name == wanted[0]]
    if not names:
        problem = "matches no object" if glob.has_magic(url) else "there is no such object"
        # The characters of the pattern are not part of a name.
        hint = f"in {base}: {nearest(_WILD.sub('0', wanted[-1]), there)}"
        raise UserError(problem, where=url, fix=hint[:_LONGEST_HINT])
    return [ObjectPath(f"{base}/{name}") for name in names]


def _fits(parts: Sequence[str], patterns: Sequence[str]) -> bool:
    return len(parts) == len(patterns) and all(map(fnmatchcase, parts, patterns))


def _shard_name(stem: str, shard: int, count: int, ending: str) -> str:
    return f"{stem}-{shard:05d}-of-{count:05d}{ending}"


def _no_shards(pattern: str, absent: int, count: int, hint: str) -> UserError:
    problem = f"absent: {absent} of {count_text(count, 'shard')}"
    return UserError(
        problem, where=pattern, fix=hint if absent else "give a number of shards above 0"
    )


def _nearby(path: Path) -> str:
    """Suggests the path that was meant by one that does not exist."""
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
        hint = nearest(_WILD.sub("0", wanted), names)
        if hint.startswith("did you mean"):
            return f"{hint} (in {folder})"
    more = f" and {len(names) - _SHOWN} more" if names[_SHOWN:] else ""
    return f"{folder} holds {printable_line(', '.join(names[:_SHOWN]))}{more}"


_OPENED_AT_ONCE = 16


class Report(NamedTuple):
    """What one look at a record found."""

    kind: str
    """What was looked at."""
    record: int
    problems: list[Problem]


def spread_indices(count: int, limit: int) -> list[int]:
    """Returns the indices of at most `limit` of `count` records, spread evenly; 0: of all."""
    places = np.linspace(0, count - 1, min(limit or count, count))
    return [int(place) for place in places.round()]


def _set_path(path: PurePath) -> PurePath:
    match = _OF.match(path.name)
    return (path.with_name(match["stem"]) if match else path).with_suffix("")


def _cases(parsed: ParsedExample, problems: Iterable[BoxProblem], where: str) -> Iterator[Problem]:
    for p in problems:
        yield one_case(p.reason, f"{where}, box {p.box}", p.detail, action=f"box {p.action}")
    for detail in parsed.wrong_lists:
        yield one_case("optional column of wrong length", where, detail, action="left out")
    for detail in parsed.disagreeing:
        yield one_case("class text and label differ", where, detail, action="text used")


class ExampleSource:
    """The examples of a set of TFRecord files.

    The files are opened, indexed and counted here; records are read on demand. The problems of a
    record are added to `problems` once, however often it is read.

    Args:
        paths: files and patterns (`expand`). Records are in the order of the sorted files.
        label_map: gives the ids of class texts; without it, the labels are the ids.
        use_display_name: match class texts against display names.
        drop: how the user has bad records left out, for messages.
        sample_1_of_n: use every n-th record, from the first.

    Raises:
        UserError: no file matches, there is no record, or a file is damaged under policy `fail`.
    """

    def __init__(
        self,
        paths: Sequence[str],
        label_map: LabelMap | None = None,
        *,
        use_display_name: bool = False,
        bad_records: RecordPolicy = "fail",
        bad_boxes: BoxPolicy = "fix",
        drop: str = DROP_RECORDS,
        sample_1_of_n: int = 1,
    ) -> None:
        self.problems = ProblemLog()
        self.label_map = label_map
        self.where = ", ".join(paths)
        self._use_display_name = use_display_name
        self._bad_records, self._bad_boxes, self._drop = bad_records, bad_boxes, drop
        self._step = sample_1_of_n
        self.files = self._open(expand(paths))
        self._starts = np.cumsum([0, *map(len, self.files)])
        if self._starts[-1] == 0:
            for damage in filter(None, (file.damage for file in self.files)):
                raise damage
            count, first = len(self.files), self.files[0].path
            raise UserError(
                f"there is no record in {first if count == 1 else f'the {count} files that match'}",
                where=self.where,
                fix="write the records again; a writer that was killed leaves empty files",
            )
        self.reports: deque[Report] | None = None
        """Collects the first report of each kind on each record, for another process."""
        self._reported: dict[str, NDArray[np.bool_]] = {}
        self._lock = threading.Lock()

    def __len__(self) -> int:
        return -(-int(self._starts[-1]) // self._step)

    def fingerprint(self) -> str:
        """Returns a hash of names and sizes of the files, wherever they lie."""
        states = [[file.path.name, file.size] for file in self.files]
        return hashlib.sha256(json.dumps(states).encode()).hexdigest()[:16]

    def parse(self, index: int) -> ParsedExample:
        """Returns a record as it is stored, without any box policy.

        Raises:
            RecordError: its checksums are wrong.
            BadRecordError: its content is no usable example.
        """
        file, record = self._find(index)
        return parse_example(
            file.read(record),
            self.label_map,
            use_display_name=self._use_display_name,
            fallback_id=f"{file.path.name}:{record}",
        )

    def example(self, index: int) -> Example | None:
        """Returns an example with sound boxes, or None if the record is left out.

        Raises:
            UserError: record or box is bad and the policy is `fail`; it names file and record.
        """
        try:
            parsed = self.parse(index)
        except RecordError as error:
            self.reject(index, "unreadable record", error.what)
            return None
        except BadRecordError as error:
            self.reject(index, error.reason, error.detail)
            return None
        example, problems = apply_box_policy(parsed.example, parsed.unknown, self._bad_boxes)
        if not (problems or parsed.wrong_lists or parsed.disagreeing):
            return example
        faults = [f"box {p.box}: {p.reason}: {p.detail}" for p in problems]
        faults += [f"image/object/{detail}" for detail in parsed.wrong_lists]
        where = self.location(index)
        if self._bad_boxes == "fail" and faults:
            fix = "correct the data, or set data.bad_boxes=fix to fix what can be fixed"
            raise UserError(faults[0], where=where, fix=fix)
        self.report("content", index, _cases(parsed, problems, where))
        return example

    def reject(
        self, index: int, reason: str, detail: str = "", *, fix: str = "write this record again"
    ) -> None:
        """Leaves out an unusable record, such as a record of a broken image.

        Raises:
            UserError: under policy `fail`, with file, record number and reason.
        """
        where = self.location(index)
        if self._bad_records == "fail":
            fix = f"{fix}, or {self._drop} to go on without it"
            raise UserError(with_detail(reason, detail), where=where, fix=fix)
        self.report("use", index, [one_case(reason, where, detail, action="record left out")])

    def refuse_unknown_classes(self, fix: str) -> None:
        """Refuses records of which no box was usable, if any has an unknown class.

        Raises:
            UserError: the first such box.
        """
        for problem in self.problems:
            if problem.reason in (UNKNOWN_CLASS, CLASS_ZERO):
                summary = f"no box has a class of the label map; {problem.examples[0]}"
                raise UserError(summary, where=self.where, fix=fix)

    def report(self, kind: str, index: int, problems: Iterable[Problem]) -> None:
        """Counts problems of a record, unless there was a report of this kind on it.

        `problems` are read if they are counted: every epoch finds the same ones.
        """
        with self._lock:
            if kind not in self._reported:
                self._reported[kind] = np.zeros(len(self), np.bool_)
            first = not self._reported[kind][index]
            self._reported[kind][index] = True
        if not first:
            return
        report = Report(kind, index, list(problems))
        self.problems.extend(report.problems)
        if self.reports is not None:
            self.reports.append(report)

    def location(self, index: int) -> str:
        """Returns `file: record n (byte b)` of an example; records are counted from 0."""
        file, record = self._find(index)
        return file.location(record)

    @property
    def sets(self) -> tuple[str, ...]:
        """Names of the files, without numbers of shards and without suffixes."""
        return tuple(path.name for path in dict.fromkeys(_set_path(f.path) for f in self.files))

    def set_of(self, index: int) -> str:
        """Returns the path of an example's file, as `sets` names it."""
        return str(_set_path(self._find(index)[0].path))

    def _find(self, index: int) -> tuple[RecordFile, int]:
        if not 0 <= index < len(self):
            raise IndexError(f"record {index} of {len(self)}")
        at = index * self._step
        shard = int(np.searchsorted(self._starts, at, side="right")) - 1
        return self.files[shard], at - int(self._starts[shard])

    def _open(self, paths: Sequence[PurePath]) -> list[RecordFile]:
        # Building an index waits for the disk; network file systems serve many requests at once.
        opening = partial(RecordFile, salvage=self._bad_records == "drop", drop=self._drop)
        files = list(ordered_map(opening, paths, workers=_OPENED_AT_ONCE))
        for file in files:
            if file.damage is not None:
                where, used = str(file.damage.where), count_text(len(file), "record")
                action = f"what is before it is used: {used}"
                self.problems.add("damaged file", where, file.damage.what, action=action)
            elif len(file) == 0:
                self.problems.add("file without a record", str(file.path), action="passed over")
        for phrase in missing_shards(paths):
            self.problems.add("incomplete set of shards", phrase, action="the rest is used")
        return files
