"""One message of a pipeline.config, read without the rest of the file."""

from collections.abc import Callable
from typing import Any

from stillbox.experiment.pipeline_config.section import MessageSection, load_schema
from stillbox.experiment.sections import ReadLog
from stillbox.textformat.decoder import Decoder
from stillbox.textformat.parser import parse


def read_section(
    read: Callable[[MessageSection, str], Any], message_type: str, text: str
) -> tuple[Any, ReadLog]:
    """Returns what `read` makes of a message of that type, and the log, which is finished."""
    message = Decoder(load_schema()).decode(parse(text, "p"), message_type)
    log = ReadLog()
    section = MessageSection(message, log)
    result = read(section, "here")
    section.finish()
    return result, log


def members_of(family):
    """Returns the members of a family of the schema that the package defines."""
    return [cls for cls in family.variants.values() if cls.__module__.startswith("stillbox.")]
