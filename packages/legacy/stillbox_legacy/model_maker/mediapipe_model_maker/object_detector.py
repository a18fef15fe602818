"""`mediapipe_model_maker.object_detector`: RetinaNet with MobileNet v2, for MediaPipe's tasks.

The network is the recipe `ssd_mobilenet_v2_fpnlite_320x320` with the input, the anchors, the loss
and the schedule of the original (`object_detector/{model,preprocessor,object_detector}.py` and
`official/vision/configs/retinanet.py`).
"""

import dataclasses
import enum
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from stillbox.checkpoints.model_directory import ModelDirectory
from stillbox.devices.announcing import say_aside
from stillbox.errors import UserError
from stillbox.experiment.resolve import changed, read_config
from stillbox.experiment.schema import Experiment
from stillbox.experiment.updating import Changes
from stillbox.records.files import write_whole
from stillbox_legacy.model_maker import detectors
from stillbox_legacy.model_maker.datasets import RecordSet
from stillbox_legacy.model_maker.mediapipe_model_maker.dataset import Dataset as Dataset
from stillbox_legacy.model_maker.quantization import FLOAT, Quantization, QuantizationConfig

_RECIPE = "ssd_mobilenet_v2_fpnlite_320x320"
_RATE_OF_BATCH = 256
_PARTS = ("backbone", "neck", "head")
# The original's factor of the loss of boxes.
_BOX_WEIGHT = 50.0
_BY_CLASS = (
    "Precision mAP ByCategory",
    "Precision mAP ByCategory@50IoU",
    "Precision mAP ByCategory@75IoU",
    "Precision mAP ByCategory (small)",
    "Precision mAP ByCategory (medium)",
    "Precision mAP ByCategory (large)",
    "Recall AR@1 ByCategory",
    "Recall AR@10 ByCategory",
    "Recall AR@100 ByCategory",
    "Recall AR (small) ByCategory",
    "Recall AR (medium) ByCategory",
    "Recall AR (large) ByCategory",
)
"""Of `official/vision/evaluation/coco_evaluator.py`, in COCO's order."""


@dataclass(frozen=True)
class ModelSpec:
    """A network."""

    input_image_shape: tuple[int, int, int]
    """Height, width, channels."""
    model_id: str
    min_level: int
    max_level: int
    """Levels of the pyramid; level L has a stride of 2 to the L pixels."""


@enum.unique
class SupportedModels(enum.Enum):
    """The original's networks. MobileNet-MultiHW-AVG is replaced by MobileNet v2, and said so."""

    MOBILENET_V2 = ModelSpec((256, 256, 3), "MobileNetV2", 3, 7)
    MOBILENET_V2_I320 = ModelSpec((320, 320, 3), "MobileNetV2", 3, 6)
    MOBILENET_MULTI_AVG = ModelSpec((256, 256, 3), "MobileNetMultiAVG", 3, 7)
    MOBILENET_MULTI_AVG_I384 = ModelSpec((384, 384, 3), "MobileNetMultiAVG", 3, 7)

    @classmethod
    def get(cls, spec: "SupportedModels") -> ModelSpec:
        """Returns the network.

        Raises:
            UserError: it is none of these.
        """
        if not isinstance(spec, cls):
            fix = "use one of " + ", ".join(f"SupportedModels.{member.name}" for member in cls)
            raise UserError(f"{spec!r} is no model", where="supported_model", fix=fix)
        return spec.value


