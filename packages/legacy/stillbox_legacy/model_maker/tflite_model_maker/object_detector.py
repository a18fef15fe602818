"""`tflite_model_maker.object_detector`: data, and the detector that is trained on it."""

from collections.abc import Mapping, Sequence
from pathlib import Path

from stillbox.devices.announcing import say_aside
from stillbox.errors import UserError, nearest
from stillbox.experiment.updating import NO_CHANGES, Changes
from stillbox.experiment.yaml_config import to_yaml
from stillbox.records.files import write_whole
from stillbox_legacy.model_maker import detectors
from stillbox_legacy.model_maker.datasets import (
    RecordSet,
)
from stillbox_legacy.model_maker.quantization import FLOAT, Quantization, QuantizationConfig
from stillbox_legacy.model_maker.tflite_model_maker import model_spec as ms
from stillbox_legacy.model_maker.tflite_model_maker.config import Config, ExportFormat
from stillbox_legacy.model_maker.tflite_model_maker.data_loader import DataLoader as DataLoader
from stillbox_legacy.model_maker.tflite_model_maker.model_spec import EfficientDetModelSpec

EfficientDetSpec = EfficientDetModelSpec
EfficientDetLite0Spec = ms.MODEL_SPECS["efficientdet_lite0"]
EfficientDetLite1Spec = ms.MODEL_SPECS["efficientdet_lite1"]
EfficientDetLite2Spec = ms.MODEL_SPECS["efficientdet_lite2"]
EfficientDetLite3Spec = ms.MODEL_SPECS["efficientdet_lite3"]
EfficientDetLite4Spec = ms.MODEL_SPECS["efficientdet_lite4"]


