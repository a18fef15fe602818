"""How the model is scored."""

from dataclasses import dataclass
from typing import Annotated, Literal

from stillbox.experiment.schema.ranges import *

Metric = Literal["coco", "pascal_voc", "weighted_pascal_voc", "open_images"]

Score = Literal[
    "AP",
    "AP50",
    "AP75",
    "APs",
    "APm",
    "APl",
    "AR1",
    "AR10",
    "AR100",
    "ARs",
    "ARm",
    "ARl",
    "VOC_mAP",
    "VOC_weighted_mAP",
    "OpenImages_mAP",
]


@dataclass(frozen=True, kw_only=True)
class Evaluation:
    """Metrics, and the pictures and tables of a report."""

    batch_size: Batch = 8
    """Images of one evaluation step, rounded up so that each device has as many; the last step is
    padded and masked."""
    precision: Literal["float32", "bfloat16"] = "float32"
    """Type of activations in evaluation and prediction."""
    metrics: tuple[Metric, ...] = ("coco",)
    """What is computed: COCO's twelve numbers; Pascal VOC's mean over the classes' AP
    (`VOC_mAP`); the AP of all classes' detections in one list (`VOC_weighted_mAP`); Open Images
    V2's mean at an IoU of .50, which ignores detections inside groups (`OpenImages_mAP`)."""
    voc_interpolation: Literal["all_points", "eleven_points"] = "all_points"
    """How Pascal VOC's metrics turn a curve into one number: its area, or the mean of eleven
    precisions as in VOC 2007."""
    voc_min_iou: PositiveFraction = 0.5
    """Least IoU of a correct detection in Pascal VOC's metrics."""
    voc_inclusive_pixels: bool = False
    """Overlaps of Pascal VOC's metrics as in the VOC devkit: a box includes its last row and column
    of pixels, so that its width is `xmax - xmin + 1`."""
    best_metric: Score = "AP"
    """Metric whose highest value marks the best checkpoint."""
    max_examples: NonNegativeInt = 0
    """Score only the first so many images; 0 scores all."""
    max_evaluations: NonNegativeInt = 0
    """At most so many evaluations during training, one of them kept for its end; 0: no limit."""
    use_ema: bool = True
    """Score the moving average of the parameters where training keeps one."""
    per_category: bool = True
    """Report AP for every class."""
    all_metrics_per_category: bool = False
    """Report all twelve of COCO's numbers for every class."""
    num_visualizations: NonNegativeInt = 10
    """Images drawn with ground truth beside prediction."""
    num_mistakes: NonNegativeInt = 6
    """Worst mistakes of each kind that the report shows."""
    min_score: Fraction | None = None
    """Least score of a detection that is drawn; none: the score with the highest F1 of all classes
    together."""
    max_boxes_drawn: NonNegativeInt = 20
    """Most detections that are drawn in one image."""
    show_labels: bool = True
    """Write the class at every box that is drawn."""
    show_scores: bool = True
    """Write the score at every detection that is drawn."""
    draw_truth_on_predictions: bool = False
    """Draw the ground truth among the predictions too, not only beside them."""
    truth_color: str = "black"
    """Colour of that ground truth: a name of HTML, or `#rrggbb`."""
    pictures_directory: Annotated[str, MACHINE] = ""
    """Folder, below that of the report or of the training run, into which each evaluation also
    writes the pictures as PNG; empty: none."""
    name_pictures_by_image: bool = False
    """Put the image's id into the names of those files."""
