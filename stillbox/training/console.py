"""Consoles of rich: the control sequences of a terminal are rich's own, never those of a text."""

import sys
from collections.abc import Iterable
from typing import Any

from rich.console import Console, ConsoleOptions, RenderableType
from rich.segment import Segment

from stillbox.printing import own_stream, printable


class PrintableConsole(Console):
    """A console that spells out in every text what a terminal would act on.

    Args:
        stderr: prints to standard error.
        options: those of rich.
    """

    def __init__(self, *, stderr: bool = False, **options: Any) -> None:  # noqa: ANN401
        file = own_stream(sys.stderr if stderr else sys.stdout)
        super().__init__(file=file, stderr=stderr, **options)

    def render(
        self, renderable: RenderableType, options: ConsoleOptions | None = None
    ) -> Iterable[Segment]:
        """Yields the segments of a renderable; also of those inside of others."""
        for text, style, control in super().render(renderable, options):
            yield Segment(text if control else printable(text), style, control)