class ObjectDetector:
    """A detector of the kind of a specification.

    Args:
        model_spec: the specification.
        label_map: names of the classes by id.
        representative_data: measured for integers by `export`.
    """

    ALLOWED_EXPORT_FORMAT = (ExportFormat.TFLITE, ExportFormat.SAVED_MODEL, ExportFormat.LABEL)

    def __init__(
        self,
        model_spec: EfficientDetModelSpec,
        label_map: Mapping[int, str],
        representative_data: DataLoader | None = None,
    ) -> None:
        self.model_spec = model_spec
        self.representative_data = representative_data
        model_spec.config.label_map = Config(dict(label_map))
        model_spec.config.num_classes = max(label_map)
        self.directory: Path | None = None
        """The run, once there is one."""

    @classmethod
    def create(
        cls,
        train_data: DataLoader,
        model_spec: EfficientDetModelSpec | str,
        validation_data: DataLoader | None = None,
        epochs: int | None = None,
        batch_size: int | None = None,
        train_whole_model: bool = False,
        do_train: bool = True,
    ) -> "ObjectDetector":
        """Trains a detector.

        Args:
            train_data: images to train on.
            model_spec: the specification or its name.
            validation_data: images that are scored on the way; None: nothing is scored.
            epochs: passes over the images; None: as in the specification.
            batch_size: images of a step; None: as in the specification.
            train_whole_model: freeze nothing. Otherwise `var_freeze_expr` counts, for parts with
                initial weights that are not random.
            do_train: train; otherwise the detector has its initial weights.

        Raises:
            UserError: the data are fewer than a batch, or a value has no counterpart.
        """
        spec = ms.get(model_spec)
        if epochs is not None:
            spec.config.num_epochs = epochs
        if batch_size is not None:
            spec.config.batch_size = batch_size
        if train_whole_model:
            spec.config.var_freeze_expr = None
        detector = cls(spec, train_data.label_map, train_data)
        if do_train:
            detector.train(train_data, validation_data, epochs, batch_size)
        else:
            raise UserError(
                "a detector that is not trained has random predictors and finds nothing",
                where="do_train=False",
                fix="leave do_train at True, with epochs=1 for a look",
            )
        return detector

    def train(
        self,
        train_data: DataLoader,
        validation_data: DataLoader | None = None,
        epochs: int | None = None,
        batch_size: int | None = None,
    ) -> Path:
        """Trains, or resumes the same run; returns the model directory of stillbox.

        Raises:
            UserError: see `create`.
        """
        config = self.model_spec.config
        size = batch_size or int(config.batch_size)
        detectors.refuse_small(len(train_data), size)
        if validation_data is not None and len(validation_data) < size:
            say_aside(
                f"validation_data has fewer images than a batch of {size}: not scored on the way, "
                "as in the original"
            )
            validation_data = None
        experiment = self.model_spec.experiment(
            train_data.records,
            validation_data.records if validation_data else None,
            epochs or int(config.num_epochs),
            size,
        )
        self.directory = detectors.train_run(experiment, Path(str(config.model_dir)))
        return self.directory

    def summary(self) -> None:
        """Prints the experiment."""
        print(to_yaml(self.model_spec.recipe))

    def evaluate(self, data: DataLoader, batch_size: int | None = None) -> dict[str, float]:
        """Returns COCO's numbers, and the AP of each class as `AP_/NAME`.

        Raises:
            UserError: the data and the detector have different classes.
        """
        size = batch_size or int(self.model_spec.config.batch_size)
        return self._scores(self._run(), data, {"evaluation.batch_size": min(size, len(data))})

    def evaluate_tflite(self, tflite_filepath: str, data: DataLoader) -> dict[str, float]:
        """Returns the numbers of `evaluate` for a file that `export` has written, run by LiteRT.

        Raises:
            UserError: the file is another one.
        """
        return self._scores(detectors.find_export(self._run(), Path(tflite_filepath)), data)

    def _scores(
        self, source: Path, data: DataLoader, changes: Changes = NO_CHANGES
    ) -> dict[str, float]:
        result = detectors.score(source, data.records, changes)
        classes = {
            f"AP_/{name}": detectors.class_metrics(result, name)[0]
            for _, name in sorted(data.label_map.items())
        }
        return detectors.coco_metrics(result) | classes

    def export(
        self,
        export_dir: str,
        tflite_filename: str = "model.tflite",
        label_filename: str = "labels.txt",
        vocab_filename: str = "vocab.txt",
        saved_model_filename: str = "saved_model",
        tfjs_folder_name: str = "tfjs",
        export_format: ExportFormat | Sequence[ExportFormat] | None = None,
        **kwargs: object,
    ) -> None:
        """Writes the detector.

        Args:
            export_dir: folder of all files.
            tflite_filename: name of the TFLite file, which has metadata and labels inside.
            label_filename: name of the file of labels.
            vocab_filename: without effect: a detector has no vocabulary.
            saved_model_filename: name of the folder of the SavedModel.
            tfjs_folder_name: without effect: TensorFlow.js is refused, as in the original.
            export_format: one or several; None: TFLite.
            kwargs: `quantization_config` for the TFLite file: 'default' is integers measured on
                the training data, None floats. `with_metadata` and `export_metadata_json_file`
                have no effect: metadata are always inside.

        Raises:
            UserError: the format cannot be written, or the file differs from the checkpoint.
        """
        formats = export_format if isinstance(export_format, list | tuple) else [export_format]
        wanted = [given or ExportFormat.TFLITE for given in formats]
        for kind in wanted:
            if kind not in self.ALLOWED_EXPORT_FORMAT:
                allowed = ", ".join(known.name for known in self.ALLOWED_EXPORT_FORMAT)
                sentence = f"an object detector is not exported as {kind}"
                raise UserError(sentence, where="export_format", fix=f"use {allowed}")
        config = kwargs.pop("quantization_config", "default")
        for name in ("with_metadata", "export_metadata_json_file"):
            if kwargs.pop(name, name == "with_metadata") != (name == "with_metadata"):
                say_aside(f"{name} has no effect: metadata and labels are inside the TFLite file")
        if kwargs:
            names = ("quantization_config", "with_metadata", "export_metadata_json_file")
            name = sorted(kwargs)[0]
            raise UserError(f"there is no {name!r}", where="export", fix=nearest(name, names))
        folder = Path(export_dir)
        folder.mkdir(parents=True, exist_ok=True)
        if ExportFormat.TFLITE in wanted:
            data = self.representative_data
            detectors.export_tflite(
                self._run(),
                folder / tflite_filename,
                self._quantization(config),
                data.records if data else None,
                max_detections=int(self.model_spec.config.tflite_max_detections),
            )
        if ExportFormat.SAVED_MODEL in wanted:
            detectors.export_saved_model(self._run(), folder / saved_model_filename)
        if ExportFormat.LABEL in wanted:
            names = self.model_spec.config.label_map.as_dict()
            lines = (names.get(class_id, "???") for class_id in range(1, max(names) + 1))
            write_whole(folder / label_filename, "".join(f"{line}\n" for line in lines).encode())

    def _quantization(self, config: object) -> Quantization:
        if config == "default":
            if self.representative_data is None:
                fix = "give quantization_config=None for floats"
                raise UserError("there are no images to measure on", where="export", fix=fix)
            config = QuantizationConfig.for_int8(
                self.representative_data, inference_output_type=None
            )
        if config is None:
            return FLOAT
        if not isinstance(config, QuantizationConfig):
            fix = "use tflite_model_maker.config.QuantizationConfig"
            raise UserError(f"{config!r} is no configuration", where="quantization_config", fix=fix)
        return config.resolve(_records)

    def _run(self) -> Path:
        if self.directory is None:
            raise UserError("the detector is not trained", where="train", fix="call train first")
        return self.directory


def _records(data: object) -> RecordSet:
    if not isinstance(data, DataLoader):
        fix = "give the result of DataLoader.from_pascal_voc or another of its readers"
        raise UserError(f"{data!r} is no DataLoader", where="representative_data", fix=fix)
    return data.records


create = ObjectDetector.create
