"""Quantisation-aware training takes steps with rounding."""

from stillbox.checking.advice.advice import Advice, Findings, Origins
from stillbox.experiment.schema import Experiment
from stillbox.printing import count_text


def rounding_is_trained(experiment: Experiment, origins: Origins) -> Findings:
    """Weights adapt to rounding in the steps after the delay."""
    train = experiment.train
    if train.quantization is None or not 0 < train.steps <= train.quantization.delay:
        return
    yield Advice(
        "warning",
        "train.quantization.delay",
        f"rounding begins after {count_text(train.quantization.delay, 'step')}, but there are "
        f"{train.steps}: evaluation and export round all the same, and the weights never adapt to "
        "it",
        f"--set train.quantization.delay={train.steps * 9 // 10}",
    )


def levels_are_exact(experiment: Experiment, origins: Origins) -> Findings:
    """bfloat16 has as many significant bits as a range has by default."""
    if experiment.train.quantization is not None and experiment.train.precision == "bfloat16":
        yield Advice(
            "note",
            "train.precision",
            "bfloat16 rounds once more what quantisation has rounded, off the levels of its range",
            "--set train.precision=float32",
        )
