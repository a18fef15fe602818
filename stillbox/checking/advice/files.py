"""The files of an experiment, except for the content of its records."""

from pathlib import Path
from typing import TYPE_CHECKING

from stillbox.errors import UserError
from stillbox.experiment import schema
from stillbox.experiment.rules.missing import CHECKPOINT, TEACHER, paths_are_real
from stillbox.experiment.rules.rule import Remark, Remarks, rule
from stillbox.inputs.augment.geometry import labels_without_slots
from stillbox.printing import count_text, printable_line
from stillbox.records.label_map import LabelMap, assign_slots, is_label_map, required_classes
from stillbox.references import Setting

if TYPE_CHECKING:
    from stillbox.checkpoints.import_report import ImportReport


@rule(schema.Experiment, severity="warning", on="checking")
def checkpoint_fits(experiment: schema.Experiment) -> Remarks:
    """The checkpoint of the initial weights exists, and the model takes it."""
    fine_tune = experiment.train.fine_tune
    # Placeholders and buckets are reported by the rules.
    unreal = any(broken.path == CHECKPOINT for broken in paths_are_real(experiment))
    if not fine_tune.checkpoint or unreal:
        return
    # Only an existing checkpoint needs jax; no device is used.
    from stillbox.checkpoints.importer import ImportOptions, read_weights
    from stillbox.checkpoints.weights_file import MissingWeightsError, open_weights
    from stillbox.models.build import abstract_detector

    try:
        # Opened first: what is not there needs no detector.
        open_weights(fine_tune.checkpoint, model=experiment.model, scope=fine_tune.scope)
        quantization = experiment.train.quantization
        _, params, stats = abstract_detector(experiment.model, "float32", quantization)
        report, _ = read_weights(
            params | stats,
            experiment.model,
            fine_tune.checkpoint,
            ImportOptions.of_training(fine_tune),
        )
    except MissingWeightsError as error:
        fix = f"{error.fix}; or {Setting(CHECKPOINT, '')} for random weights"
        problem = f"{error.where}: {error.what}, on this machine"
        yield Remark(CHECKPOINT, problem, fix)
    except UserError as error:
        problem = f"{error.where}: {error.what}"
        yield Remark(CHECKPOINT, problem, error.fix or "", "error")
    else:
        yield from _of_report(report)
        if report.without_statistics and not getattr(experiment.model, "freeze_batch_norm", False):
            norms = count_text(len(report.without_statistics), "batch norm")
            problem = f"{norms} without statistics, which training measures on its first images"
            yield Remark(CHECKPOINT, problem, severity="note")


def _of_report(report: "ImportReport") -> Remarks:
    yield Remark(CHECKPOINT, f"opened {report.path}: {report.summary()}", severity="note")
    misfits = {mismatch.path: str(mismatch) for mismatch in report.mismatched}
    for reason, arrays in (("that are not in", report.missing), ("of another shape in", misfits)):
        if not arrays:
            continue
        names = sorted(arrays.values())
        more = f" and {len(names) - 3} more" if len(names) > 3 else ""
        yield Remark(
            CHECKPOINT,
            f"fresh values for {count_text(len(names), 'wanted array')} {reason} {report.path}: "
            f"{'; '.join(names[:3])}{more}",
            "is it the checkpoint of this architecture, with this train.fine_tune.scope?",
            # Heads of other classes are always new.
            "note" if all(path.startswith("head.") for path in arrays) else "warning",
        )
    for note in report.notes:
        yield Remark(CHECKPOINT, note)


