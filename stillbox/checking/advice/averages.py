"""Moving averages take steps to converge: those of batch norm and those of the parameters."""

from collections import defaultdict
from collections.abc import Iterator

from stillbox.checking.advice.advice import Advice, Findings, Origins
from stillbox.experiment.rules import frozen_fresh_statistics
from stillbox.experiment.schema import (
    BatchNorm,
    ConvolutionalHead,
    Experiment,
    Model,
    Ppn,
    WeightSharedHead,
)
from stillbox.printing import count_text

# The part of the initial values that may be left: one in a hundred.
_LEFT = 0.01
_USUAL_DECAYS = (0.9997, 0.999, 0.997, 0.99, 0.97, 0.9)
# A lower one would make the statistics those of the last batch.
_LEAST_DECAY = 0.5
# Statistics of smaller batches are mostly noise (arXiv:1803.08494).
_SMALL_BATCH = 8


def statistics_arrive(experiment: Experiment, origins: Origins) -> Findings:
    """The moving statistics of batch norm, used in evaluation, must forget their start."""
    steps = experiment.train.steps
    if not steps:
        return
    slow = defaultdict(list)
    for path, norm in _trained_norms(experiment.model):
        if norm.decay**steps > _LEFT:
            slow[norm.decay].append(path)
    fitting = next((usual for usual in _USUAL_DECAYS if usual**steps <= _LEFT), _LEAST_DECAY)
    for decay, paths in slow.items():
        # A trial of a few steps has no decay that is low enough.
        if decay <= fitting:
            continue
        yield Advice(
            "warning",
            f"{paths[0]}.decay",
            f"batch norm with a decay of {decay:g} over {count_text(steps, 'step')}: "
            f"{100 * decay**steps:.0f} % of the moving statistics is still what training began "
            f"with, and evaluation normalises with them",
            " ".join(f"--set {path}.decay={fitting:g}" for path in paths),
        )


def statistics_have_a_batch(experiment: Experiment, origins: Origins) -> Findings:
    """Statistics of few images are noise; they are those of the global batch."""
    batch = experiment.train.batch_size
    if batch < _SMALL_BATCH and any(_trained_norms(experiment.model)):
        yield Advice(
            "warning",
            "train.batch_size",
            f"batch norm takes its statistics from {count_text(batch, 'image')}",
            f"a batch of at least {_SMALL_BATCH}, or, with a checkpoint to start from, "
            "--set model.freeze_batch_norm=true",
        )


def statistics_have_weights(experiment: Experiment, origins: Origins) -> Findings:
    """Moving statistics belong to the weights that they were measured with."""
    found = frozen_fresh_statistics(experiment)
    if found is not None:
        path, sentence = found
        yield Advice("warning", path, sentence, "--set train.fine_tune.checkpoint=PATH")


def averages_arrive(experiment: Experiment, origins: Origins) -> Findings:
    """The moving average of the parameters must forget the initial ones."""
    train, decay = experiment.train, experiment.train.ema_decay
    if decay is None or train.ema_warmup or not train.steps or decay**train.steps <= _LEFT:
        return
    yield Advice(
        "warning" if experiment.evaluation.use_ema else "note",
        "train.ema_decay",
        f"the moving average of the parameters keeps {100 * decay**train.steps:.0f} % of the "
        f"first ones over {count_text(train.steps, 'step')} (decay {decay:g})",
        "--set train.ema_warmup=true",
    )


def averages_exist(experiment: Experiment, origins: Origins) -> Findings:
    """Evaluation cannot use an average that training does not compute."""
    asked = "evaluation.use_ema" in origins and experiment.evaluation.use_ema
    if asked and experiment.train.ema_decay is None:
        yield Advice(
            "warning",
            "evaluation.use_ema",
            "use_ema (use_moving_averages) has no effect: training keeps no moving average",
            "--set train.ema_decay=0.9999, or take it out",
        )


def _trained_norms(model: Model) -> Iterator[tuple[str, BatchNorm]]:
    """Yields the batch norms that some layer trains, with their paths."""
    if getattr(model, "freeze_batch_norm", False):
        return
    neck, head = getattr(model, "neck", None), getattr(model, "head", None)
    unused = {
        "neck.conv": isinstance(neck, Ppn) and not neck.depth,
        "head.conv": not _has_layers(head),
    }
    for path, conv in model.convolutions().items():
        if conv.batch_norm is not None and conv.batch_norm.train and not unused.get(path):
            yield f"model.{path}.batch_norm", conv.batch_norm


def _has_layers(head: object) -> bool:
    """Whether batch norms are between a feature map and the last convolutions."""
    if not isinstance(head, ConvolutionalHead | WeightSharedHead):
        return False
    between = head.layers_before > 0
    if isinstance(head, ConvolutionalHead):
        between = between and head.max_depth > 0
    return between or head.depthwise
