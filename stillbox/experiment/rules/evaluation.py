"""Rules about scoring and its pictures."""

from collections.abc import Iterator

from PIL import ImageColor

from stillbox.errors import nearest
from stillbox.experiment.rules.broken import Broken, Rule
from stillbox.experiment.schema import Experiment


def metrics_are_named(experiment: Experiment) -> Iterator[Broken]:
    """A score needs a metric."""
    if not experiment.evaluation.metrics:
        yield Broken("evaluation.metrics", "no metrics", "for example [coco]")


def best_metric_is_computed(experiment: Experiment) -> Iterator[Broken]:
    """The best checkpoint is found by a number that there is."""
    evaluation = experiment.evaluation
    others = {"VOC_mAP": "pascal_voc", "VOC_weighted_mAP": "weighted_pascal_voc"}
    metric = others.get(evaluation.best_metric, "coco")
    if evaluation.metrics and metric not in evaluation.metrics:
        computed = next((key for key, name in others.items() if name in evaluation.metrics), "AP")
        yield Broken(
            "evaluation.best_metric",
            f"best_metric {evaluation.best_metric} belongs to {metric}, which is not in "
            f"evaluation.metrics ({', '.join(evaluation.metrics)})",
            f"--set evaluation.best_metric={computed}, or add {metric} to evaluation.metrics",
        )


def images_are_scored_once(experiment: Experiment) -> Iterator[Broken]:
    """An evaluation reads its records once; 0 means once as well."""
    if (epochs := experiment.data.evaluation.num_epochs) > 1:
        path = "data.evaluation.num_epochs"
        yield Broken(path, f"{path} is {epochs}", "give a value of at least 0 and at most 1")


def truth_has_a_color(experiment: Experiment) -> Iterator[Broken]:
    """A colour is one that can be drawn."""
    color = experiment.evaluation.truth_color
    try:
        ImageColor.getrgb(color)
    except ValueError:
        guess = nearest(color.lower(), ImageColor.colormap)
        # The whole list of colours would fill a screen.
        fix = guess if guess.startswith("did you mean") else "give a name such as lime, or #rrggbb"
        yield Broken("evaluation.truth_color", f"{color!r} is no colour", fix)


EVALUATION_RULES: tuple[Rule, ...] = (
    metrics_are_named,
    images_are_scored_once,
    best_metric_is_computed,
    truth_has_a_color,
)
"""All of them."""
