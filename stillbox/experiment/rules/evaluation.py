"""Rules about scoring and its pictures."""

from collections.abc import Iterator
from pathlib import Path

from PIL import ImageColor

from stillbox.errors import nearest
from stillbox.experiment.rules.rule import Broken, rule
from stillbox.experiment.schema import Evaluation, Experiment


@rule(Evaluation)
def best_metric_is_computed(evaluation: Evaluation) -> Iterator[Broken]:
    """There are metrics, and the best checkpoint is chosen by one of their numbers."""
    if not evaluation.metrics:
        yield Broken("metrics", "no metrics", "for example [coco]")
        return
    others = {
        "VOC_mAP": "pascal_voc",
        "VOC_weighted_mAP": "weighted_pascal_voc",
        "OpenImages_mAP": "open_images",
    }
    metric = others.get(evaluation.best_metric, "coco")
    if metric not in evaluation.metrics:
        computed = next((key for key, name in others.items() if name in evaluation.metrics), "AP")
        yield Broken(
            "best_metric",
            f"best_metric {evaluation.best_metric} belongs to {metric}, which is not in "
            f"evaluation.metrics ({', '.join(evaluation.metrics)})",
            f"--set evaluation.best_metric={computed}, or add {metric} to evaluation.metrics",
        )


@rule(Experiment)
def images_are_scored_once(experiment: Experiment) -> Iterator[Broken]:
    """An evaluation reads its records once; 0 means once as well."""
    if (epochs := experiment.data.evaluation.num_epochs) > 1:
        path = "data.evaluation.num_epochs"
        yield Broken(path, f"{path} is {epochs}", "give a value of at least 0 and at most 1")


@rule(Evaluation)
def pictures_stay_below_the_results(evaluation: Evaluation) -> Iterator[Broken]:
    """The folder of exported pictures lies in that of the report or of the training run."""
    given = Path(evaluation.pictures_directory)
    if given.anchor or ".." in given.parts or not str(given).isprintable():
        yield Broken(
            "pictures_directory",
            f"{evaluation.pictures_directory!r} leads out of the folder of the results",
            "give a plain name such as exported; evaluate's --output names the folder around it",
        )


@rule(Evaluation)
def truth_has_a_color(evaluation: Evaluation) -> Iterator[Broken]:
    """The colour of the ground truth exists."""
    color = evaluation.truth_color
    try:
        ImageColor.getrgb(color)
    except ValueError:
        guess = nearest(color.lower(), ImageColor.colormap)
        # The whole list of colours would fill a screen.
        fix = guess if guess.startswith("did you mean") else "give a name such as lime, or #rrggbb"
        yield Broken("truth_color", f"{color!r} is no colour", fix)