@dataclass
class HParams:
    """Hyperparameters of training.

    `distribution_strategy`, `num_gpus` and `tpu` have no effect: all devices are used.
    """

    learning_rate: float = 0.3
    """Rate for 256 images; the rate of a step follows the size of the batch."""
    batch_size: int = 8
    epochs: int = 30
    steps_per_epoch: int | None = None
    """None: whole batches of the data."""
    class_weights: Mapping[int, float] | None = None
    """Refused: the original's training step takes none either."""
    shuffle: bool = False
    """A new order in each epoch."""
    repeat: bool = False
    """Let an epoch of `steps_per_epoch` be longer than the data."""
    export_dir: str = dataclasses.field(
        default_factory=lambda: tempfile.mkdtemp(prefix="model_maker_")
    )
    """Folder of runs and exports."""
    distribution_strategy: str = "off"
    num_gpus: int = 0
    tpu: str = ""
    cosine_decay_epochs: int | None = None
    """Epochs after which the cosine has ended; None: all."""
    cosine_decay_alpha: float = 1.0
    """Part of the rate that is left then; 1: no decay."""


@dataclass
class QATHParams:
    """Hyperparameters of quantisation-aware training."""

    learning_rate: float = 0.3
    """Rate for 256 images."""
    batch_size: int = 8
    epochs: int = 15
    decay_steps: int = 8
    """Steps in which the rate falls by one factor."""
    decay_rate: float = 0.96
    """The factor."""


@dataclass
class ObjectDetectorModelOptions:
    """Options of the network."""

    l2_weight_decay: float = 3.0e-05
    """Penalty of the kernels: half of this times the sum of their squares."""


ModelOptions = ObjectDetectorModelOptions


@dataclass
class ObjectDetectorOptions:
    """What `ObjectDetector.create` trains."""

    supported_model: SupportedModels
    model_options: ObjectDetectorModelOptions | None = None
    hparams: HParams | None = None


