"""`eval`: how the model is scored (TPU detection fact sheet 6)."""

from stillbox.experiment.params_dict.reading import Reading
from stillbox.experiment.schema import Evaluation


def read_evaluation(reading: Reading) -> Evaluation:
    """Reads `eval`."""
    reading.choose("eval.type", ("box",), "evaluation.metrics")
    samples = reading.take("eval.eval_samples", "evaluation.max_examples")
    if samples:
        reading.warnings.append(
            f"{reading.params.where('eval.eval_samples')}: eval_samples {samples}: where there are "
            "more images, only the first so many are scored; eval_samples: null scores all"
        )
    return Evaluation(
        metrics=("coco",),
        max_examples=samples or 0,
        **reading.fill(
            "eval", "evaluation", batch_size="eval_batch_size", per_category="per_category_metrics"
        ),
    )
