"""Converts records with Apache Beam, to the same bytes in the same shards as without it.

No image passes through Beam. Its workers read every image twice: once to find out whether it
becomes a record, which decides the places of all later records, and once to write its shard.
"""

import pickle
from bisect import bisect
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from uuid import uuid4

from stillbox.errors import UserError
from stillbox.extras import import_extra
from stillbox.records.annotations import AnnotatedImage
from stillbox.records.conversion import ConversionJob, ConvertedImage, convert_image
from stillbox.records.files import partial_folder
from stillbox.records.tfrecord import name_shards, prepare_folder, tfrecord_writer

_CHUNK = 250
# Beam's own default downloads a runner from GitHub.
_RUNNER = "FnApiRunner"
_FAILED = -1
"""Index of an error that ends the conversion."""


@contextmanager
def convert_with_beam(
    job: ConversionJob, items: Sequence[AnnotatedImage], *, options: Sequence[str] = ()
) -> Iterator[Iterator[ConvertedImage]]:
    """The engine that uses a Beam pipeline. Its workers need images and output at the same paths.

    Args:
        options: of Beam, as `--runner=FlinkRunner`; without a runner, Beam's direct runner in this
            process.

    Raises:
        UserError: Beam is not installed, the set exists already, or another process writes it.
    """
    import_extra("apache_beam", "beam")
    old_files = prepare_folder(job.output, job.name, job.shards, overwrite=job.options.overwrite)
    with partial_folder(job.output.absolute() / f"{job.name}.beam") as folder:
        # Workers of a conversion that was killed may still write into theirs.
        scratch = folder / uuid4().hex
        scratch.mkdir()
        yield _outcomes(job, items, options, scratch)
        complete = sorted(scratch.glob("shard-*"))
        for old in old_files:
            old.unlink(missing_ok=True)
        name_shards(complete, job.output, job.name, job.options.shard_names)


def _outcomes(
    job: ConversionJob, items: Sequence[AnnotatedImage], options: Sequence[str], scratch: Path
) -> Iterator[ConvertedImage]:
    """Runs the pipeline and yields the outcome of each image, in order."""
    chunks = []
    for start in range(0, len(items), _CHUNK):
        chunks.append(str(scratch / f"chunk-{start:012d}"))
        numbered = list(enumerate(items[start : start + _CHUNK], start))
        Path(chunks[-1]).write_bytes(pickle.dumps(numbered))
    _run(job, chunks, options, str(scratch))
    for chunk in chunks:
        for outcome in pickle.loads(_outcomes_file(chunk).read_bytes()):
            if isinstance(outcome, UserError):
                raise outcome
            yield outcome


def _run(job: ConversionJob, chunks: list[str], arguments: Sequence[str], scratch: str) -> None:
    import apache_beam as beam
    from apache_beam.options.pipeline_options import PipelineOptions, StandardOptions

    options = PipelineOptions(list(arguments))
    standard = options.view_as(StandardOptions)
    standard.runner = standard.runner or _RUNNER
    with beam.Pipeline(options=options) as pipeline:
        checked = (
            pipeline
            | "Chunks" >> beam.Create(chunks)
            | "Spread" >> beam.Reshuffle()
            | "Check" >> beam.FlatMap(_check, job)
        )
        left_out = (
            checked
            | "Left out" >> beam.FlatMap(_left_out)
            | "Together" >> beam.combiners.ToList()
            | "In order" >> beam.Map(sorted)
        )
        places = beam.pvalue.AsSingleton(left_out)
        (
            checked
            | "Assign" >> beam.FlatMap(_assign, job.shards, places)
            | "By shard" >> beam.GroupByKey()
            | "Write" >> beam.Map(_write, job, scratch)
        )


def _outcomes_file(chunk: str) -> Path:
    return Path(chunk.replace("chunk-", "outcomes-"))


def _check(chunk: str, job: ConversionJob) -> Iterator[tuple[int, AnnotatedImage | None]]:
    """Writes the outcomes of a chunk; yields its images, or None for one that is left out."""
    outcomes: list[ConvertedImage | UserError] = []
    for index, item in pickle.loads(Path(chunk).read_bytes()):
        try:
            _, outcome = convert_image(job, item)
        except UserError as error:
            outcomes.append(error)
            yield _FAILED, None
            break
        outcomes.append(outcome)
        yield index, None if outcome.class_ids is None else item
    # Under a temporary name first: a runner may process a chunk twice at the same time.
    partial = Path(f"{chunk}.{uuid4().hex}")
    partial.write_bytes(pickle.dumps(outcomes))
    partial.replace(_outcomes_file(chunk))


def _left_out(checked: tuple[int, AnnotatedImage | None]) -> Iterator[int]:
    index, item = checked
    if item is None:
        yield index


def _assign(
    checked: tuple[int, AnnotatedImage | None], shards: int, left_out: list[int]
) -> Iterator[tuple[int, tuple[int, AnnotatedImage]]]:
    """Yields shard and place of an image, unless the conversion has failed."""
    index, item = checked
    if item is not None and _FAILED not in left_out[:1]:
        place = index - bisect(left_out, index)
        yield place % shards, (place, item)


def _write(
    grouped: tuple[int, Iterable[tuple[int, AnnotatedImage]]], job: ConversionJob, scratch: str
) -> None:
    """Writes one shard as `shard-<number>`."""
    shard, placed = grouped
    own = Path(scratch) / uuid4().hex
    with tfrecord_writer(own) as write:
        for _, item in sorted(placed, key=lambda one: one[0]):
            payload, _ = convert_image(job, item)
            if payload is None:
                raise UserError("the image has changed during the conversion", where=item.where)
            write(payload)
    own.replace(Path(scratch) / f"shard-{shard:05d}")
