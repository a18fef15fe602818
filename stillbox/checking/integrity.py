"""Compares the files of model directories and exports with the checksums in their manifests."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from stillbox.checking.doctor import Examination
from stillbox.checkpoints import checkpoint
from stillbox.checkpoints.checkpoint import Checkpoint
from stillbox.checkpoints.checksums import Checksums, read_manifest
from stillbox.checkpoints.files import list_folder
from stillbox.checkpoints.model_directory import CHECKPOINTS, ModelDirectory, is_model_directory
from stillbox.checkpoints.packed import PackedModel, is_packed
from stillbox.errors import UserError
from stillbox.evaluation.history import HISTORY, read_history
from stillbox.exporting import manifest as export
from stillbox.exporting.manifest import Manifest
from stillbox.printing import count_text

_AGAIN = "copy it again from its source"


@dataclass(frozen=True)
class _Part:
    """A folder with a manifest."""

    folder: Path
    manifest: str
    read: Callable[[Path], object]
    """Raises UserError if the manifest has fields without a sensible value."""


def examine_folder(folder: Path) -> Examination:
    """Examines a model directory, one checkpoint of it, a packed model, or an export.

    Nothing is changed.

    Every file that a manifest covers has a line: it is `ok`, `changed` or `missing`, or `unknown`
    if nothing says what it was.

    Raises:
        UserError: the folder is none of these.
    """
    found, parts = Examination(), list(_parts(folder))
    if is_packed(folder):
        _examine_packed(folder, found)
    elif is_model_directory(folder):
        _examine_beside(folder, found)
    elif not parts:
        raise UserError(
            "this is neither a model directory nor an export",
            where=str(folder),
            fix=f"it holds {list_folder(folder)}" if folder.is_dir() else "give such a folder",
        )
    for part in parts:
        _examine_part(part, folder, found)
    return found


def _examine_packed(path: Path, found: Examination) -> None:
    try:
        model = PackedModel(path)
        count = len(model.parameters())
        found.lines.append(
            _row("ok", f"{path}: the model of step {model.step}, {count_text(count, 'array')}")
        )
    except UserError as error:
        found.lines.append(_row("changed", str(path)))
        found.problems.append(_sentence(error))


def _parts(folder: Path) -> Iterator[_Part]:
    checkpoints = [folder] if (folder / checkpoint.MANIFEST).is_file() else []
    exports = [folder / export.MANIFEST]
    if is_model_directory(folder):
        steps = ModelDirectory.open(folder).steps()
        checkpoints = [folder / CHECKPOINTS / str(step) for step in steps]
        # The default places of exports.
        exports += sorted(folder.glob(f"export/*/{export.MANIFEST}"))
    for place in checkpoints:
        yield _Part(place, checkpoint.MANIFEST, Checkpoint)
    for file in exports:
        if file.is_file():
            yield _Part(file.parent, export.MANIFEST, Manifest.read)


def _examine_beside(folder: Path, found: Examination) -> None:
    """Examines what a model directory has beside its checkpoints."""
    directory = ModelDirectory.open(folder)
    found.lines.append(
        f"{folder}: a model directory, {count_text(len(directory.steps()), 'checkpoint')}"
    )
    for name in (checkpoint.EXPERIMENT, checkpoint.LABEL_MAP, checkpoint.VERSIONS):
        state = "unknown" if (folder / name).is_file() else "missing"
        found.lines.append(_row(state, f"{name} (a copy for people; checkpoints have their own)"))
    if (folder / export.MANIFEST).is_file():
        what = f"{folder} is an export too, which would be run in place of the checkpoints"
        found.problems.append(f"{what}; move {export.MANIFEST} away")
    try:
        directory.best()
        read_history(folder / HISTORY, found.problems.append)
    except UserError as error:
        found.problems.append(_sentence(error))


def _examine_part(part: _Part, root: Path, found: Examination) -> None:
    shown = part.folder.relative_to(root)
    checksums, wrong = Checksums(part.folder, None, part.manifest), []
    try:
        content = read_manifest(
            part.folder / part.manifest, what=f"{part.manifest} cannot be read", fix=_AGAIN
        )
        checksums = Checksums.parse(content.get("checksums"), part.folder, part.manifest)
        found.lines.append(_row("ok", str(shown / part.manifest)))
        if checksums.files is None:
            found.lines.append("           written without checksums, by an earlier version")
    except UserError as error:
        state = "changed" if (part.folder / part.manifest).exists() else "missing"
        found.lines.append(_row(state, str(shown / part.manifest)))
        found.problems.append(_sentence(error))
    for name, state in checksums.states():
        found.lines.append(_row(state, str(shown / name)))
        if state in ("changed", "missing"):
            wrong.append(f"{name} ({state})")
    if wrong:
        names = ", ".join(wrong)
        found.problems.append(f"{part.folder}: not as they were written: {names}; {_AGAIN}")
    elif not found.problems:
        try:
            part.read(part.folder)
        except UserError as error:
            found.problems.append(_sentence(error))


def _row(state: str, name: str) -> str:
    # A name can hold what a terminal would act on.
    return f"  {state:8} {''.join(c if c.isprintable() else ascii(c)[1:-1] for c in name)}"


def _sentence(error: UserError) -> str:
    return ": ".join(filter(None, (error.where, error.what))) + f"; {error.fix or _AGAIN}"
