"""What a conversion found and wrote, as numbers, as tables and as files."""

import io
import json
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from stillbox.records.problems import ProblemLog
from stillbox.records.tfrecord import PARTIAL


@dataclass(kw_only=True)
class ConversionReport:
    """What a conversion found and wrote."""

    name: str
    """The set."""
    files: list[str] = field(default_factory=list)
    """Shards, in order."""
    images_found: int = 0
    """Images that the annotations name."""
    images_written: int = 0
    """Records."""
    images_without_boxes: int = 0
    """Background images among the records."""
    boxes_found: int = 0
    """Boxes in the annotations."""
    boxes_written: int = 0
    """Boxes in the records."""
    boxes_per_class: dict[str, int] = field(default_factory=dict)
    """Boxes in the records by class, in the order of the ids; classes without any included."""
    settings: dict[str, Any] = field(default_factory=dict)
    """The policies that held."""
    problems: list[dict[str, object]] = field(default_factory=list)
    """Reason, outcome, count and first cases."""

    def table(self) -> Table:
        """Returns the counts as a table."""
        table = Table(title=f"Set {self.name!r}", title_justify="left")
        table.add_column("")
        table.add_column("found", justify="right")
        table.add_column("written", justify="right")
        table.add_row("images", f"{self.images_found:,}", f"{self.images_written:,}")
        table.add_row("  without a box", "", f"{self.images_without_boxes:,}")
        table.add_row("boxes", f"{self.boxes_found:,}", f"{self.boxes_written:,}")
        table.add_row("shards", "", f"{len(self.files):,}")
        return table

    def class_table(self) -> Table:
        """Returns the boxes of every class as a table."""
        table = Table(title="Boxes written", title_justify="left")
        table.add_column("class")
        table.add_column("boxes", justify="right")
        for name, boxes in self.boxes_per_class.items():
            table.add_row(Text(name), f"{boxes:,}")
        return table

    def write(self, output: Path, problems: ProblemLog) -> None:
        """Leaves the report as `<name>.report.json` and, for people, `<name>.report.txt`."""
        content = json.dumps(asdict(self), indent=2, ensure_ascii=False) + "\n"
        write_text(output / f"{self.name}.report.json", content)
        console = Console(record=True, width=140, file=io.StringIO())
        console.print(self.table())
        console.print(self.class_table())
        if len(problems):
            console.print(problems.table())
        write_text(output / f"{self.name}.report.txt", console.export_text())


def write_text(path: Path, text: str) -> None:
    """Writes a small file so that it is there whole or not at all."""
    partial = path.with_name(f".{path.name}{PARTIAL}")
    partial.write_text(text, encoding="utf-8")
    partial.replace(path)
