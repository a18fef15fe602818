"""Fields that are set without an effect, and patterns of frozen parameters."""

from stillbox.checking.advice.advice import Advice, Findings, Origins
from stillbox.errors import UserError
from stillbox.experiment.schema import Experiment
from stillbox.printing import count_text


def clipping_clips(experiment: Experiment, origins: Origins) -> Findings:
    """A limit of 0 disables clipping."""
    if "train.gradient_clip_norm" in origins and not experiment.train.gradient_clip_norm:
        yield Advice(
            "note",
            "train.gradient_clip_norm",
            "0 leaves gradients as they are: it does not clip them to 0",
        )


def first_weights_are_named(experiment: Experiment, origins: Origins) -> Findings:
    """Options of reading a checkpoint have no effect without one."""
    if experiment.train.fine_tune.checkpoint:
        return
    for name in ("scope", "min_loaded", "skip"):
        path = f"train.fine_tune.{name}"
        if path in origins:
            yield Advice(
                "note",
                path,
                f"{name} has no effect: no checkpoint is named, training starts from random "
                "weights",
                "--set train.fine_tune.checkpoint=PATH",
            )
            return


def evaluations_happen(experiment: Experiment, origins: Origins) -> Findings:
    """An interval longer than training has no effect."""
    every, steps = experiment.train.evaluate_every, experiment.train.steps
    if every > steps > 0:
        yield Advice(
            "note",
            "train.evaluate_every",
            f"evaluate_every {every:,} is more than the {count_text(steps, 'step')}: the only "
            "evaluation is the one at the end",
        )


def patterns_match(experiment: Experiment, origins: Origins) -> Findings:
    """Patterns of frozen parameters match some of them, but not all."""
    train = experiment.train
    if not train.freeze and not train.trainable:
        return
    # Only these patterns need jax.
    from stillbox.checkpoints.names import reference_names
    from stillbox.models.abstract import abstract_detector
    from stillbox.training.state import select_trainable

    path = "train.freeze" if train.freeze else "train.trainable"
    try:
        params = abstract_detector(experiment.model, train.precision).params
        trained = select_trainable(params, reference_names(experiment.model, params), train)
    except UserError as error:
        # That one is about both.
        named = path if error.where in (None, "train.freeze, train.trainable") else error.where
        yield Advice("error", named or path, error.what, error.fix or "")
        return
    sizes = {name: int(params[name].size) for name in params}
    share = sum(sizes[name] for name in trained) / sum(sizes.values())
    yield Advice(
        "note",
        path,
        f"{len(trained)} of {len(params)} parameters are trained, {100 * share:.0f} % of all "
        "their numbers",
    )
