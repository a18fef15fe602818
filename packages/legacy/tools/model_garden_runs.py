"""Runs the original's RetinaNet of TensorFlow Model Garden and keeps what it computes.

    folder=packages/legacy/tests/goldens/model_garden
    python -m packages.legacy.tools.model_garden_runs $folder [CASE ...]

Needs, in an environment of its own with Python 3.11: tensorflow-cpu 2.15.1, tf-keras 2.15.1, numpy
1.26.4, protobuf 4.25, and, installed without what it depends on, tf-models-official 2.15.0
(gin-config, immutabledict, matplotlib, opencv-python-headless, pandas, pycocotools, pyyaml, scipy,
tensorflow-datasets 4.9.6, pyarrow 17, tensorflow-hub, tensorflow-metadata 1.15,
tensorflow-model-optimization, tf-slim).

A case is a YAML file in the folder. Its first line names its experiment. A case gets a JSON file
with the keys of its variables in checkpoints and their shapes, and an `.npz` file: raw outputs and
detections of two images, and for three steps of training the losses and what became of the
variables. `checkpoint.zip` is a checkpoint as `official/vision/train.py` writes it; each variable
is filled with one number. `backbones.npz` has maps of the other mobile backbones, and
`optimizers.npz` some steps of update rules, clipping and rates alone. Weights, images and boxes are
functions of names and numbers, which tests repeat.
"""

import importlib
import json
import os
import sys
import zipfile
import zlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from tools.drawn_images import drawn_images

Array = NDArray[Any]
GOLDENS = Path(__file__).parents[1] / "tests" / "goldens" / "model_garden"
IMAGES, STEPS, SAMPLES = 2, 3, 8
BACKBONE_SIDE = 64
BACKBONES = {
    f"{kind}={model}": {"type": kind, kind: {"model_id": model, "filter_size_scale": 0.25}}
    for kind, models in {
        "mobilenet": (
            "MobileNetV1",
            "MobileNetV3Large",
            "MobileNetV3Small",
            "MobileNetV3EdgeTPU",
            "MobileNetMultiAVG",
            "MobileNetMultiMAX",
        ),
        "mobiledet": ("MobileDetDSP", "MobileDetEdgeTPU", "MobileDetGPU"),
    }.items()
    for model in models
}
"""Backbones by a name."""
_FALL = {"initial_learning_rate": 0.05, "decay_steps": 8}
_LINE = {"type": "linear", "linear": {"warmup_steps": 4, "warmup_learning_rate": 0.01}}
_CONSTANT = {"type": "constant", "constant": {"learning_rate": 0.05}}
_SMOOTH = {"type": "exponential", "exponential": {**_FALL, "decay_rate": 0.5}}
_STRAIGHT = {"type": "polynomial", "polynomial": _FALL}
_CURVED = {"type": "polynomial", "polynomial": {**_FALL, "power": 2.0, "end_learning_rate": 0.002}}
_COSINE = {"type": "cosine", "cosine": _FALL}
OPTIMIZERS: dict[str, tuple[dict[str, Any], dict[str, Any], dict[str, Any]]] = {
    "sgd": ({"momentum": 0.9}, _COSINE, _LINE),
    "sgd nesterov": ({"momentum": 0.9, "nesterov": True}, _STRAIGHT, {}),
    "sgd_experimental nesterov": ({"momentum": 0.8, "nesterov": True}, _CURVED, _LINE),
    "adam": ({"beta_1": 0.8}, _SMOOTH, _LINE),
    "adam_experimental": ({"epsilon": 1e-3}, _CONSTANT, {}),
    "adamw": ({"weight_decay_rate": 0.1, "epsilon": 1e-3}, _CURVED, {}),
    "adamw_experimental": ({"weight_decay": 0.2}, _CONSTANT, _LINE),
    "sgd clipnorm, clipvalue": ({"momentum": 0.9, "clipnorm": 1.5, "clipvalue": 1.0}, _COSINE, {}),
    "sgd_experimental clipnorm": ({"momentum": 0.8, "clipnorm": 1.5}, _CONSTANT, {}),
    "adam clipvalue": ({"beta_1": 0.8, "clipvalue": 0.3}, _CONSTANT, {}),
    "adamw clipnorm": ({"gradient_clip_norm": 0.0, "clipnorm": 0.5}, _CONSTANT, {}),
    "rmsprop": ({"rho": 0.8, "epsilon": 1e-2}, _SMOOTH, {}),
    "rmsprop momentum": ({"rho": 0.8, "momentum": 0.7, "epsilon": 1e-2}, _STRAIGHT, _LINE),
}
"""Type, with a word if there are several: its fields, the learning rate and the warm-up."""
OPTIMIZER_STEPS = 12
CHECKPOINT = "checkpoint"
"""The case that keeps its checkpoint."""
_VALUE = "/.ATTRIBUTES/VARIABLE_VALUE"