@rule(schema.Experiment, severity="warning", on="checking")
def teacher_fits(experiment: schema.Experiment) -> Remarks:
    """The teacher of distillation exists, and the model can learn from it."""
    distillation = experiment.train.distillation
    unreal = any(broken.path == TEACHER for broken in paths_are_real(experiment))
    if distillation is None or not distillation.teacher or unreal:
        return
    if not Path(distillation.teacher).exists():
        problem = f"{distillation.teacher}: there is no such model directory, on this machine"
        yield Remark(TEACHER, problem, f"{Setting(TEACHER, 'DIR')}")
        return
    # Only an existing teacher needs jax; no device is used.
    from stillbox.models.build import abstract_detector
    from stillbox.training.distillation import open_teacher

    model, train = experiment.model, experiment.train
    try:
        teacher = open_teacher(experiment)
        assert teacher is not None
        student = abstract_detector(model, train.precision, train.quantization)
        teacher.detector(model, student, train.precision)
    except UserError as error:
        yield Remark(error.where or TEACHER, error.what, error.fix or "", "error")
    else:
        problem = f"opened {teacher.source}: the model can learn from it"
        yield Remark(TEACHER, problem, severity="note")


@rule(schema.Experiment, severity="warning", on="checking")
def label_maps_fit(experiment: schema.Experiment) -> Remarks:
    """Every id has a slot, and every slot has an id."""
    model, classes = experiment.model, experiment.model.num_classes
    for name, records in _sets(experiment):
        path = f"data.{name}.label_map"
        try:
            label_map = read_label_map(records)
        except UserError as error:
            yield Remark(path, str(error), severity="error")
            continue
        if label_map is None or not len(label_map):
            continue
        try:
            slots = assign_slots(label_map, classes, model.class_slots)
        except UserError as error:
            wanted = required_classes(label_map, model.class_slots)
            fix = f"{Setting('model.num_classes', wanted)}"
            problem = f"{error.where}: {error.what}"
            yield Remark("model.num_classes", problem, fix, "error")
            continue
        if name == "train":
            for field, problem in labels_without_slots(experiment.train.augmentations, slots):
                yield Remark(field, problem, f"give ids of {records.label_map}", "error")
        if label_map.max_id < max(slots.ids):
            problem = (
                f"{count_text(classes, 'class')}, but the label map {records.label_map} ends at id "
                f"{label_map.max_id}: the other {classes - label_map.max_id} are never trained"
            )
            fix = f"{Setting('model.num_classes', label_map.max_id)}"
            yield Remark("model.num_classes", problem, fix)


@rule(schema.Experiment, severity="warning", on="checking")
def label_maps_agree(experiment: schema.Experiment) -> Remarks:
    """An id is the same class in training and in evaluation."""
    try:
        first, *others = (read_label_map(records) for _, records in _sets(experiment))
    except UserError:
        return  # reported by label_maps_fit
    second = others[0] if others else None
    if first is None or second is None or first == second:
        return
    for item in second:
        if item.id not in first or first.text_of(item.id) != item.name:
            other = first.text_of(item.id) if item.id in first else "nothing"
            problem = (
                f"id {item.id} is {item.name!r} here and {other!r} in the label map of training"
            )
            fix = "give both sets the label map that training used"
            yield Remark("data.evaluation.label_map", problem, fix)
            return


@rule(schema.Experiment, severity="warning", on="checking")
def sets_differ(experiment: schema.Experiment) -> Remarks:
    """Scores on training data are not meaningful."""
    common = set(experiment.data.train.paths) & set(experiment.data.evaluation.paths)
    if common:
        problem = f"{printable_line(min(common))} is trained on and scored on"
        fix = "score on records that training does not see"
        yield Remark("data.evaluation.paths", problem, fix)


def read_label_map(records: schema.Records) -> LabelMap | None:
    """Returns the label map of a set, None where none is named or it is not on this machine.

    Raises:
        UserError: it cannot be read.
    """
    if not records.label_map or not is_label_map(records.label_map):
        return None
    return LabelMap.from_file(records.label_map)


def _sets(experiment: schema.Experiment) -> list[tuple[str, schema.Records]]:
    """Returns the sets with label maps in use: a recipe names one that has no records yet."""
    data = experiment.data
    evaluation = [("evaluation", data.evaluation)] if data.evaluation.paths else []
    return [("train", data.train), *evaluation]