class ObjectDetector:
    """A detector that is trained, and trained again for integers.

    Args:
        model_spec: the network.
        label_names: names of the classes, the background first.
        hparams: hyperparameters of training.
        model_options: options of the network.
    """

    def __init__(
        self,
        model_spec: ModelSpec,
        label_names: list[str],
        hparams: HParams,
        model_options: ObjectDetectorModelOptions,
    ) -> None:
        self._model_spec, self._label_names = model_spec, label_names
        self._hparams, self._model_options = hparams, model_options
        self._float_run: Path | None = None
        self._integer_run: Path | None = None
        self._train_data: Dataset | None = None
        self._trained: Experiment | None = None

    @classmethod
    def create(
        cls, train_data: Dataset, validation_data: Dataset, options: ObjectDetectorOptions
    ) -> "ObjectDetector":
        """Trains a detector, or resumes the same run in `export_dir`.

        Raises:
            UserError: the data are fewer than a batch, or an option has no counterpart.
        """
        options.hparams = options.hparams or HParams()
        options.model_options = options.model_options or ObjectDetectorModelOptions()
        spec = SupportedModels.get(options.supported_model)
        if spec.model_id != "MobileNetV2":
            height, width, _ = spec.input_image_shape
            say_aside(
                f"{spec.model_id} is no backbone of stillbox: MobileNet v2 with the same input, "
                f"{height}x{width}, is trained in its place"
            )
        hparams = options.hparams
        detector = cls(spec, train_data.label_names, hparams, options.model_options)
        size = hparams.batch_size
        detectors.refuse_small(train_data.size, 1 if hparams.repeat else size)
        experiment = detector._experiment(train_data, validation_data)
        weights, _ = detectors.initial_weights(experiment)
        experiment = changed(experiment, weights)
        detector._train_data, detector._trained = train_data, experiment
        detector._float_run = detectors.train_run(experiment, Path(hparams.export_dir))
        return detector

    def _experiment(self, train: Dataset, validation: Dataset) -> Experiment:
        hparams = self._hparams
        in_epoch = _steps_per_epoch(hparams, train.size)
        steps = hparams.epochs * in_epoch
        rate = hparams.learning_rate * hparams.batch_size / _RATE_OF_BATCH
        decay = (hparams.cosine_decay_epochs or hparams.epochs) * in_epoch
        schedule = {
            "kind": "cosine",
            "learning_rate": rate,
            "total_steps": decay,
            "final_learning_rate": rate * hparams.cosine_decay_alpha,
            "warmup_learning_rate": 0.0,
            "warmup_steps": min(int(steps * 0.1), decay - 1),
        }
        penalty = self._model_options.l2_weight_decay
        changes = {
            **_network(self._model_spec),
            **{f"model.{part}.conv.regularizer.weight": penalty for part in _PARTS},
            **_data(train, validation),
            "data.train.shuffle": hparams.shuffle,
            "model.num_classes": max(train.records.names),
            **_length(steps, in_epoch, hparams.batch_size),
            "train.optimizer.schedule": schedule,
        }
        return read_config(_RECIPE, changes).experiment

    def quantization_aware_training(
        self, train_data: Dataset, validation_data: Dataset, qat_hparams: QATHParams
    ) -> None:
        """Trains on with kernels and activations rounded to 8 bits, without penalties.

        Raises:
            UserError: the data are fewer than a batch, or the detector has been trained so already.
        """
        if self._integer_run is not None:
            raise UserError(
                "the detector is quantised already",
                where="quantization_aware_training",
                fix="call restore_float_ckpt first",
            )
        directory, size = self._run(), qat_hparams.batch_size
        detectors.refuse_small(train_data.size, size)
        in_epoch = train_data.size // size
        rate = qat_hparams.learning_rate * size / _RATE_OF_BATCH
        schedule = {
            "kind": "exponential",
            "learning_rate": rate,
            "staircase": True,
            "decay_steps": qat_hparams.decay_steps,
            "decay_factor": qat_hparams.decay_rate,
        }
        checkpoint = ModelDirectory.open(directory).checkpoint("latest").folder
        fine_tune = {"checkpoint": checkpoint, "scope": "detection", "load_heads": True}
        assert self._trained is not None
        changes = {
            **_data(train_data, validation_data),
            **{f"model.{part}.conv.regularizer": None for part in _PARTS},
            "train.fine_tune": fine_tune,
            "train.quantization": {"delay": 0},
            **_length(qat_hparams.epochs * in_epoch, in_epoch, size),
            "train.optimizer.schedule": schedule,
        }
        experiment = changed(self._trained, changes)
        self._integer_run = detectors.train_run(experiment, Path(self._hparams.export_dir))

    def restore_float_ckpt(self) -> None:
        """Goes back to the detector before quantisation-aware training."""
        self._integer_run = None

    def evaluate(
        self, dataset: Dataset, batch_size: int = 1
    ) -> tuple[list[float], dict[str, float]]:
        """Returns the losses and COCO's numbers.

        The losses are the whole, the loss of classes, the loss of boxes before its weight, and the
        whole without penalties: means over the batches. The numbers of a class have its id in their
        name.

        Raises:
            UserError: the data and the detector have different classes.
        """
        directory = self._run()
        size = {"evaluation.batch_size": min(batch_size, dataset.size)}
        result = detectors.score(directory, dataset.records, size)
        metrics = detectors.coco_metrics(result)
        for class_id, name in sorted(dataset.records.names.items()):
            numbers = detectors.class_metrics(result, name)
            for metric, number in zip(_BY_CLASS, numbers, strict=True):
                metrics[f"{metric}/{class_id}"] = number
        terms = detectors.mean_losses(directory, dataset.records, batch_size)
        classes, boxes = terms["classification_loss"], terms["localization_loss"]
        whole = classes + boxes
        penalty = terms["regularization_loss"]
        return [whole + penalty, classes, boxes / _BOX_WEIGHT, whole], metrics

    def export_model(
        self,
        model_name: str = "model.tflite",
        quantization_config: QuantizationConfig | None = None,
    ) -> None:
        """Writes a TFLite file with metadata and labels into `export_dir`.

        It holds integers after quantisation-aware training, and floats otherwise.

        Args:
            model_name: name of the file.
            quantization_config: quantisation of a float detector.

        Raises:
            UserError: `quantization_config` after quantisation-aware training, an extra is missing,
                or the file differs from the checkpoint.
        """
        how = FLOAT
        if quantization_config is not None and self._integer_run is not None:
            raise UserError(
                "a detector of quantisation-aware training has its own quantisation",
                where="quantization_config",
                fix="leave it out, or call restore_float_ckpt first",
            )
        if self._integer_run is not None:
            how = Quantization("int8", "image_tensor")
        elif quantization_config is not None:
            how = quantization_config.resolve(_records)
        target = Path(self._hparams.export_dir) / model_name
        data = self._train_data
        detectors.export_tflite(self._run(), target, how, data.records if data else None)

    def export_labels(self, export_dir: str, label_filename: str = "labels.txt") -> None:
        """Writes the names of the classes, the background first."""
        folder = Path(export_dir)
        folder.mkdir(parents=True, exist_ok=True)
        write_whole(folder / label_filename, "\n".join(self._label_names).encode())

    def _run(self) -> Path:
        directory = self._integer_run or self._float_run
        if directory is None:
            fix = "call ObjectDetector.create"
            raise UserError("the detector is not trained", where="ObjectDetector", fix=fix)
        return directory


