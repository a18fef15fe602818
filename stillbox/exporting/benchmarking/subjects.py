"""The models, settings and conditions of a benchmark.

Its subjects are a checkpoint, the exports that exist, and those that it writes.
"""

import datetime
import os
import platform
from collections.abc import Sequence
from dataclasses import dataclass, replace
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from typing import Literal, NamedTuple

from stillbox import __version__, numerals
from stillbox.checkpoints.packed import find_model, is_packed, open_model
from stillbox.devices.process import own_processors, processor_name
from stillbox.errors import UserError, nearest
from stillbox.experiment.resolve import changed, resolve
from stillbox.experiment.schema import Experiment
from stillbox.experiment.updating import Changes
from stillbox.exporting.backend import RUNTIME_PACKAGES, read_experiment
from stillbox.exporting.benchmarking.tasks import CheckpointSource
from stillbox.exporting.manifest import MANIFEST, Manifest, finished_export, is_export
from stillbox.exporting.settings import ExportSettings, Format, Quantize
from stillbox.exporting.verification import SURE
from stillbox.extras import install_command
from stillbox.references import Parameter
from stillbox.system import LIMITS_PROCESSORS


class Variant(NamedTuple):
    """A format, with integers or without."""

    format: Format
    quantize: Quantize = "none"


VARIANTS: dict[str, Variant] = {
    "saved_model": Variant("saved_model"),
    "tflite": Variant("tflite"),
    "tflite_int8": Variant("tflite", "int8"),
    "onnx": Variant("onnx"),
    "stablehlo": Variant("stablehlo"),
}


class Export(NamedTuple):
    """An existing export."""

    name: str
    """The name of its variant, or of its folder if that is more precise."""
    folder: Path
    variant: Variant


@dataclass(frozen=True, kw_only=True)
class Subject:
    """A model and its exports."""

    name: str
    """Origin of the weights."""
    experiment: Experiment
    """Detector and evaluation set."""
    checkpoint: CheckpointSource | None
    """None: there are only exports."""
    exports: tuple[Export, ...] = ()
    makes: bool = True
    """Whether the other variants are to be exported."""
    notes: tuple[str, ...] = ()


def find_subject(
    source: str | Path | Experiment,
    *,
    weights: str | Path | None,
    step: int | Literal["best", "latest"],
    overrides: Changes,
    kept: Path | None,
) -> Subject:
    """Returns what a benchmark of a model measures; for the arguments see `benchmark`.

    An export is a program. The exports in a model directory, which may be somebody else's, are not
    run unless the user names their folder, `kept`.

    Raises:
        UserError: the source is none of these, or the overrides do not fit.
    """
    if weights is not None:
        experiment = (
            changed(source, overrides)
            if isinstance(source, Experiment)
            else resolve(source, overrides).experiment
        )
        model = CheckpointSource(path=Path(weights), experiment=experiment)
        subject = Subject(name=str(weights), experiment=experiment, checkpoint=model)
        return _choose(subject, _exports_in(kept) if kept is not None else [])
    if isinstance(source, Experiment) or not (Path(source).is_dir() or is_packed(Path(source))):
        name = source.name if isinstance(source, Experiment) else source
        raise UserError(
            f"{name} is no folder of a model, and a config alone has no weights",
            fix=f"add {Parameter('weights', 'FILE')}, or give the model directory of a "
            "training run",
        )
    return _in_folder(Path(source), step, overrides, kept)


def _in_folder(
    folder: Path, step: int | Literal["best", "latest"], overrides: Changes, kept: Path | None
) -> Subject:
    exports = [folder] if is_export(folder) else _exports_in(folder)
    if exports and find_model(folder) is None:
        if step != "best":
            raise finished_export(folder)
        return _of_exports(folder, exports, overrides)
    model = open_model(folder, step)
    experiment = changed(model.read_experiment(), overrides)
    checkpoint = CheckpointSource(path=folder, step=model.step, overrides=dict(overrides))
    name = f"{folder}, step {model.step}"
    subject = Subject(name=name, experiment=experiment, checkpoint=checkpoint)
    if kept is not None:
        return _choose(subject, _exports_in(kept))
    if _exports_in(stored := folder / "export"):
        note = (
            f"the exports in {stored} were written anew to be measured; "
            f"{Parameter('exports', f'{stored}')} takes those"
        )
        return replace(subject, notes=(note,))
    return subject


def _exports_in(folder: Path) -> list[Path]:
    return [path.parent for path in sorted(folder.glob(f"*/{MANIFEST}"))]


def _of_exports(folder: Path, exports: Sequence[Path], overrides: Changes) -> Subject:
    """Returns the subject of exports, with the checkpoint that the manifest of the first names."""
    manifest = Manifest.read(exports[0])
    stored = read_experiment(exports[0])
    experiment = changed(stored, overrides)
    checkpoint = _checkpoint_of(manifest.source, stored)
    subject = Subject(
        name=manifest.source if checkpoint else str(folder),
        experiment=experiment,
        checkpoint=checkpoint,
        makes=False,
        exports=tuple(_export(path) for path in exports) if checkpoint is None else (),
    )
    if checkpoint is not None:
        return _choose(subject, exports)
    note = (
        f"the exports are compared with nothing: {manifest.source}, which they were made "
        "from, is not here; give the model itself, and this folder with "
        f"{Parameter('exports')}"
    )
    return replace(subject, notes=(note,))