def weight(name: str, shape: tuple[int, ...]) -> Array:
    """Returns the value that the variable of a name has.

    Most units lie well above 0: in a network of random signs an error of rounding would double in
    every layer.
    """
    z = np.random.RandomState(zlib.crc32(name.encode())).standard_normal(shape)
    match name.rpartition("/")[2]:
        case "gamma":
            value = 0.4 + 0.05 * z
        case "beta":
            value = 1.2 + 0.1 * z
        case "bias" if "_classifier" in name:
            value = -4.6 + 0.1 * z
        case "moving_mean" | "bias":
            value = 0.1 * z
        case "moving_variance":
            value = 1 + 0.5 * np.abs(z)
        case "depthwise_kernel":
            value = z / np.sqrt(np.prod(shape[:2]))
        case _:
            value = z / np.sqrt(np.prod(shape[:-1]))
    return value.astype(np.float32)


def images(side: int) -> Array:
    """Returns images `[IMAGES, side, side, 3]` of waves and patches, whole numbers in 0..255."""
    return drawn_images(7, IMAGES, side).round().astype(np.float32)


BOXES = np.array(
    [[[0.1, 0.2, 0.55, 0.7], [0.4, 0.5, 0.95, 0.8]], [[0.05, 0.1, 0.9, 0.6], [0.3, 0.3, 0.6, 0.6]]],
    np.float32,
)
"""Two of each image, ymin, xmin, ymax, xmax in 0..1."""
LABELS = np.array([[1, 3], [2, 1]])
"""Ids in a label map: 0 is the background."""


def samples(array: Array) -> Array:
    """Returns norm and some values of a variable."""
    flat = array.astype(np.float64).ravel()
    places = np.linspace(0, flat.size - 1, SAMPLES).astype(int)
    return np.concatenate([[np.linalg.norm(flat)], flat[places]]).astype(np.float32)


class _Original(NamedTuple):
    """A task of the original and its model."""

    tf: Any
    task: Any
    model: Any
    config: Any


def _tensorflow() -> Any:  # noqa: ANN401
    os.environ |= {"TF_ENABLE_ONEDNN_OPTS": "0", "TF_CPP_MIN_LOG_LEVEL": "3"}
    return importlib.import_module("tensorflow")


def _build(path: Path) -> _Original:
    tf = _tensorflow()
    importlib.import_module("official.vision.configs.retinanet")
    experiment = path.read_text().splitlines()[0].removeprefix("# ")
    config = importlib.import_module("official.core.exp_factory").get_exp_config(experiment)
    hyperparams = importlib.import_module("official.modeling.hyperparams")
    config = hyperparams.override_params_dict(config, str(path), is_strict=True)
    task = importlib.import_module("official.vision.tasks.retinanet").RetinaNetTask(config.task)
    model = task.build_model()
    height, width, _ = config.task.model.input_size
    model(tf.zeros([1, height, width, 3]), tf.constant([[height, width]]), training=False)
    return _Original(tf, task, model, config)


def _object_paths(
    tf: Any,  # noqa: ANN401
    variables: list[Any],
    items: Mapping[str, Any],
) -> dict[str, Any]:
    """Returns variables by their keys in checkpoints of parts: each holds a number of its own."""
    numbered = dict(enumerate(variables))
    for number, variable in numbered.items():
        variable.assign(tf.fill(variable.shape, float(number)))
    with TemporaryDirectory() as folder:
        prefix = tf.train.Checkpoint(**items).write(f"{folder}/model")
        reader = tf.train.load_checkpoint(prefix)
        keys = [key for key in reader.get_variable_to_shape_map() if key.endswith(_VALUE)]
        keys_of_objects = {
            key.removesuffix(_VALUE): numbered[int(reader.get_tensor(key).flat[0])]
            for key in sorted(keys)
        }
    assert len(keys_of_objects) == len(numbered), (len(keys_of_objects), len(numbered))
    return keys_of_objects


def _paths_of(original: _Original) -> dict[str, Any]:
    model = original.model
    return _object_paths(original.tf, model.variables, model.checkpoint_items)


