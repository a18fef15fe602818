"""Training, its devices, evaluation and export."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, ClassVar, Literal

from stillbox.experiment.schema.crop_augmentations import Augmentation
from stillbox.experiment.schema.optimizer import Momentum, Optimizer
from stillbox.experiment.schema.ranges import (
    MACHINE,
    Batch,
    Fraction,
    InputPath,
    Items,
    NonNegative,
    NonNegativeInt,
    Positive,
    PositiveFraction,
    PositiveInt,
    Range,
    Seed,
    Side,
    Texts,
)

Bits = Annotated[int, Range(2, 16)]


@dataclass(frozen=True, kw_only=True)
class Quantization:
    """Rounds weights and activations in training as integers do (arXiv:1712.05877, section 3).

    Batch norms are folded into the kernels before they are rounded. The counterpart of
    `graph_rewriter` in a `pipeline.config`, which rewrites the graph by `tf.contrib.quantize`.
    """

    delay: NonNegativeInt = 500_000
    """Steps before rounding begins. Ranges are measured from the first step on."""
    weight_bits: Bits = 8
    """Bits of a kernel's values, which have one range for the whole kernel."""
    activation_bits: Bits = 8
    """Bits of the results of convolutions and of sums."""
    symmetric: bool = False
    """Ranges reach equally far on both sides of 0."""


@dataclass(frozen=True, kw_only=True)
class Devices:
    """All devices run one program: the batch is sharded among them, and images may be too.

    `spatial_partitions` and `shard` place arrays and change no result. `replicas` defines what "per
    replica" means in other fields, for any number of devices.
    """

    # Fields of older versions with their defaults, and what takes their place.
    retired: ClassVar[Mapping[str, tuple[object, str]]] = {
        "program_cache": (None, "STILLBOX_CACHE=FOLDER moves the compiled programs"),
        "program_cache_gib": (10.0, "STILLBOX_CACHE_GIB=N limits them to N gibibytes"),
    }

    spatial_partitions: Annotated[int, Range(1, 65_536)] = 1
    """Devices that share an image, which is partitioned along its height: for images with
    activations that do not fit into one device."""
    shard: Literal["nothing", "optimizer"] = "nothing"
    """What is sharded over the devices that share a batch instead of replicated: nothing, or the
    optimiser's accumulators and the moving average of the parameters."""
    replicas: Annotated[int, Range(0, 1_048_576)] = 0
    """Equal parts of a batch that count as replicas where a field says `per_replica`, so that a
    recipe of eight replicas gives the same on one device; 0: as many as devices share a batch."""
    cpu_convolutions: Literal["exact", "fast"] = "fast"
    """Algorithms of 3x3 convolutions on CPUs; other devices have their own. `exact`: sums of
    products alone. `fast`: where it is faster, Winograd's, which adds a rounding error of about
    1e-5 of the largest value in float32 and of 5e-3 in bfloat16, as much as bfloat16 itself."""


LoggerName = Literal["tensorboard", "wandb", "mlflow"]
Rematerialization = Literal["none", "blocks"]


@dataclass(frozen=True, kw_only=True)
class FineTune:
    """Where the first weights come from when there is nothing to resume."""

    checkpoint: InputPath = ""
    """TF1 or TF2 checkpoint prefix, `.npz`, `.safetensors`, `.pth`, `.pt`, frozen graph (`.pb`),
    `model.json` of TensorFlow.js, `.tflite`, SavedModel or stillbox model directory; empty: random
    weights."""
    scope: Literal["classification", "detection"] = "detection"
    """Take the backbone of a classifier, or the feature extractor of a detector."""
    load_heads: bool = False
    """Take the predictor's weights of a detector too, where their shapes fit."""
    min_loaded: Fraction = 0.5
    """Refuse to start when a smaller share of the wanted parameters was found."""
    skip: Annotated[tuple[str, ...], Texts] = ()
    """Regular expressions; an array with a path (or name in the file) that matches is not wanted
    and keeps its fresh value."""


@dataclass(frozen=True, kw_only=True)
class Distillation:
    """A teacher: its distributions of boxes are learnt from too (LD, arXiv:2102.12252).

    The loss `quality` gets the term `distillation_loss`: the mean divergence of the four edges of
    each matched anchor from the teacher, weighted as its box is, and summed over the anchors. It is
    scaled as for two images, as on each GPU of the original's configs (`mmdet/configs/ld`), for any
    size of the batch.
    """

    teacher: InputPath = ""
    """Model directory (its best checkpoint), one of its checkpoints, or packed model. Training
    needs it, resumed or not; evaluation, prediction and export do not."""
    weight: Positive = 0.25
    """Factor on the term."""
    temperature: Positive = 10.0
    """Divides the logits of model and teacher; the divergence is multiplied by its square."""


@dataclass(frozen=True, kw_only=True)
class EarlyStopping:
    """Ends training when evaluation no longer improves, or is good enough."""

    patience: NonNegativeInt = 10
    """Evaluations without improvement before training ends; 0: no limit."""
    min_delta: NonNegative = 0.0
    """Least increase that counts as an improvement."""
    target: PositiveFraction | None = None
    """End as soon as `evaluation.best_metric` reaches this value: the stopping rule of MLPerf."""