def _checkpoint_of(source: str, experiment: Experiment) -> CheckpointSource | None:
    """Returns the place of the weights of an export; None: they are not on this machine."""
    name, _, text = source.rpartition(", step ")
    step = numerals.count(text)
    if name and step is not None:
        try:
            model = find_model(Path(name), step)
        except UserError:  # the run went on, and keeps other steps
            return None
        return CheckpointSource(path=Path(name), step=model.step) if model else None
    if not Path(source).is_file():
        return None
    return CheckpointSource(path=Path(source), experiment=experiment)


def _choose(subject: Subject, folders: Sequence[Path]) -> Subject:
    """Returns the subject with the exports that were made from its checkpoint."""
    exports, notes = list[Export](), list[str]()
    for folder in folders:
        try:
            reason = _difference(folder, subject)
        except UserError as error:
            reason = error.what
        if reason:
            notes.append(f"{folder} is not measured: {reason}; export it again")
        else:
            exports.append(_export(folder))
    return replace(subject, exports=tuple(exports), notes=tuple(notes))


def _difference(folder: Path, subject: Subject) -> str:
    """Returns the reason why an export is not from the subject's checkpoint; empty if it is."""
    manifest, source = Manifest.read(folder), subject.checkpoint
    assert source is not None
    # The model directory may have been moved since.
    step = manifest.source.rpartition(", step ")[2]
    same = step == str(source.step) if source.step is not None else Path(step) == source.path
    if not same:
        return f"it was made from {manifest.source}"
    if read_experiment(folder).model != subject.experiment.model:
        return "its detector has other settings"
    return ""


def _export(folder: Path) -> Export:
    settings = Manifest.read(folder).settings
    variant = Variant(settings.format, settings.quantize)
    other = f"{variant.format}_{variant.quantize}"
    name = next((name for name, listed in VARIANTS.items() if listed == variant), other)
    return Export(name if folder.name in VARIANTS else f"{folder.name} ({name})", folder, variant)


def check_variants(names: Sequence[str]) -> tuple[str, ...]:
    """Returns the named variants, all if none is named.

    Raises:
        UserError: there is no such variant.
    """
    for name in names:
        if name not in VARIANTS:
            problem = f"there is no format {name!r}"
            raise UserError(problem, where=Parameter("formats"), fix=nearest(name, VARIANTS))
    return tuple(names) or tuple(VARIANTS)


def how_to_install(runtime: str) -> str:
    """Returns the command that installs a runtime; empty if it is installed."""
    package, extra = RUNTIME_PACKAGES[runtime]
    return "" if find_spec(package) is not None else install_command(extra)


def export_settings(
    variant: Variant, experiment: Experiment, image_size: tuple[int, int] | None
) -> ExportSettings:
    """Returns the settings with which `stillbox export --format` writes a variant.

    The experiment names the signature, for the formats that have several.
    """
    settings = ExportSettings(
        format=variant.format, quantize=variant.quantize, image_size=image_size
    )
    if variant.format == "tflite":
        return settings
    return replace(settings, signature=experiment.export.signature)


LOAD = "load average before"
"""Name of a condition: the programs that ran or waited for a processor in the last minute."""


@dataclass(frozen=True, kw_only=True)
class BenchmarkSettings:
    """How runtimes are measured."""

    formats: tuple[str, ...] = ()
    """Names of `VARIANTS`; empty: all."""
    limit: int = 0
    """Most images of the evaluation set; 0: all."""
    scored: bool = True
    """Compute the metrics of the evaluation set."""
    min_score: float = SURE
    """Least score of the detections of the checkpoint that are looked for."""
    warmup: int = 10
    """Images before the measured ones, at least; each image is detected in once."""
    repeats: int = 200
    """Images that are measured, in at most a minute."""
    threads: int = 0
    """Processors that a runtime may use; 0: as many as this process."""
    image_size: tuple[int, int] | None = None
    """Height and width of the input of new exports; None: the format's default."""

    def checked(self) -> "BenchmarkSettings":
        """Returns the settings with all formats by name.

        Raises:
            UserError: a number is out of range, or a format unknown.
        """
        most = own_processors()
        for name, value, least, greatest in (
            (f"{Parameter('limit')}", self.limit, 0, 2**31),
            (f"{Parameter('min_score')}", self.min_score, 0, 1),
            (f"{Parameter('warmup')}", self.warmup, 0, 2**20),
            (f"{Parameter('repeats')}", self.repeats, 1, 2**20),
            (f"{Parameter('threads')}", self.threads, 0, most),
        ):
            if not least <= value <= greatest:
                fix = f"give a number from {least} to {greatest:,}"
                raise UserError(f"{value} is out of range", where=name, fix=fix)
        if self.threads not in (0, most) and not LIMITS_PROCESSORS:
            problem = "this system does not limit the processors of a process"
            raise UserError(problem, where=Parameter("threads"), fix="leave it out")
        return replace(self, formats=check_variants(self.formats))


def machine_facts(threads: int) -> dict[str, str]:
    """Returns the conditions of figures by name; 0 threads: as many as this process uses."""
    allowed = own_processors()
    facts = {
        "processor": processor_name(),
        "processors": str(allowed),
        "threads": str(threads or allowed),
        "system": platform.system() + " " + platform.release(),
        "date": datetime.datetime.now().astimezone().strftime("%Y-%m-%d %H:%M %z"),
        "stillbox": __version__,
        "jax": version("jax"),
        "python": platform.python_version(),
    }
    if hasattr(os, "getloadavg"):
        facts[LOAD] = f"{os.getloadavg()[0]:.1f}"
    return facts
