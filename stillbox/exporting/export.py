"""Exports a model: written to a temporary folder, loaded again, compared, then renamed.

The comparison takes the artefact's detections and its checkpoint's, on the same images.
"""

import dataclasses
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from jax.export import default_export_platform

from stillbox import __version__
from stillbox.boxes.nms_unrolled import searched_anchors
from stillbox.checkpoints.files import Checksums
from stillbox.checkpoints.trained import TrainedModel
from stillbox.devices.announcing import announcing_alone
from stillbox.errors import UserError
from stillbox.evaluation.limit_audit import audit_records
from stillbox.evaluation.limits import LimitTable, limit_lines
from stillbox.experiment import schema
from stillbox.experiment.resolve import changed
from stillbox.experiment.values import section_to_plain
from stillbox.experiment.yaml_config import to_yaml
from stillbox.exporting.backend import ExportBackend, StandIn, find_stand_in, find_writer
from stillbox.exporting.manifest import (
    EXPERIMENT,
    LABEL_MAP,
    MANIFEST,
    Manifest,
    Written,
    is_export,
)
from stillbox.exporting.program import ExportProgram
from stillbox.exporting.settings import DECODES, ExportSettings
from stillbox.exporting.verification import Agreement, Verification, agree, choices_of, verify
from stillbox.image_kind import RGB_8, ImageKind
from stillbox.predicting.backend import Pixels
from stillbox.predicting.checkpoint_backend import CheckpointBackend
from stillbox.printing import count_text
from stillbox.records.files import new_folder
from stillbox.references import Parameter

_PARTLY = (
    "comparing its program and weights with the checkpoint; its runtime is not installed, which "
    "alone could run its decoding and resizing"
)
_NOT_COMPARED = "the limits of an image are not compared: the records of the model are not here"
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
        images: of the model's kind; compared on these and on blank ones, and calibrated on them.
            Those larger than the canvas of a resizer that does not shrink are left out.
        say: called with a line for each stage.

    Raises:
        UserError: the folder is taken, an extra or the platform of this machine is missing, the
            format cannot hold the model, or the artefact differs from the checkpoint. Nothing is
            left behind.
    """
    kind, given = model.experiment.model.image_kind, settings.checked()
    settings = given.for_images(kind).with_sizes(model.experiment.model.resizer)
    if settings.input_type != given.input_type:
        say(f"the input is float32 in 0..255, of which white is 255: images have {kind}")
    # Other runtimes have no bfloat16 convolutions on a CPU.
    experiment = changed(model.experiment, {"evaluation.precision": "float32"})
    model = dataclasses.replace(model, experiment=experiment).named_by_config()
    program = ExportProgram(model, settings)
    _check_platforms(settings)
    images = _fitting(images, program, say)
    for line in limit_lines(limits_of(program)) or (_NOT_COMPARED,):
        say(line)
    write = find_writer(settings.format)
    written_before = partial(Checksums.written, manifest=MANIFEST)
    check = partial(check_free, output, overwrite=overwrite)
    with new_folder(output, check, written=written_before) as folder:
        say(f"{model.source}: writing {settings.format}")
        with announcing_alone(f"writing {settings.format}"):
            written = write(program, folder, images)
        manifest = _manifest(program, written)
        assert model.label_map is not None  # the program uses its class slots
        (folder / EXPERIMENT).write_text(to_yaml(model.experiment), encoding="utf-8")
        (folder / LABEL_MAP).write_text(model.label_map.to_text(), encoding="utf-8")
        manifest.write(folder)
        stand_in = find_stand_in(settings.format)
        say(
            "loading it again and comparing it with the checkpoint" if stand_in is None else _PARTLY
        )
        with announcing_alone("comparing it with the checkpoint"):
            verified = _verify(folder, program, images, stand_in)
        manifest = dataclasses.replace(
            manifest, verified={**dataclasses.asdict(verified), "whole": stand_in is None}
        )
        manifest.write(folder)
    return Exported(output, manifest, verified)


def limits_of(program: ExportProgram) -> LimitTable:
    """Compares an artefact with the data of its model, if these are here."""
    experiment, settings = program.model.experiment, program.settings
    model, searched = program.description, 0
    built_in = settings.format == "tflite" and settings.postprocess == "built_in"
    if built_in and model.nms is not None:
        searched = searched_anchors(model.nms.max_total)
    exported = dataclasses.replace(experiment, model=model)
    return audit_records(exported, searched_anchors=searched)


def check_free(output: Path, *, overwrite: bool) -> None:
    """Refuses a folder that an export must not replace.

    Raises:
        UserError: the folder holds something else, or an export that is not to be replaced.
    """
    if is_export(output):
        if not overwrite:
            fix = f"add {Parameter('overwrite')}, or give another {Parameter('output')}"
            raise UserError("there is an export already", where=str(output), fix=fix)
    elif output.exists() and not (output.is_dir() and not any(output.iterdir())):
        raise UserError(
            "this is not an empty folder",
            where=str(output),
            fix=f"give another {Parameter('output')}",
        )


def _manifest(program: ExportProgram, written: Written) -> Manifest:
    resizer = program.description.resizer
    return Manifest(
        settings=program.settings,
        files={**written.files, EXPERIMENT: "the experiment", LABEL_MAP: "the classes"},
        input_size=program.input_size,
        resizer=section_to_plain(resizer),
        source=program.model.source,
        tiles=_tiles(program.model.experiment.data.tiles),
        images=_images(program.image_kind),
        needs=written.needs,
        known_bad=written.known_bad,
        written_with={"stillbox": __version__, **written.written_with},
    )


_CLIENT = (
    "Each tile is an input image of its own: resize it as a whole image. Along a side of n pixels "
    "lie 1 + ceil((n - side) / (side - ceil(side * overlap))) tiles at equal distances, the first "
    "at 0, the last at the end; a side of n < side pixels has one tile, of n pixels. "
    "Add the corner of its tile to each box. Of boxes of one class from different tiles that "
    "overlap by more than 0.5, compared inside the part that both tiles show, keep the best. "
    "stillbox predict and stillbox serve do all this with the folder of the export."
)


def _tiles(tiles: schema.Tiles | None) -> dict[str, Any]:
    """Returns the manifest's entry about tiles; empty: images are whole."""
    return {} if tiles is None else {**section_to_plain(tiles), "client": _CLIENT}