@dataclass(frozen=True, kw_only=True)
class Training:
    """Steps, optimiser, augmentation, checkpoints."""

    batch_size: Batch = 32
    """Images of one step, over all devices."""
    accumulation_steps: Batch = 1
    """Micro-batches that a step divides its batch into. Their gradients are computed one after the
    other and added up before the one update: less memory, the same gradient, except that batch
    norm has the statistics of a micro-batch."""
    input_sizes: Annotated[tuple[Side, ...], Items(most=8)] = ()
    """Heights of the network input in pixels, the width in proportion, one of which is drawn for
    each step: multi-scale training. Each has a compiled step of its own. Empty: the height
    of `model.resizer`, which evaluation, prediction and export always have."""
    steps: NonNegativeInt = 0
    """Steps to train; 0: no limit."""
    augmentations: tuple[Augmentation, ...] = ()
    """Applied in this order, before the image is resized."""
    optimizer: Optimizer = field(default_factory=Momentum)
    """Update rule with its learning rate."""
    ema_decay: Fraction | None = None
    """Keep a moving average of the parameters with this decay; None keeps none."""
    ema_warmup: bool = False
    """Increase the decay with the step, `(1 + step) / (10 + step)` at most: for short runs."""
    ema_from_zero: bool = False
    """Start the average at 0 instead of the first parameters, and count the step that it follows:
    `(2 + step) / (11 + step)` at most. So TF2 does; it needs `ema_warmup`."""
    ema_tau: NonNegative = 0.0
    """Increase the decay with the number of the update, from 1: `ema_decay * (1 - exp(-t / tau))`,
    the ramp of YOLOX, RTMDet and Ultralytics; 0: no ramp."""
    ema_copy_first: bool = False
    """The first update copies the parameters, as mmengine's averages do, whatever the decay."""
    ema_interval: PositiveInt = 1
    """Steps from one update of the average to the next; the first step has one."""
    ema_statistics: bool = False
    """Average the moving statistics of batch norm too, with the same decay; otherwise the average
    is scored with the statistics of the newest step."""
    bias_gradient_multiplier: NonNegative = 1.0
    """Multiplies the gradients of biases, before clipping; not of batch norm."""
    gradient_clip_norm: NonNegative = 0.0
    """Scale the gradient down to this global norm; 0 leaves it."""
    gradient_clip_parameter_norm: NonNegative = 0.0
    """Scale the gradient of each parameter down to this norm, before the global norm is; 0 leaves
    it."""
    gradient_clip_value: NonNegative = 0.0
    """Bring every number of the gradient between minus this and this, before norms; 0 leaves it."""
    regularization: bool = True
    """Add the kernels' penalties to the loss."""
    freeze: Annotated[tuple[str, ...], Texts] = ()
    """Regular expressions; a parameter with a path (or TF1 name) that matches is not trained."""
    trainable: Annotated[tuple[str, ...], Texts] = ()
    """Regular expressions; when given, only parameters that match one of them are trained."""
    precision: Literal["float32", "bfloat16"] = "float32"
    """Type of activations and gradients inside the network; parameters and losses stay float32."""
    rematerialization: Rematerialization = "none"
    """`blocks`: keep for the gradient only what enters blocks of the model, and compute the rest
    again in the backward pass; the results are the same. `none`: keep all activations."""
    quantization: Quantization | None = None
    """Train for integer arithmetic; None: for floating point. Evaluation, prediction and export
    round too where training does."""
    fine_tune: FineTune = field(default_factory=FineTune)
    """Where the first weights come from."""
    distillation: Distillation | None = None
    """Learn from a teacher too; None: from the ground truth alone."""
    seed: Seed = 0
    """The seed of fresh weights and dropout."""
    log_every: PositiveInt = 20
    """Steps between two lines of metrics."""
    summary_every: NonNegativeInt = 0
    """Steps between two entries of metrics in history and TensorBoard; 0: as `log_every`."""
    loggers: Annotated[tuple[LoggerName, ...], MACHINE] = ("tensorboard",)
    """What receives metrics, configuration, scores and pictures, beside `metrics.jsonl`."""
    checkpoint_every: PositiveInt = 500
    """Steps between two checkpoints; the last step always has one."""
    keep_checkpoints: PositiveInt = 3
    """Newest checkpoints that are kept, beside the best."""
    evaluate_every: NonNegativeInt = 0
    """Steps between two evaluations; 0 evaluates once, at the end."""
    early_stopping: EarlyStopping | None = None
    """None trains all steps."""

    @property
    def micro_batch_size(self) -> int:
        """Images with activations in memory at the same time, over all devices."""
        return self.batch_size // self.accumulation_steps


@dataclass(frozen=True, kw_only=True)
class Export:
    """The interface of an exported model."""

    signature: Literal["detection_api", "tpu"] = "detection_api"
    """Names, types and units of the outputs: as in the TensorFlow Object Detection API, all
    float32 with normalised boxes, or as in "Object Detection Models on TPU", with boxes in
    pixels of the network input and an int32 count."""


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
    metrics: Annotated[tuple[Metric, ...], Items(least=1, fix="for example [coco]")] = ("coco",)
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
    """Metric that marks the best checkpoint by its highest value."""
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
    """Folder in the folder of the report or of the training run, into which each evaluation also
    writes the pictures as PNG; empty: none."""
    name_pictures_by_image: bool = False
    """Put the image's id into the names of those files."""
