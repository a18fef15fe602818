"""The messages that a `pipeline.config` may hold."""

import functools
from pathlib import Path

from stillbox.textformat.schema import Schema, parse_schema

ROOT = "TrainEvalPipelineConfig"
"""The message that a whole file is."""


@functools.cache
def load_schema() -> Schema:
    """Returns all messages and enums of the language, read from `messages.txt`."""
    return parse_schema((Path(__file__).parent / "messages.txt").read_text(encoding="utf-8"))
