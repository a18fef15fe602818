"""Runs the original's Faster R-CNN with Inception ResNet v2 and keeps what it computes.

    python -m tools.inception_resnet SOURCE CONFIG OUT

`SOURCE` is the unpacked source of PyPI's tf-models-research-object-detection 2.8.0.post1. Needs, in
an environment of its own with Python 3.11: tensorflow-cpu 2.15.1, keras 2.15.0, tf-slim 1.1.0,
numpy 1.26.4, protobuf 4.25.9, lvis, pycocotools, scipy, pandas, matplotlib, pillow, pyparsing.

`CONFIG` is one of the configurations in `tests/goldens/inception_resnet`. `OUT` gets a JSON file
with the names and shapes of its variables, and an `.npz` file with maps, raw predictions,
proposals, detections and losses. A process runs one generation. Weights and images are functions of
names and numbers, which tests repeat.
"""

import importlib.abc
import importlib.machinery
import json
import os
import sys
import types
import zlib
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from unittest.mock import MagicMock

import numpy as np
from numpy.typing import NDArray

from tools.drawn_images import drawn_images

Array = NDArray[Any]
GOLDENS = Path(__file__).parents[1] / "tests" / "goldens" / "inception_resnet"
SIDE, CLASSES = 96, 3
CHANNEL_STEP = 32
"""Of the channels of a feature map, one of so many is kept."""
_VALUE = "/.ATTRIBUTES/VARIABLE_VALUE"


def weight(name: str, shape: tuple[int, ...]) -> Array:
    """Returns the value that the variable of a name has; maps neither grow nor vanish."""
    z = np.random.RandomState(zlib.crc32(name.encode())).standard_normal(shape)
    match name.rpartition("/")[2]:
        case "beta":
            value = 0.1 + 0.3 * z
        case "moving_mean" | "bias" | "biases":
            value = 0.1 * z
        case "moving_variance":
            value = 1 + 0.5 * np.abs(z)
        case _:
            gain = 0.02 if "BoxEncodingPredictor" in name else 1.0
            value = z * np.sqrt(gain / np.prod(shape[:-1]))
    return value.astype(np.float32)


def images() -> Array:
    """Returns two images `[2, SIDE, SIDE, 3]` of waves and patches, in 0..255."""
    return drawn_images(5, 2, SIDE).astype(np.float32)


BOXES = np.array(
    [[[0.1, 0.2, 0.55, 0.7], [0.4, 0.5, 0.95, 0.8]], [[0.05, 0.1, 0.9, 0.6], [0.3, 0.3, 0.6, 0.6]]],
    np.float32,
)
LABELS = np.array([[0, 2], [1, 0]])


