"""Rules about augmentations that end before training does, and about the sizes that they give."""

from collections.abc import Iterator

from stillbox.experiment import schema
from stillbox.experiment.rules.rule import error, rule
from stillbox.experiment.rules.warnings import warning
from stillbox.experiment.values import sections_of
from stillbox.findings import Finding
from stillbox.printing import count_text


@rule(schema.Experiment)
def last_steps_exist(experiment: schema.Experiment) -> Iterator[Finding]:
    """Training that leaves an augmentation out at its end has an end, and steps before that."""
    train, epochs = experiment.train, experiment.data.train.num_epochs
    for path, augmentation in _strong_augmentations(experiment):
        skipped, where = augmentation.skip_last_steps, f"{path}.skip_last_steps"
        if not skipped:
            continue
        if not train.steps and not epochs:
            what = f"training without an end has no last {count_text(skipped, 'step')}"
            fix = f"give train.steps or data.train.num_epochs, or --set {where}=0"
            yield error(where, what, fix)
        elif train.steps and skipped >= train.steps:
            what = (
                f"{augmentation.kind} has no effect: the last {count_text(skipped, 'step')} of "
                f"{train.steps} leave it out"
            )
            yield warning(where, f"{what}; give less than train.steps")
        if train.early_stopping is not None:
            what = (
                f"early stopping may end training before its last {count_text(skipped, 'step')}, "
                f"which leave {augmentation.kind} out"
            )
            yield warning(where, what)


@rule(schema.Experiment)
def strong_augmentations_give_the_input(experiment: schema.Experiment) -> Iterator[Finding]:
    """A result of another size than the network input is resized once more."""
    resizer = experiment.model.resizer
    if not isinstance(resizer, schema.FixedShapeResizer | schema.KeepAspectRatioResizer):
        return
    once = list(resizer.input_size)
    for path, section in _strong_augmentations(experiment):
        if isinstance(section, schema.LargeScaleJitter):
            size = [section.output_size] * 2
        elif isinstance(section, schema.RandomAffine) and section.output_size:
            size = list(section.output_size)
        else:
            continue
        if size != once:
            yield warning(
                f"{path}.output_size",
                f"{section.kind} gives images of {size} (height, width), and model.resizer resizes "
                f"them to {once}: objects have another scale than the augmentation gives them",
            )


def _strong_augmentations(
    experiment: schema.Experiment,
) -> Iterator[tuple[str, schema.StrongAugmentation]]:
    for path, section in sections_of(experiment.train.augmentations, "train.augmentations"):
        if isinstance(section, schema.StrongAugmentation):
            yield path, section
