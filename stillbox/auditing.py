"""`stillbox.audit`: labels that are probably wrong, by a trained model, with its suggestions."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from stillbox.api import Config, Say, local_source, open_scored
from stillbox.devices.setup import prepare_process
from stillbox.evaluation.label_audit import Suspicion
from stillbox.experiment.schema import Experiment
from stillbox.records.example import Example
from stillbox.records.file_list import claim_files, refuse_others
from stillbox.records.files import make_folder, write_whole

if TYPE_CHECKING:
    from stillbox.evaluation.evaluator import EvaluationResult, ImageProgress
    from stillbox.inputs.dataset import Dataset
    from stillbox.records.export import LabelledImage

OUTPUT = Path("audit")
NUMBER = 50
PAGE, TABLE, RECORDS, LABELS = "audit.html", "audit.csv", "records", "labels"


class Audit(NamedTuple):
    """A finished audit."""

    suspicions: tuple[Suspicion, ...]
    """The surest first."""
    class_names: dict[int, str]
    """Label map id -> name."""
    images: int
    """Images that were looked through."""
    page: Path


def audit(
    data: str | Path,
    model: Config,
    *,
    number: int = NUMBER,
    labels: str | None = None,
    output: str | Path = OUTPUT,
    progress: "ImageProgress | None" = None,
    on_image: Callable[[str, int, int], None] = lambda stage, done, total: None,
    say: Say = lambda line: None,
) -> Audit:
    """Ranks the labels that are probably wrong, and writes a page, a table and labelling tasks.

    Args:
        data: a folder of annotated images, or of records with a label map; all its images are
            looked through. They may be what the model was trained on.
        model: a model directory or its URL, one of its checkpoints, a packed model, or the folder
            of an export.
        number: most suspicions of each fault, the surest.
        labels: write the images of these with the suggestions drawn in, as `cvat`, `label_studio`
            or another of `stillbox.records.export.FORMS`.
        output: folder of the page, the table, the labels, and the records of `data`.
        progress: called after every batch.
        on_image: progress of the conversion of `data`.
        say: called with a line before each part of the work.

    Raises:
        UserError: there is no such model or data, or their classes differ.
    """
    from stillbox.checking.planning_records import to_score
    from stillbox.evaluation.label_audit import audit_labels, surest
    from stillbox.evaluation.scoring import open_evaluation
    from stillbox.predicting.files import refuse_old

    prepare_process()
    folder = Path(output)
    refuse_others(folder, (PAGE, TABLE, RECORDS))
    if labels is not None:
        refuse_old(folder / LABELS)
    with local_source(model, None, "best") as (local, url):
        opened = open_scored(local, say=say).copied_from(url, local)
        make_folder(folder, below=folder)
        claim_files(folder, (PAGE, TABLE, RECORDS))
        scored = to_score(
            opened.experiment, Path(data), folder / RECORDS, on_image, say, all_images=True
        )
        experiment = _of_all_images(scored)
        dataset = open_evaluation(experiment)
        say(f"{opened.source}: detecting in {len(dataset.source):,} images of {data}")
        result = opened.score(experiment, dataset, progress)
    chosen = surest(audit_labels(result.truths, result.results), number)
    _write(chosen, result, dataset, folder, f"{data}, by {opened.source}")
    if labels is not None:
        _write_labels(chosen, result, dataset, folder / LABELS, labels)
    return Audit(chosen, dict(result.class_names), len(result.truths), folder / PAGE)


def _of_all_images(experiment: Experiment) -> Experiment:
    """Returns the experiment with COCO's metrics of all images that can be read."""
    return replace(
        experiment,
        data=replace(experiment.data, bad_records="drop"),
        evaluation=replace(experiment.evaluation, metrics=("coco",), max_examples=0),
    )


def _write(
    suspicions: Sequence[Suspicion],
    result: "EvaluationResult",
    dataset: "Dataset",
    folder: Path,
    subtitle: str,
) -> None:
    from stillbox.evaluation.figures_files import csv_bytes
    from stillbox.evaluation.label_audit_page import audit_page, audit_rows, draw_suspicions

    names = result.class_names
    write_whole(folder / TABLE, csv_bytes(audit_rows(suspicions, names)), below=folder)
    cutouts = tuple(draw_suspicions(suspicions, result, dataset.source))
    page = audit_page(suspicions, cutouts, names, subtitle)
    write_whole(folder / PAGE, page.encode(), below=folder)


def _write_labels(
    suspicions: Sequence[Suspicion],
    result: "EvaluationResult",
    dataset: "Dataset",
    folder: Path,
    form: str,
) -> None:
    """Writes the suspicious images with their labels as the model suggests them."""
    from stillbox.records.export import export_images

    images = list(_suggested(suspicions, result, dataset))
    export_images(images, dataset.label_map, folder, form)


def _suggested(
    suspicions: Sequence[Suspicion], result: "EvaluationResult", dataset: "Dataset"
) -> "Iterator[tuple[Path | bytes, LabelledImage]]":
    from stillbox.records.export import LabelledImage, file_name

    taken: set[str] = set()
    suspicious = {each.image_id for each in suspicions}
    for record, truth in zip(result.records, result.truths, strict=True):
        example = dataset.source.example(record)
        if truth.image_id not in suspicious or example is None:
            continue
        of_image = [each for each in suspicions if each.image_id == truth.image_id]
        changed, scores = corrected(example, of_image, (truth.height, truth.width))
        name = file_name(example, taken)
        image = LabelledImage(changed, name, truth.height, truth.width, scores)
        yield example.encoded, image


def corrected(
    example: Example, suspicions: Sequence[Suspicion], size: tuple[int, int]
) -> tuple[Example, np.ndarray]:
    """Returns an image without its bytes and with labels as suggested, and their scores.

    `size` is height and width. A label that is kept has a score of 1, a suggestion its sureness.
    """
    dropped = [each.label_index for each in suspicions if each.label_index is not None]
    keep = np.delete(np.arange(len(example.boxes)), dropped)
    added = [each for each in suspicions if each.suggestion is not None]
    boxes = [each.suggestion.sides for each in added if each.suggestion]
    classes = [each.suggestion.class_id for each in added if each.suggestion]
    sides = np.array(size * 2, np.float64)
    new = (np.array(boxes, np.float64).reshape(-1, 4) / sides).clip(0, 1).astype(np.float32)
    changed = Example(
        image_id=example.image_id,
        encoded=b"",
        filename=example.filename,
        height=size[0],
        width=size[1],
        boxes=np.concatenate([example.boxes[keep], new]),
        class_ids=np.concatenate([example.class_ids[keep], np.array(classes, np.int32)]),
    )
    scores = np.concatenate([np.ones(len(keep)), [each.sureness for each in added]])
    return changed, scores
