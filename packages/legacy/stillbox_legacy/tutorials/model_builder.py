"""`object_detection.builders.model_builder`: a detector with the calls of the original's notebooks.

`build` returns an object with `preprocess`, `predict` and `postprocess`. They take NumPy arrays,
and with TensorFlow its tensors too, also inside `tf.function`. Weights come from `restore`, or, if
TensorFlow was imported before `build`, from `tf.train.Checkpoint(model=detector).restore(...)`: the
detector then has a variable for each array, under the names of the original's TF2 checkpoints.
"""

import functools
import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np

from stillbox.checkpoints.importer import load_weights
from stillbox.checkpoints.model_directory import is_model_directory
from stillbox.checkpoints.names import object_paths
from stillbox.checkpoints.trained import load_trained
from stillbox.devices.setup import prepare_process
from stillbox.errors import UserError
from stillbox.evaluation.program import BoundDetect, predict_program
from stillbox.experiment.pipeline_config import read_pipeline_config
from stillbox.experiment.resolve import resolve_reading
from stillbox.experiment.schema import Experiment
from stillbox.inputs.resize import resize_image
from stillbox.models.build import abstract_detector
from stillbox.models.variables import Arrays
from stillbox_legacy.tutorials.protos import load_module

_OUTPUTS = ("detection_boxes", "detection_scores", "detection_classes", "num_detections")
_ROOT = "model/"
_NEVER_ZERO = (".kernel", ".scale", ".var")


def build(
    model_config: Any,  # noqa: ANN401
    is_training: bool,
    add_summaries: bool = True,
) -> "DetectionModel":
    """Returns the detector of a message `DetectionModel`.

    Args:
        model_config: as `get_configs_from_pipeline_file(...)["model"]`.
        is_training: False; training is `model_main_tf2.py`.
        add_summaries: without effect.

    Raises:
        UserError: the config is not supported, or `is_training` is set.
    """
    from google.protobuf import text_format

    del add_summaries  # predictions have none
    if is_training:
        raise UserError(
            "a detector that a loop of TensorFlow trains is not there",
            where="model_builder.build",
            fix="train with model_main_tf2.py, or stillbox.train, and give is_training=False",
        )
    pipeline = load_module("pipeline").TrainEvalPipelineConfig()
    pipeline.model.CopyFrom(model_config)
    text = text_format.MessageToString(pipeline)
    reading = read_pipeline_config(text, "model_config", name="model")
    return _class_for(sys.modules.get("tensorflow"))(
        resolve_reading(reading, "model_config").experiment
    )


@dataclass
class _State:
    """What TensorFlow's modules would wrap if it were among their attributes."""

    weights: tuple[Arrays, Arrays] | None = None
    """Parameters and moving statistics, once they are restored."""
    programs: dict[int, BoundDetect] = field(default_factory=dict)
    """By batch size."""
    variables: dict[str, Any] = field(default_factory=dict)
    """Variables of TensorFlow by path."""


class DetectionModel:
    """A detector that is built first and restored from a checkpoint later.

    Args:
        experiment: of the config.
    """

    def __init__(self, experiment: Experiment) -> None:
        prepare_process()
        self._experiment = experiment
        self._state = _State()

    @property
    def num_classes(self) -> int:
        """The number of classes."""
        return int(self._experiment.model.num_classes)

    def restore(self, path: str | os.PathLike[str]) -> "DetectionModel":
        """Loads weights: a model directory, or a checkpoint such as `models/mine/ckpt-3`.

        Raises:
            UserError: there are none, or they do not fit.
        """
        place = Path(path)
        if is_model_directory(place):
            model = load_trained(place)
        else:
            model = load_weights(self._experiment, str(place))
        self._state = _State(weights=(model.params, model.stats))
        return self

    def expect_partial(self) -> "DetectionModel":
        """Returns itself: every array of the detector was restored."""
        return self

    def preprocess(self, inputs: Any) -> tuple[Any, Any]:  # noqa: ANN401
        """Resizes images; they are normalised in `predict`.

        Args:
            inputs: `[B, h, w, 3]` in 0..255.

        Returns:
            Images `[B, H, W, 3]` float32 in 0..255 and the true shapes `[B, 3]` int32.
        """
        images = np.asarray(inputs)
        if images.ndim != 4 or images.shape[-1] != 3:
            raise UserError(
                f"images are [B, h, w, 3], and these {list(images.shape)}",
                where="preprocess",
                fix="np.expand_dims(image, 0) makes a batch of one image",
            )
        pixels = images.astype(np.float32)
        resized = [resize_image(image, self._experiment.model.resizer) for image in pixels]
        sizes = np.array([(*size, 3) for _, size in resized], np.int32)
        return np.stack([image for image, _ in resized]).astype(np.float32), sizes

    def predict(self, preprocessed_inputs: Any, true_image_shapes: Any) -> dict[str, Any]:  # noqa: ANN401
        """Detects in images of `preprocess`; the result is for `postprocess`.

        Raises:
            UserError: no weights were restored.
        """
        images = np.asarray(preprocessed_inputs, np.float32)
        detections = self._program(len(images))(images, np.asarray(true_image_shapes)[:, :2])
        boxes, scores, classes = (
            np.asarray(array, np.float32)
            for array in (detections.boxes, detections.scores, detections.classes)
        )
        counts = np.asarray(detections.count, np.float32)
        rows = np.arange(scores.shape[1]) < counts[:, None]
        columns = (boxes * rows[..., None], scores * rows, classes * rows, counts)
        return dict(zip(_OUTPUTS, columns, strict=True))

    def postprocess(
        self,
        prediction_dict: Mapping[str, Any],
        true_image_shapes: Any,  # noqa: ANN401
    ) -> dict[str, Any]:
        """Returns detections, best first.

        Returns:
            `detection_boxes` `[B, K, 4]` in 0..1 of the image, `detection_scores` `[B, K]`,
            `detection_classes` `[B, K]`, which begin at 0, and `num_detections` `[B]`, all float32.
        """
        del true_image_shapes  # boxes are fractions of the image already
        return {name: prediction_dict[name] for name in _OUTPUTS}

    def _program(self, batch_size: int) -> BoundDetect:
        state = self._state
        if state.weights is None:
            state.weights = self._restored()
        if batch_size not in state.programs:
            program = predict_program(self._experiment, batch_size=batch_size)
            state.programs[batch_size] = program.bind(*state.weights)
        return state.programs[batch_size]

    def _restored(self) -> tuple[Arrays, Arrays]:
        raise UserError(
            "the detector has no weights", where="predict", fix="call detector.restore(checkpoint)"
        )


