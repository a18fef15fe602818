"""`object_detection.dataset_tools.tf_record_creation_util`: records in several files."""

import contextlib
from collections.abc import Callable
from pathlib import Path

from stillbox.records.tfrecord import tfrecord_writer


class RecordWriter:
    """A file of records that is being written.

    Args:
        append: adds a record.
    """

    def __init__(self, append: Callable[[bytes], None]) -> None:
        self._append = append

    def write(self, record: bytes) -> None:
        """Adds the bytes of an example."""
        self._append(record)


def open_sharded_output_tfrecords(
    exit_stack: contextlib.ExitStack, base_path: str, num_shards: int
) -> list[RecordWriter]:
    """Opens `BASE-00000-of-00010` and so on; the files appear when the stack is closed.

    Args:
        exit_stack: of `contextlib` or `contextlib2`.
        base_path: beginning of the names.
        num_shards: files.

    Raises:
        UserError: the disk does not take them.
    """
    paths = [Path(f"{base_path}-{shard:05d}-of-{num_shards:05d}") for shard in range(num_shards)]
    return [RecordWriter(exit_stack.enter_context(tfrecord_writer(path))) for path in paths]
