"""Exports a model: written to a temporary folder, loaded again, compared, then renamed.

The comparison takes the artefact's detections and its checkpoint's, on the same images.
"""

import dataclasses
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np

from stillbox import __version__
from stillbox.checkpoints.trained import TrainedModel
from stillbox.devices.announcing import announcing_alone
from stillbox.errors import UserError
from stillbox.evaluation.results import iou_matrix
from stillbox.experiment.values import section_to_plain
from stillbox.experiment.yaml_config import to_yaml
from stillbox.exporting.backend import ExportBackend, StandIn, find_stand_in, find_writer
from stillbox.exporting.manifest import EXPERIMENT, LABEL_MAP, Manifest, Written, is_export
from stillbox.exporting.program import ExportProgram
from stillbox.exporting.settings import ExportSettings
from stillbox.predicting.backend import Backend, Pixels, RawDetections
from stillbox.predicting.checkpoint_backend import CheckpointBackend
from stillbox.predicting.predictor import Predictor
from stillbox.printing import count_text
from stillbox.records.files import new_folder

BOX_TOLERANCE = 0.5
"""Pixels of the image."""
SCORE_TOLERANCE = 1e-3
SURE = 0.3
"""Least score of a detection in the comparison of a quantised artefact."""
LEAST_FOUND = 0.8
"""Least part of the checkpoint's detections that a quantised artefact has to find."""
_PARTLY = (
    "comparing its program and weights with the checkpoint; its runtime is not installed, which "
    "alone could run its decoding and resizing"
)
_REPORT = "nothing was written; please report this with the model's experiment.yaml"


@dataclass(frozen=True, kw_only=True)
class Verification:
    """Difference of an artefact from its checkpoint."""

    images: int
    detections: int
    """Detections of the checkpoint that were compared."""
    max_box_difference: float
    """Greatest difference of a side, in pixels of the image."""
    max_score_difference: float

    def render(self) -> str:
        """Returns the comparison as a sentence."""
        if not self.detections:
            return (
                f"compared with the checkpoint on {count_text(self.images, 'image')}, in which "
                "neither finds anything: `stillbox export --images` compares on images that show "
                "objects"
            )
        return (
            f"compared with the checkpoint on {count_text(self.images, 'image')}: "
            f"{count_text(self.detections, 'detection')}, boxes within "
            f"{self.max_box_difference:.2g} pixels, scores within "
            f"{self.max_score_difference:.2g}"
        )


@dataclass(frozen=True, kw_only=True)
class Agreement:
    """The checkpoint's detections that a quantised artefact finds too."""

    images: int
    detections: int
    """Detections of the checkpoint with a score of at least `SURE`."""
    found: int
    """How many the artefact finds too: same class, IoU of at least a half."""

    def render(self) -> str:
        """Returns the comparison as a sentence."""
        return (
            f"compared with the checkpoint on {count_text(self.images, 'image')}: {self.found} of "
            f"{count_text(self.detections, 'detection')} with a score of {SURE} or more found; "
            "`stillbox evaluate` measures the loss of AP"
        )


def verify(
    artefact: Backend,
    checkpoint: Backend,
    images: Sequence[Pixels],
    *,
    blank: Sequence[Pixels] = (),
    score_threshold: float = 0.0,
) -> Verification:
    """Runs both on the same images and compares the detections.

    A detection needs no counterpart if its score is within the tolerance of the lowest score that
    the other side returns: the score threshold, or the last score of a full list.

    Args:
        images: `[h, w, 3]` uint8 each.
        blank: images of one colour. Many anchors have equal scores there, and rounding decides
            which of them suppress the others. Only the best score of each class is compared,
            because it is never suppressed.

    Raises:
        UserError: they differ; the message names the first detection that has no counterpart.
    """
    got, wanted = (_detect(backend, images) for backend in (artefact, checkpoint))
    boxes, scores, count = [0.0], [0.0], 0
    for index, (mine, theirs) in enumerate(zip(got, wanted, strict=True)):
        box_differences, score_differences = _differences(mine, theirs)
        same = theirs.class_ids[:, None] == mine.class_ids
        same &= (box_differences <= BOX_TOLERANCE) & (score_differences <= SCORE_TOLERANCE)
        for name, found, other, matched in (
            ("checkpoint", theirs, mine, same.any(axis=1)),
            ("artefact", mine, theirs, same.any(axis=0)),
        ):
            end = _end(other, checkpoint.max_detections, score_threshold) + SCORE_TOLERANCE
            lost = np.flatnonzero(~matched & (found.scores > end))
            if len(lost):
                raise _difference(name, found, lost[0], index, images[index], mine)
        rows = np.flatnonzero(same.any(axis=1))
        pairs = rows, same[rows].argmax(axis=1) if len(rows) else rows
        count += len(rows)
        boxes += box_differences[pairs].tolist()
        scores += score_differences[pairs].tolist()
    for image in blank:
        mine, theirs = (_detect(backend, [image])[0] for backend in (artefact, checkpoint))
        scores.append(_score_difference(mine, theirs, checkpoint.max_detections, score_threshold))
        if scores[-1] > SCORE_TOLERANCE:
            what = (
                f"the scores of a blank image of {image.shape[0]}x{image.shape[1]} differ by "
                f"{scores[-1]:.4f}: {_objects(mine)} in the artefact, "
                f"{len(theirs.scores)} in the checkpoint"
            )
            raise UserError(what, where="verification of the export", fix=_REPORT)
    return Verification(
        images=len(images) + len(blank),
        detections=count,
        max_box_difference=max(boxes),
        max_score_difference=max(scores),
    )


