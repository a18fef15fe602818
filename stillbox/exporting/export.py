"""Exports a model: written into a temporary folder, loaded again, compared, then renamed."""

import dataclasses
import os
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from stillbox import __version__
from stillbox.checkpoints.trained import TrainedModel
from stillbox.errors import UserError
from stillbox.experiment.values import to_plain
from stillbox.experiment.yaml_config import to_yaml
from stillbox.exporting.backend import ExportBackend
from stillbox.exporting.formats import Written, format_module
from stillbox.exporting.manifest import EXPERIMENT, LABEL_MAP, Manifest, is_export
from stillbox.exporting.program import ExportProgram
from stillbox.exporting.settings import ExportSettings
from stillbox.exporting.verify import Agreement, Verification, agree, verify
from stillbox.predicting.backend import Pixels
from stillbox.predicting.checkpoint_backend import CheckpointBackend

_BLANK = ((64, 64), 0), ((300, 200), 128)


class Exported(NamedTuple):
    """What an export left."""

    folder: Path
    """The artefact's folder."""
    manifest: Manifest
    """What lies in it as `export.json`."""
    verification: Verification | Agreement
    """How far the artefact is from its checkpoint."""


def export_model(
    model: TrainedModel,
    output: Path,
    settings: ExportSettings,
    images: Sequence[Pixels],
    *,
    overwrite: bool = False,
    say: Callable[[str], None] = lambda line: None,
) -> Exported:
    """Exports a model and proves that the artefact finds what the checkpoint finds.

    Args:
        model: weights, experiment and label map.
        output: folder of the artefact; it appears when everything has been verified.
        settings: format, input and signature.
        images: `[h, w, 3]` uint8; compared on these and on blank ones, and calibrated on them.
        overwrite: replace an export that is there.
        say: told what is being done.

    Returns:
        The folder, its manifest and the comparison.

    Raises:
        UserError: the folder is taken, an extra is missing, the format cannot hold the model, or
            the artefact differs from the checkpoint. Nothing is left behind.
    """
    settings = settings.checked().with_sizes(model.experiment.model.resizer.input_size)
    _check_free(output, overwrite)
    model = _in_float32(model.named_by_config())
    program = ExportProgram(model, settings)
    module = format_module(settings.format)
    partial = output.with_name(f".{output.name}.{os.getpid()}.partial")
    partial.mkdir(parents=True)
    try:
        say(f"{model.source}: writing {settings.format}")
        written = module.write(program, partial, images)
        manifest = _manifest(program, written)
        _write_descriptions(partial, model, manifest)
        say("loading it again and comparing it with the checkpoint")
        verified = _verify(partial, program, images)
        manifest = dataclasses.replace(manifest, verified=dataclasses.asdict(verified))
        manifest.write(partial)
        _take_place(partial, output)
    finally:
        shutil.rmtree(partial, ignore_errors=True)
    return Exported(output, manifest, verified)


def _check_free(output: Path, overwrite: bool) -> None:
    if not output.exists():
        return
    if output.is_dir() and not any(output.iterdir()):
        return
    if is_export(output) and overwrite:
        return
    raise UserError(
        "there is an export already" if is_export(output) else "this is not an empty folder",
        where=str(output),
        fix="add --overwrite, or give another --output"
        if is_export(output)
        else "give another --output",
    )


def _in_float32(model: TrainedModel) -> TrainedModel:
    """Returns the model as it is exported: no other runtime has bfloat16 convolutions on a CPU."""
    experiment = model.experiment
    evaluation = dataclasses.replace(experiment.evaluation, precision="float32")
    return dataclasses.replace(
        model, experiment=dataclasses.replace(experiment, evaluation=evaluation)
    )


def _manifest(program: ExportProgram, written: Written) -> Manifest:
    resizer = program.description.resizer
    return Manifest(
        settings=program.settings,
        files={**written.files, EXPERIMENT: "the experiment", LABEL_MAP: "the classes"},
        input_size=program.input_size,
        resizer=to_plain(resizer),
        source=program.model.source,
        needs=written.needs,
        known_bad=written.known_bad,
        written_with={"stillbox": __version__, **written.written_with},
    )


def _write_descriptions(folder: Path, model: TrainedModel, manifest: Manifest) -> None:
    assert model.label_map is not None  # without one there are no slots, and no program
    (folder / EXPERIMENT).write_text(to_yaml(model.experiment))
    (folder / LABEL_MAP).write_text(model.label_map.to_text())
    manifest.write(folder)


def _verify(
    folder: Path, program: ExportProgram, images: Sequence[Pixels]
) -> Verification | Agreement:
    experiment = dataclasses.replace(program.model.experiment, model=program.description)
    checkpoint = CheckpointBackend(dataclasses.replace(program.model, experiment=experiment))
    artefact = ExportBackend(folder)
    fed = [artefact.fed(image) for image in images]
    if program.settings.quantize != "none":
        return agree(artefact, checkpoint, fed)
    blank = [np.full((*size, 3), value, np.uint8) for size, value in _BLANK]
    return verify(
        artefact,
        checkpoint,
        fed,
        blank=[artefact.fed(image) for image in blank],
        score_threshold=program.description.postprocessing.nms.score_threshold,
    )


def _take_place(partial: Path, output: Path) -> None:
    """Renames the finished folder; one that it replaces is removed when the new one is there."""
    old = None
    if output.exists():
        old = output.with_name(f".{output.name}.{os.getpid()}.old")
        output.rename(old)
    partial.rename(output)
    if old is not None:
        shutil.rmtree(old, ignore_errors=True)