def _steps_per_epoch(hparams: HParams, size: int) -> int:
    if hparams.class_weights:
        raise UserError(
            "the classes of a detector have no weights",
            where="class_weights",
            fix="leave it out; the focal loss weighs anchors by their scores",
        )
    if hparams.distribution_strategy != "off" or hparams.num_gpus or hparams.tpu:
        say_aside(
            "distribution_strategy, num_gpus and tpu have no effect: all devices of the machine "
            "are used"
        )
    if hparams.repeat and hparams.steps_per_epoch is None:
        fix = "give steps_per_epoch, or repeat=False"
        raise UserError("the length of an epoch is open", where="steps_per_epoch", fix=fix)
    whole = size // hparams.batch_size
    steps = whole if hparams.steps_per_epoch is None else hparams.steps_per_epoch
    if not hparams.repeat:
        steps = min(steps, -(-size // hparams.batch_size))
    if steps < 1 or hparams.epochs < 1:
        raise UserError("the run has no step", where="steps_per_epoch", fix="give 1 or more")
    return steps


def _network(spec: ModelSpec) -> Changes:
    height, width, _ = spec.input_image_shape
    resizer = {"kind": "scale_jitter", "height": height, "width": width}
    return {
        "name": f"mobilenet_v2_{height}x{width}",
        "model.resizer": resizer | {"min_scale": 0.5, "max_scale": 2.0, "pad_value": [127.5] * 3},
        **{f"model.{part}.min_level": spec.min_level for part in ("neck", "anchors")},
        **{f"model.{part}.max_level": spec.max_level for part in ("neck", "anchors")},
        "model.anchors.anchor_scale": 3.0,
        "model.anchors.scales_per_octave": 3,
        "model.loss.classification.gamma": 1.5,
        "model.loss.localization.delta": 0.1,
        "model.loss.localization_weight": _BOX_WEIGHT,
        "model.loss.added_matches": 1.0,
        "model.postprocessing.nms.score_threshold": 0.05,
        "model.postprocessing.nms.iou_threshold": 0.5,
        "train.augmentations": [{"kind": "random_horizontal_flip"}],
    }


def _data(train: Dataset, validation: Dataset) -> Changes:
    return {**train.records.changes("train"), **validation.records.changes("evaluation")}


def _length(steps: int, in_epoch: int, batch_size: int) -> Changes:
    return {
        "train.steps": steps,
        "train.batch_size": batch_size,
        "train.checkpoint_every": in_epoch,
        "train.evaluate_every": max(5 * in_epoch, steps // 10),
    }


def _records(data: object) -> RecordSet:
    if not isinstance(data, Dataset):
        fix = "give the result of Dataset.from_coco_folder or from_pascal_voc_folder"
        raise UserError(f"{data!r} is no Dataset", where="representative_data", fix=fix)
    return data.records