class _Absent(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Stands for packages that the original imports and these models do not use."""

    def find_spec(
        self, name: str, path: object, target: object = None
    ) -> importlib.machinery.ModuleSpec | None:
        if not name.startswith(("official", "tensorflow.contrib", "tensorflow_io")):
            return None
        return importlib.machinery.ModuleSpec(name, self, is_package=True)

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> types.ModuleType:
        module = types.ModuleType(spec.name)
        module.__getattr__ = lambda name: MagicMock()  # type: ignore[method-assign]
        return module

    def exec_module(self, module: types.ModuleType) -> None:
        pass


def _prepare(source: Path) -> None:
    os.environ |= {"TF_ENABLE_ONEDNN_OPTS": "0", "TF_CPP_MIN_LOG_LEVEL": "3"}
    os.environ["PROTOCOL_BUFFERS_PYTHON_IMPLEMENTATION"] = "python"
    sys.path[:0] = [str(source), str(source / "slim")]
    sys.meta_path.append(_Absent())
    # Names of older libraries.
    for name, builtin in {"int": int, "float": float, "bool": bool, "object": object}.items():
        setattr(np, name, builtin)
    for name in ("base", "convolutional", "core", "normalization", "pooling"):
        layers = importlib.import_module(f"keras.src.legacy_tf_layers.{name}")
        sys.modules[f"tf_keras.legacy_tf_layers.{name}"] = layers
    package = types.ModuleType("tf_keras")
    package.__path__ = []
    legacy = importlib.import_module("keras.src.legacy_tf_layers")
    sys.modules |= {"tf_keras": package, "tf_keras.legacy_tf_layers": legacy}
    ops = importlib.import_module("tensorflow.python.framework.ops")
    slices = importlib.import_module("tensorflow.python.framework.indexed_slices")
    ops.IndexedSlices = slices.IndexedSlices  # type: ignore[attr-defined]
    ops.Tensor = importlib.import_module("tensorflow").Tensor  # type: ignore[attr-defined]


def _run(
    model: Any,  # noqa: ANN401 - a class of the original
    tf: types.ModuleType,
    *,
    train: bool,
) -> dict[str, Any]:
    """Returns the tensors to keep."""
    pre, shapes = model.preprocess(tf.constant(images()))
    if train:
        model.provide_groundtruth(
            groundtruth_boxes_list=[tf.constant(boxes) for boxes in BOXES],
            groundtruth_classes_list=[
                tf.constant(np.eye(CLASSES, dtype=np.float32)[labels]) for labels in LABELS
            ],
            groundtruth_weights_list=[tf.ones(len(boxes)) for boxes in BOXES],
        )
    predicted = model.predict(pre, shapes)
    if train:
        return dict(model.loss(predicted, shapes))
    features = predicted["rpn_features_to_crop"]
    features = features[0] if isinstance(features, list) else features
    names = (
        "rpn_box_encodings",
        "rpn_objectness_predictions_with_background",
        "proposal_boxes",
        "num_proposals",
        "refined_box_encodings",
        "class_predictions_with_background",
    )
    kept = {name: predicted[name] for name in names}
    detections = model.postprocess(dict(predicted), shapes)
    last = ("detection_boxes", "detection_scores", "detection_classes", "num_detections")
    kept |= {name: detections[name] for name in last}
    return kept | {"features": features[..., ::CHANNEL_STEP]}


Run = tuple[dict[str, Array], dict[str, list[int]]]
"""What a model computed, and the shapes of its variables by name."""


def _run_first(build: Callable[[], Any], *, train: bool) -> Run:
    """Runs a model of the first generation, in a graph."""
    import tensorflow.compat.v1 as tf

    with tf.Graph().as_default():
        tensors = _run(build(), tf, train=train)
        with tf.Session() as session:
            variables = {v.op.name: v for v in tf.global_variables()}
            shapes = {name: v.shape.as_list() for name, v in variables.items()}
            # One call for all: each other set of fetches would be another graph to prepare.
            values = {
                v.initializer.inputs[1]: weight(name, tuple(shapes[name]))
                for name, v in variables.items()
            }
            session.run([v.initializer for v in variables.values()], values)
            return session.run(tensors), shapes


def _run_second(build: Callable[[], Any], *, train: bool) -> Run:
    """Runs a model of the second generation; its variables are named by their object path."""
    import tensorflow as tf

    tf.keras.backend.set_learning_phase(train)
    model = build()
    _run(model, tf.compat.v1, train=train)
    variables = _object_paths(model, tf)
    for name, variable in variables.items():
        variable.assign(weight(name, tuple(variable.shape)))
    tensors = _run(model, tf.compat.v1, train=train)
    shapes = {name: list(v.shape) for name, v in variables.items()}
    return {name: np.asarray(tensor) for name, tensor in tensors.items()}, shapes


def _object_paths(
    model: Any,  # noqa: ANN401 - a class of the original
    tf: types.ModuleType,
) -> dict[str, Any]:
    """Returns the variables by their keys in checkpoints: each holds a number of its own."""
    parts = [
        model._feature_extractor_for_proposal_features,
        model._feature_extractor_for_box_classifier_features,
        model._first_stage_box_predictor_first_conv,
        model._first_stage_box_predictor,
        model._mask_rcnn_box_predictor,
    ]
    variables = {id(v): v for part in parts for v in part.variables}
    numbered = dict(enumerate(variables.values()))
    for number, variable in numbered.items():
        variable.assign(tf.fill(variable.shape, float(number)))
    with TemporaryDirectory() as folder:
        prefix = tf.train.Checkpoint(model=model).write(f"{folder}/model")
        reader = tf.train.load_checkpoint(prefix)
        keys = [key for key in reader.get_variable_to_shape_map() if key.startswith("model/")]
        paths = {
            key.removesuffix(_VALUE): numbered[int(reader.get_tensor(key).flat[0])]
            for key in sorted(keys)
        }
    assert len(paths) == len(variables)
    return paths


def _keep(name: str, out: Path, shapes: Mapping[str, list[int]], arrays: dict[str, Array]) -> None:
    lines = [json.dumps([path, shape]) for path, shape in sorted(shapes.items())]
    (out / f"{name}.json").write_text("[\n" + ",\n".join(lines) + "\n]\n")
    np.savez_compressed(out / f"{name}.npz", **arrays)  # type: ignore[arg-type]


def main(source: Path, path: Path, out: Path) -> None:
    """Writes the files of a configuration."""
    _prepare(source)
    run = _run_second if "keras" in path.stem else _run_first
    if run is _run_first:
        # The builders look for the generation when they are imported.
        importlib.import_module("tensorflow.compat.v1").disable_v2_behavior()
    text_format = importlib.import_module("google.protobuf.text_format")
    model_builder = importlib.import_module("object_detection.builders.model_builder")
    pipeline_pb2 = importlib.import_module("object_detection.protos.pipeline_pb2")
    config = text_format.Parse(path.read_text(), pipeline_pb2.TrainEvalPipelineConfig())
    arrays: dict[str, Array] = {}
    for train in (False, True):
        build = partial(model_builder.build, config.model, is_training=train, add_summaries=False)
        tensors, shapes = run(build, train=train)
        arrays |= tensors
    _keep(path.stem, out, shapes, arrays)
    print(path.stem, {name: array.shape for name, array in arrays.items()})


if __name__ == "__main__":
    main(Path(sys.argv[1]).resolve(), Path(sys.argv[2]), Path(sys.argv[3]))
