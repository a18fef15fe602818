"""`EvalConfig`: how the model is scored."""

import dataclasses
from typing import Any

from stillbox.errors import UserError
from stillbox.experiment.pipeline_config.section import Section
from stillbox.experiment.schema import Evaluation

_METRICS: dict[str, Any] = {"coco_detection_metrics": "coco"}


def read_evaluation(section: Section) -> Evaluation:
    """Reads `eval_config`.

    What changes no score (batch size, AP per class) keeps stillbox's own default where the file
    does not set it; everything else takes the format's.
    """
    evaluation = Evaluation(
        metrics=_read_metrics(section, "evaluation.metrics"),
        **section.fill(
            "evaluation",
            "num_visualizations",
            use_ema="use_moving_averages",
            min_score="min_score_threshold",
            max_boxes_drawn="max_num_boxes_to_visualize",
        ),
    )
    # Their defaults in the format (1, and no AP per class) are only slower and quieter.
    free = {"batch_size": "batch_size", "per_category": "include_metrics_per_category"}
    given = {ours: theirs for ours, theirs in free.items() if section.has(theirs)}
    return dataclasses.replace(evaluation, **section.fill("evaluation", **given))


def _read_metrics(section: Section, path: str) -> tuple[Any, ...]:
    names = section.values("metrics_set", path)
    for name in names:
        if name not in _METRICS:
            raise UserError(
                f"the metrics {name!r} are not supported",
                where=section.position("metrics_set"),
                fix=f"there is: {', '.join(_METRICS)}",
            )
    # An empty set means COCO's metrics, and naming them twice does not compute them twice.
    return tuple(dict.fromkeys(_METRICS[name] for name in names)) or ("coco",)