def _images(kind: ImageKind) -> dict[str, Any]:
    """Returns the manifest's entry about images; empty: they are RGB of 8 bits."""
    if kind == RGB_8:
        return {}
    client = f"The values of a file times 255 / {kind.white} are the values in 0..255."
    return {**kind._asdict(), "client": client if kind.bits > 8 else ""}


def _verify(
    folder: Path, program: ExportProgram, images: Sequence[Pixels], stand_in: StandIn | None
) -> Verification | Agreement:
    experiment = dataclasses.replace(program.model.experiment, model=program.description)
    checkpoint = CheckpointBackend(dataclasses.replace(program.model, experiment=experiment))
    artefact = ExportBackend(folder, stand_in=stand_in and stand_in(program, folder))
    inputs = [artefact.resized_by_client(image) for image in images]
    # Rounding to simulated levels depends on the last digits of floats, which differ by runtime.
    nms = program.description.nms
    threshold = nms.score_threshold if nms is not None else 0.0
    if program.settings.quantize != "none" or program.quantization is not None:
        return agree(artefact, checkpoint, inputs, score_threshold=threshold)
    blank = [_blank(size, value, program) for size, value in _BLANK]
    # A small canvas takes none of the blank images: then one has the size of the canvas.
    blank = _fitting(blank, program) or [_blank(program.input_size, 128, program)]
    return verify(
        artefact,
        checkpoint,
        inputs,
        blank=[artefact.resized_by_client(image) for image in blank],
        score_threshold=threshold,
        choices=choices_of(program, checkpoint),
    )


def _blank(size: tuple[int, int], value: int, program: ExportProgram) -> Pixels:
    kind = program.image_kind
    return np.full((*size, kind.channels), value, kind.dtype)


def _fitting(
    images: Sequence[Pixels], program: ExportProgram, say: Callable[[str], None] = lambda line: None
) -> list[Pixels]:
    """Returns the images that the artefact takes; `say` is called if there are others."""
    resizer, settings = program.description.resizer, program.settings
    fitting = [
        image for image in images if settings.takes((image.shape[0], image.shape[1]), resizer)
    ]
    if len(fitting) < len(images):
        count = count_text(len(images) - len(fitting), "image")
        say(f"{count} left out: larger than the canvas of model.resizer")
    return fitting


def _check_platforms(settings: ExportSettings) -> None:
    """Refuses a program that cannot be compared with its checkpoint on this machine."""
    if settings.format in ("tflite", "onnx"):
        return
    platform = default_export_platform()
    in_tensorflow = settings.format in DECODES and find_stand_in(settings.format) is None
    # TensorFlow may have no driver for the devices of JAX.
    if {platform, "cpu" if in_tensorflow else platform}.isdisjoint(settings.platforms):
        problem = (
            f"the export is compared with its checkpoint on {platform}, and does not run there"
        )
        raise UserError(
            problem, where=Parameter("platforms"), fix=f"add {platform}, on which it is compared"
        )