def _inputs(original: _Original) -> tuple[Any, dict[str, Any]]:
    """Returns normalised images and the labels that the original makes of boxes."""
    tf, model = original.tf, original.config.task.model
    anchor = importlib.import_module("official.vision.ops.anchor")
    preprocess = importlib.import_module("official.vision.ops.preprocess_ops")
    height, width, _ = model.input_size
    generator = anchor.build_anchor_generator(
        min_level=model.min_level,
        max_level=model.max_level,
        num_scales=model.anchor.num_scales,
        aspect_ratios=model.anchor.aspect_ratios,
        anchor_size=model.anchor.anchor_size,
    )
    boxes = generator(image_size=(height, width))
    parser = original.config.task.train_data.parser
    labeler = anchor.AnchorLabeler(
        match_threshold=parser.match_threshold, unmatched_threshold=parser.unmatched_threshold
    )
    size = np.array([height, width, height, width], np.float32)
    labelled = [
        labeler.label_anchors(boxes, tf.constant(corners * size), tf.constant(classes[:, None]))
        for corners, classes in zip(BOXES, LABELS, strict=True)
    ]
    names = ("cls_targets", "box_targets", "attributes", "cls_weights", "box_weights")
    labels = {
        name: tf.nest.map_structure(lambda *parts: tf.stack(parts), *parts)
        for name, parts in zip(names, zip(*labelled, strict=True), strict=True)
        if name != "attributes"
    }
    # Only bytes are divided by 255.
    pixels = [preprocess.normalize_image(tf.cast(image, tf.uint8)) for image in images(height)]
    return tf.stack(pixels), labels


def _predict(original: _Original, pixels: Any) -> Iterator[tuple[str, Array]]:  # noqa: ANN401
    """Yields raw outputs by level, and detections."""
    shape = original.tf.constant([pixels.shape[1:3]] * IMAGES, original.tf.float32)
    outputs = original.model(pixels, shape, training=False)
    for name in ("cls_outputs", "box_outputs"):
        yield from ((f"{name}/{level}", values.numpy()) for level, values in outputs[name].items())
    for name in ("boxes", "scores", "classes"):
        yield f"detection_{name}", outputs[f"detection_{name}"].numpy()
    yield "num_detections", outputs["num_detections"].numpy()


def _train(
    original: _Original,
    variables: Mapping[str, Any],
    pixels: Any,  # noqa: ANN401
    labels: Mapping[str, Any],
) -> Iterator[tuple[str, Array]]:
    """Yields the losses of some steps, and the variables after the last."""
    task, config = original.task, original.config
    optimizer = task.create_optimizer(config.trainer.optimizer_config, config.runtime)
    rows = []
    for _ in range(STEPS):
        metrics = task.build_metrics(training=True)
        logs = task.train_step((pixels, labels), original.model, optimizer, metrics)
        values = {name: float(value) for name, value in logs.items()}
        rows.append([values[name] for name in ("cls_loss", "box_loss", "model_loss", "total_loss")])
    yield "losses", np.array(rows)
    trained = [samples(variable.numpy()) for variable in variables.values()]
    yield "trained", np.stack(trained)


def _run(path: Path) -> None:
    original = _build(path)
    variables = _paths_of(original)
    for name, variable in variables.items():
        variable.assign(weight(name, tuple(variable.shape)))
    pixels, labels = _inputs(original)
    arrays = dict(_predict(original, pixels))
    arrays |= _train(original, variables, pixels, labels)
    lines = [json.dumps([name, list(v.shape)]) for name, v in variables.items()]
    path.with_suffix(".json").write_text("[\n" + ",\n".join(lines) + "\n]\n")
    np.savez_compressed(path.with_suffix(".npz"), **arrays)  # type: ignore[arg-type]
    print(path.stem, len(variables), arrays["losses"].tolist())


def _write_checkpoint(path: Path) -> None:
    """Writes what a trainer saves: the model, its parts, the optimiser and the step."""
    original = _build(path)
    tf, model, config = original.tf, original.model, original.config
    _, labels = _inputs(original)
    optimizer = original.task.create_optimizer(config.trainer.optimizer_config, config.runtime)
    original.task.train_step((_inputs(original)[0], labels), model, optimizer)
    paths = _paths_of(original)
    for number, variable in enumerate(paths.values()):
        variable.assign(tf.fill(variable.shape, float(number)))
    for slot in optimizer.variables():
        if slot.dtype == tf.float32:
            slot.assign(tf.fill(slot.shape, -1.0))
    checkpoint = tf.train.Checkpoint(
        global_step=tf.Variable(7, dtype=tf.int64),
        model=model,
        optimizer=optimizer,
        **model.checkpoint_items,
    )
    with TemporaryDirectory() as folder:
        checkpoint.save(f"{folder}/ckpt")
        with zipfile.ZipFile(path.with_suffix(".zip"), "w", zipfile.ZIP_DEFLATED) as archive:
            for file in sorted(Path(folder).glob("ckpt-1.*")):
                archive.write(file, file.name)
    lines = [json.dumps([name, list(v.shape)]) for name, v in paths.items()]
    path.with_suffix(".json").write_text("[\n" + ",\n".join(lines) + "\n]\n")


