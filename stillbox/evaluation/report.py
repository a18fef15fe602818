"""The content of the report of an evaluation."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

from stillbox.evaluation.analysis import Analysis
from stillbox.evaluation.history import History
from stillbox.evaluation.mistakes import Kind
from stillbox.evaluation.pictures import Mark, Picture, beside, draw_marks
from stillbox.evaluation.scores import Scores


@dataclass(frozen=True, kw_only=True)
class ReportPicture:
    """An image of the report, drawn once for each of its panels."""

    image: Picture
    """`[H, W, 3]` uint8 RGB."""
    panels: Sequence[tuple[str, Sequence[Mark]]]
    """Caption and marks."""
    name: str
    about: str
    """Caption of all."""

    @cached_property
    def picture(self) -> Picture:
        """The panels side by side, `[H, W, 3]` uint8 RGB."""
        drawn = [draw_marks(self.image, marks) for _, marks in self.panels]
        return beside(drawn, [caption for caption, _ in self.panels])


@dataclass(frozen=True, kw_only=True)
class Cutout:
    """A mistake in its surroundings."""

    kind: Kind
    image: Picture
    """The part of the image, `[H, W, 3]` uint8 RGB."""
    marks: Sequence[Mark]
    """Objects, dashed, the one in question in the colour of its class, and the detection; pixels of
    the part."""
    about: str


@dataclass(frozen=True, kw_only=True)
class Report:
    """The content of a report; empty sections are left out."""

    title: str
    scores: Scores
    analysis: Analysis
    subtitle: str = ""
    all_class_metrics: bool = False
    """Show all twelve of COCO's numbers for every class."""
    history: History = field(default_factory=History)
    pictures: Sequence[ReportPicture] = ()
    cutouts: Sequence[Cutout] = ()
    facts: Mapping[str, str] = field(default_factory=dict)
    """The experiment in a few lines."""
    config_text: str = ""
    """The whole experiment, as YAML."""
    timings: Mapping[str, str] = field(default_factory=dict)
    """Durations, with units."""
    warnings: Sequence[str] = ()
