"""The examples of a data set on disk, in any order, from any thread."""

import hashlib
import json
import threading
from collections.abc import Sequence
from functools import partial
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from stillbox.errors import UserError
from stillbox.printing import count_text
from stillbox.records.boxes_policy import apply_box_policy
from stillbox.records.example import Example
from stillbox.records.framing import RecordError
from stillbox.records.index import RecordFile
from stillbox.records.label_map import LabelMap
from stillbox.records.parallel import ordered_map
from stillbox.records.patterns import expand, missing_shards
from stillbox.records.problems import (
    BadRecordError,
    BoxPolicy,
    ProblemLog,
    RecordPolicy,
    with_detail,
)
from stillbox.records.tf_example import ParsedExample, parse_example

_OPENED_AT_ONCE = 16


class ExampleSource:
    """The examples of a set of TFRecord files.

    The files are opened, indexed and counted here; records are read on demand. The problems of a
    record are added to `problems` once, however often it is read.

    Args:
        paths: files and patterns (`patterns.expand`). Records are in the order of the sorted files,
            which does not depend on the file system.
        label_map: turns class texts into ids; without it, the labels are the ids.
        use_display_name: match class texts against display names.
        bad_records: policy for records that cannot be read.
        bad_boxes: see `boxes_policy`.
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
        sample_1_of_n: int = 1,
    ) -> None:
        self.problems = ProblemLog()
        self.label_map = label_map
        self.where = ", ".join(paths)
        self._use_display_name = use_display_name
        self._bad_records, self._bad_boxes = bad_records, bad_boxes
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
        self._reviewed = np.zeros(len(self), np.bool_)
        self._rejected = np.zeros(len(self), np.bool_)
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
        if self._first_time(self._reviewed, index):
            add = self.problems.add
            for p in problems:
                add(p.reason, f"{where}, box {p.box}", p.detail, action=f"box {p.action}")
            for detail in parsed.wrong_lists:
                add("optional column of wrong length", where, detail, action="left out")
            for detail in parsed.disagreeing:
                add("class text and label differ", where, detail, action="text used")
        return example

    def reject(
        self, index: int, reason: str, detail: str = "", *, fix: str = "write this record again"
    ) -> None:
        """Leaves out an unusable record, such as one whose image cannot be decoded.

        Raises:
            UserError: under policy `fail`, with file, record number and reason.
        """
        where = self.location(index)
        if self._bad_records == "fail":
            fix = f"{fix}, or set data.bad_records=drop to go on without it"
            raise UserError(with_detail(reason, detail), where=where, fix=fix)
        if self._first_time(self._rejected, index):
            self.problems.add(reason, where, detail, action="record left out")

    def location(self, index: int) -> str:
        """Returns `file: record n (byte b)` of an example; records are counted from 0."""
        file, record = self._find(index)
        return file.location(record)

    def _find(self, index: int) -> tuple[RecordFile, int]:
        if not 0 <= index < len(self):
            raise IndexError(f"record {index} of {len(self)}")
        at = index * self._step
        shard = int(np.searchsorted(self._starts, at, side="right")) - 1
        return self.files[shard], at - int(self._starts[shard])

    def _first_time(self, done: NDArray[np.bool_], index: int) -> bool:
        with self._lock:
            first = not done[index]
            done[index] = True
            return first

    def _open(self, paths: Sequence[Path]) -> list[RecordFile]:
        # Building an index waits for the disk; network file systems serve many requests at once.
        opening = partial(RecordFile, salvage=self._bad_records == "drop")
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