@functools.cache
def _class_for(tf: Any) -> type[DetectionModel]:  # noqa: ANN401
    """Returns the class of detectors; with TensorFlow they are modules with variables."""
    if tf is None:
        return DetectionModel

    class TensorFlowDetectionModel(DetectionModel, tf.Module):
        """A detector for `tf.train.Checkpoint` and `tf.function`."""

        def __init__(self, experiment: Experiment) -> None:
            tf.Module.__init__(self)
            DetectionModel.__init__(self, experiment)
            _, params, stats = abstract_detector(experiment.model, "float32")
            paths = object_paths(experiment.model, {**params, **stats})
            for path, array in {**params, **stats}.items():
                if path in paths:
                    value = tf.Variable(tf.zeros(array.shape), trainable=False)
                    _place(tf, self, paths[path].removeprefix(_ROOT).split("/"), value)
                    self._state.variables[path] = value

        def _restored(self) -> tuple[Arrays, Arrays]:
            _, params, stats = abstract_detector(self._experiment.model, "float32")
            arrays = {p: jnp.asarray(value.numpy()) for p, value in self._state.variables.items()}
            lost = {*params, *stats} - {path for path, array in arrays.items() if array.any()}
            # Offsets and moving means may be zero; no kernel is.
            lost = {path for path in lost if path.endswith(_NEVER_ZERO)}
            if lost or not arrays:
                raise UserError(
                    "the checkpoint has not filled the detector: "
                    + (f"{len(lost)} arrays, such as {min(lost)}" if lost else "no array"),
                    where="predict",
                    fix="write detector.restore(path) in place of "
                    "tf.train.Checkpoint(model=detector).restore(path)",
                )
            return {path: arrays[path] for path in params}, {path: arrays[path] for path in stats}

        def preprocess(self, inputs: Any) -> tuple[Any, Any]:  # noqa: ANN401
            """See `DetectionModel.preprocess`."""
            function = functools.partial(DetectionModel.preprocess, self)
            if not tf.is_tensor(inputs):
                return function(inputs)
            images, shapes = tf.numpy_function(function, [inputs], (tf.float32, tf.int32))
            return images, shapes

        def predict(self, preprocessed_inputs: Any, true_image_shapes: Any) -> dict[str, Any]:  # noqa: ANN401
            """See `DetectionModel.predict`."""
            if not tf.is_tensor(preprocessed_inputs):
                return DetectionModel.predict(self, preprocessed_inputs, true_image_shapes)

            def columns(images: np.ndarray, shapes: np.ndarray) -> list[np.ndarray]:
                detections = DetectionModel.predict(self, images, shapes)
                return [detections[name] for name in _OUTPUTS]

            inputs = [preprocessed_inputs, true_image_shapes]
            arrays = tf.numpy_function(columns, inputs, [tf.float32] * len(_OUTPUTS))
            return dict(zip(_OUTPUTS, arrays, strict=True))

    return TensorFlowDetectionModel


def _place(tf: Any, root: Any, names: list[str], value: Any) -> None:  # noqa: ANN401
    """Makes a variable an attribute of an attribute, and so on, as its path says."""
    place = root
    for name in names[:-1]:
        if not hasattr(place, name):
            setattr(place, name, tf.Module())
        place = getattr(place, name)
    setattr(place, names[-1], value)
