"""How the model is scored."""

from dataclasses import dataclass
from typing import Literal

Score = Literal[
    "AP", "AP50", "AP75", "APs", "APm", "APl", "AR1", "AR10", "AR100", "ARs", "ARm", "ARl"
]


@dataclass(frozen=True, kw_only=True)
class Evaluation:
    """Metrics and what is shown of them."""

    batch_size: int = 8
    """Images of one evaluation step; the last one is padded and masked."""
    metrics: tuple[Literal["coco"], ...] = ("coco",)
    """What is computed."""
    best_metric: Score = "AP"
    """Metric whose highest value marks the best checkpoint."""
    max_examples: int = 0
    """Score only the first so many images; 0 scores all."""
    use_ema: bool = True
    """Score the moving average of the parameters where training keeps one."""
    num_visualizations: int = 10
    """Images drawn with ground truth beside prediction."""
    min_score: float = 0.5
    """Least score of a detection that is drawn."""
    max_boxes_drawn: int = 20
    """Most detections that are drawn in one image."""
    per_category: bool = True
    """Report AP for every class."""
