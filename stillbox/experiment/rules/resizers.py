"""Rules about sizes."""

from collections.abc import Iterator

from stillbox.experiment.rules.broken import Broken, Rule
from stillbox.experiment.schema import Experiment, KeepAspectRatioResizer


def dimensions_are_ordered(experiment: Experiment) -> Iterator[Broken]:
    """The short side is not asked to be longer than the long one."""
    resizer = experiment.model.resizer
    if isinstance(resizer, KeepAspectRatioResizer) and (
        resizer.min_dimension > resizer.max_dimension
    ):
        yield Broken(
            "model.resizer.min_dimension",
            f"min_dimension {resizer.min_dimension} is above max_dimension {resizer.max_dimension}",
            "lower it, or raise max_dimension",
        )


RESIZER_RULES: tuple[Rule, ...] = (dimensions_are_ordered,)
"""All of them."""