def agree(artefact: Backend, checkpoint: Backend, images: Sequence[Pixels]) -> Agreement:
    """Counts the sure detections of a checkpoint that its quantised artefact finds too.

    Raises:
        UserError: fewer than `LEAST_FOUND` of them are found.
    """
    got, wanted = (_detect(backend, images) for backend in (artefact, checkpoint))
    matches: list[bool] = []
    for mine, theirs in zip(got, wanted, strict=True):
        same = theirs.class_ids[:, None] == mine.class_ids[None]
        near = iou_matrix(theirs.boxes, mine.boxes) >= 0.5
        matches += np.any(same & near, axis=1)[theirs.scores >= SURE].tolist()
    found = Agreement(images=len(images), detections=len(matches), found=sum(matches))
    if found.found < LEAST_FOUND * found.detections:
        fix = "calibrate on some tens of typical images with --images, or export in float"
        raise UserError(f"quantising loses too much: {found.render()}", where="--quantize", fix=fix)
    return found


def _score_difference(
    mine: RawDetections, theirs: RawDetections, most: int, score_threshold: float
) -> float:
    """Returns the greatest difference between the best scores of a class.

    A class that one of them does not find has a score below the end of its list.
    """
    one, other = _best_scores(mine), _best_scores(theirs)
    ends = [_end(found, most, score_threshold) for found in (mine, theirs)]
    differences = [abs(one[class_id] - other[class_id]) for class_id in one.keys() & other]
    differences += [other[class_id] - ends[0] for class_id in other.keys() - one]
    differences += [one[class_id] - ends[1] for class_id in one.keys() - other]
    return max([0.0, *differences])


def _best_scores(found: RawDetections) -> dict[int, float]:
    best: dict[int, float] = {}
    for class_id, score in zip(found.class_ids.tolist(), found.scores.tolist(), strict=True):
        best[class_id] = max(score, best.get(class_id, score))
    return best


def _detect(backend: Backend, images: Sequence[Pixels]) -> list[RawDetections]:
    predictor = Predictor(backend)
    return [predictor.run([backend.prepare(image)])[0] for image in images]


def _differences(mine: RawDetections, theirs: RawDetections) -> tuple[np.ndarray, np.ndarray]:
    """Returns greatest differences of a side, and those of scores, `[theirs, mine]` each."""
    boxes = np.abs(theirs.boxes[:, None] - mine.boxes).max(axis=2, initial=0.0)
    return boxes, np.abs(theirs.scores[:, None] - mine.scores)


def _end(found: RawDetections, most: int, score_threshold: float) -> float:
    """Returns the score below which a detection may be missing from the list."""
    return float(found.scores.min()) if len(found.scores) == most else score_threshold


def _difference(
    name: str, found: RawDetections, row: int, index: int, image: Pixels, mine: RawDetections
) -> UserError:
    box = ", ".join(f"{at:.1f}" for at in found.boxes[row])
    what = (
        f"the {name} alone finds class {found.class_ids[row]} with score {found.scores[row]:.4f} "
        f"at [{box}] (ymin, xmin, ymax, xmax) in image {index}, {image.shape[0]}x{image.shape[1]}; "
        f"the artefact finds {_objects(mine)} there"
    )
    return UserError(what, where="verification of the export", fix=_REPORT)


