"""Do the patterns of what is frozen mean anything? This needs the names of all parameters."""

from collections.abc import Iterator, Mapping

from stillbox.checking.advice.advice import Advice, Counsel
from stillbox.errors import UserError
from stillbox.experiment.schema import Experiment


def patterns_match(experiment: Experiment, origins: Mapping[str, str]) -> Iterator[Advice]:
    """A pattern that matches nothing is a typo; patterns that match everything train nothing."""
    train = experiment.train
    if not train.freeze and not train.trainable:
        return
    # Here, because only these patterns need jax and the seconds in which a detector is built.
    from stillbox.checkpoints.names import reference_names
    from stillbox.models.build import build_detector
    from stillbox.models.variables import split_detector
    from stillbox.training.state import select_trainable

    path = "train.freeze" if train.freeze else "train.trainable"
    _, params, _ = split_detector(build_detector(experiment.model))
    try:
        trained = select_trainable(params, reference_names(experiment.model, params), train)
    except UserError as error:
        named = error.where if error.where in ("train.freeze", "train.trainable") else path
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


FREEZING_COUNSELS: tuple[Counsel, ...] = (patterns_match,)
"""All of them."""
