"""Penalties on the kernels of a model."""

from stillbox.checking.advice.advice import Advice, Findings, Origins
from stillbox.experiment.schema import L1, L2, Experiment

# A larger penalty drives kernels to zero; configs that train have 1e-5 to 1e-3.
_LARGE_PENALTY = 0.01


def penalties_are_small(experiment: Experiment, origins: Origins) -> Findings:
    """A regularizer without a weight has the format's default, 1.0."""
    for place, conv in experiment.model.convolutions().items():
        penalty = conv.regularizer
        if isinstance(penalty, L1 | L2) and penalty.weight > _LARGE_PENALTY:
            path = f"model.{place}.regularizer.weight"
            default = "" if path in origins else ", the format's default,"
            yield Advice(
                "warning",
                path,
                f"a weight of {penalty.weight:g}{default} presses all kernels to zero",
                f"--set {path}=4e-5",
            )


def penalties_are_added(experiment: Experiment, origins: Origins) -> Findings:
    """Regularizers have an effect only if the loss includes them."""
    penalties = [conv.regularizer for conv in experiment.model.convolutions().values()]
    # A penalty of weight 0 is none.
    counted = any(getattr(penalty, "weight", penalty) for penalty in penalties)
    if not experiment.train.regularization and counted:
        yield Advice(
            "warning",
            "train.regularization",
            "regularization (add_regularization_loss) is false, so that no regularizer counts",
            "--set train.regularization=true, or take the regularizers out",
        )