def _objects(found: RawDetections) -> str:
    return count_text(len(found.scores), "object")


_BLANK = ((64, 64), 0), ((300, 200), 128)


class Exported(NamedTuple):
    """A finished export."""

    folder: Path
    manifest: Manifest
    verification: Verification | Agreement
    """Difference of the artefact from its checkpoint."""


def export_model(
    model: TrainedModel,
    output: Path,
    settings: ExportSettings,
    images: Sequence[Pixels],
    *,
    overwrite: bool = False,
    say: Callable[[str], None] = lambda line: None,
) -> Exported:
    """Exports a model and compares the detections of the artefact with the checkpoint's.

    Args:
        output: folder of the artefact; it appears after the comparison.
        images: `[h, w, 3]` uint8; compared on these and on blank ones, and calibrated on them.
        say: called with a line for each stage.

    Raises:
        UserError: the folder is taken, an extra is missing, the format cannot hold the model, or
            the artefact differs from the checkpoint. Nothing is left behind.
    """
    settings = settings.checked().with_sizes(model.experiment.model.resizer)
    # Other runtimes have no bfloat16 convolutions on a CPU.
    experiment = model.experiment.with_changes({"evaluation.precision": "float32"})
    model = dataclasses.replace(model, experiment=experiment).named_by_config()
    program = ExportProgram(model, settings)
    write = find_writer(settings.format)
    with new_folder(output, lambda: check_free(output, overwrite=overwrite)) as partial:
        say(f"{model.source}: writing {settings.format}")
        with announcing_alone(f"writing {settings.format}"):
            written = write(program, partial, images)
        manifest = _manifest(program, written)
        assert model.label_map is not None  # the program uses its class slots
        (partial / EXPERIMENT).write_text(to_yaml(model.experiment), encoding="utf-8")
        (partial / LABEL_MAP).write_text(model.label_map.to_text(), encoding="utf-8")
        manifest.write(partial)
        stand_in = find_stand_in(settings.format)
        say(
            "loading it again and comparing it with the checkpoint" if stand_in is None else _PARTLY
        )
        with announcing_alone("comparing it with the checkpoint"):
            verified = _verify(partial, program, images, stand_in)
        manifest = dataclasses.replace(
            manifest, verified={**dataclasses.asdict(verified), "whole": stand_in is None}
        )
        manifest.write(partial)
    return Exported(output, manifest, verified)


def check_free(output: Path, *, overwrite: bool) -> None:
    """Refuses a folder that an export must not replace.

    Raises:
        UserError: the folder holds something else, or an export that is not to be replaced.
    """
    if is_export(output):
        if not overwrite:
            fix = "add --overwrite, or give another --output"
            raise UserError("there is an export already", where=str(output), fix=fix)
    elif output.exists() and not (output.is_dir() and not any(output.iterdir())):
        raise UserError(
            "this is not an empty folder", where=str(output), fix="give another --output"
        )


def _manifest(program: ExportProgram, written: Written) -> Manifest:
    resizer = program.description.resizer
    return Manifest(
        settings=program.settings,
        files={**written.files, EXPERIMENT: "the experiment", LABEL_MAP: "the classes"},
        input_size=program.input_size,
        resizer=section_to_plain(resizer),
        source=program.model.source,
        needs=written.needs,
        known_bad=written.known_bad,
        written_with={"stillbox": __version__, **written.written_with},
    )


def _verify(
    folder: Path, program: ExportProgram, images: Sequence[Pixels], stand_in: StandIn | None
) -> Verification | Agreement:
    experiment = dataclasses.replace(program.model.experiment, model=program.description)
    checkpoint = CheckpointBackend(dataclasses.replace(program.model, experiment=experiment))
    artefact = ExportBackend(folder, stand_in=stand_in and stand_in(program, folder))
    inputs = [artefact.resized_by_client(image) for image in images]
    # Rounding to simulated levels depends on the last digits of floats, which differ by runtime.
    if program.settings.quantize != "none" or program.quantization is not None:
        return agree(artefact, checkpoint, inputs)
    blank = [np.full((*size, 3), value, np.uint8) for size, value in _BLANK]
    nms = program.description.nms
    return verify(
        artefact,
        checkpoint,
        inputs,
        blank=[artefact.resized_by_client(image) for image in blank],
        score_threshold=nms.score_threshold if nms is not None else 0.0,
    )