def _run_backbones(folder: Path) -> None:
    """Writes names, shapes and samples of the maps of the backbones alone."""
    tf, importer = _tensorflow(), importlib.import_module
    model_config = importer("official.vision.configs.retinanet").RetinaNet
    factory = importer("official.vision.modeling.backbones").factory
    specs = tf.keras.layers.InputSpec(shape=[None, BACKBONE_SIDE, BACKBONE_SIDE, 3])
    pixels = tf.constant(images(BACKBONE_SIDE) / 255 - 0.5)
    arrays: dict[str, Array] = {}
    names: dict[str, dict[str, list[int]]] = {}
    for name, fields in BACKBONES.items():
        config = model_config(backbone=fields)
        backbone = factory.build_backbone(specs, config.backbone, config.norm_activation)
        variables = _object_paths(tf, backbone.variables, {"backbone": backbone})
        for key, variable in variables.items():
            variable.assign(weight(key, tuple(variable.shape)))
        names[name] = {key: list(variable.shape) for key, variable in variables.items()}
        maps = backbone(pixels, training=False)
        arrays |= {
            f"{name}/{level}": samples(maps[level].numpy()) for level in backbone.output_specs
        }
        print(name, len(variables), flush=True)
    lines = [f"{json.dumps(name)}: {json.dumps(keys)}" for name, keys in names.items()]
    (folder / "backbones.json").write_text("{\n" + ",\n".join(lines) + "\n}\n")
    np.savez_compressed(folder / "backbones.npz", **arrays)  # type: ignore[arg-type]


STARTS = np.concatenate([np.linspace(-1, 1, 5), [0.5, -0.25, 2.0]]).astype(np.float32)
"""Where the variables of an optimiser alone begin."""


def parts(numbers: Array) -> list[Array]:
    """Returns the numbers of two variables."""
    return np.split(numbers, [5])


def gradients(step: int) -> Array:
    """Returns what an optimiser alone is fed with: of two variables, 5 and 3 numbers."""
    return np.random.RandomState(step).standard_normal(8).astype(np.float32)


def _run_optimizers(folder: Path) -> None:
    """Writes rate and variables of each step."""
    tf, importer = _tensorflow(), importlib.import_module
    make = importer("official.modeling.optimization.configs.optimization_config").OptimizationConfig
    factory_of = importer("official.modeling.optimization.optimizer_factory").OptimizerFactory
    arrays = {}
    for name, (fields, rate, warmup) in OPTIMIZERS.items():
        kind = name.partition(" ")[0]
        rule = {"type": kind, kind: fields}
        factory = factory_of(make({"optimizer": rule, "learning_rate": rate, "warmup": warmup}))
        rates = factory.build_learning_rate()
        optimizer = factory.build_optimizer(rates)
        variables = [tf.Variable(part) for part in parts(STARTS)]
        rows = []
        for step in range(OPTIMIZER_STEPS):
            now = float(rates(step)) if callable(rates) else rates
            given = map(tf.constant, parts(gradients(step)))
            optimizer.apply_gradients(list(zip(given, variables, strict=True)))
            rows.append([now, *np.concatenate([variable.numpy() for variable in variables])])
        arrays[name] = np.array(rows, np.float32)
    np.savez_compressed(folder / "optimizers.npz", **arrays)  # type: ignore[arg-type]
    print("optimizers", flush=True)


def main(folder: Path, cases: list[str]) -> None:
    """Writes the files of the cases, or of all."""
    for name, run in (("optimizers", _run_optimizers), ("backbones", _run_backbones)):
        if not cases or name in cases:
            run(folder)
    for path in sorted(folder.glob("*.yaml")):
        if cases and path.stem not in cases:
            continue
        if path.stem == CHECKPOINT:
            _write_checkpoint(path)
        else:
            _run(path)


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2:])
