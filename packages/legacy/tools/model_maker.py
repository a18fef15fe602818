"""The interfaces of both Model Makers, read from their wheels.

    python -m packages.legacy.tools.model_maker DIR

DIR has the wheels of tflite-model-maker 0.4.3 and mediapipe-model-maker 0.2.1.4, which `pip
download --no-deps` fetches from PyPI. Nothing of them is imported: names, arguments and defaults
are read from the syntax trees. The output is `packages/legacy/tests/goldens/model_maker.json`.
"""

import ast
import json
import sys
import zipfile
from collections.abc import Iterator
from pathlib import Path

Parameters = dict[str, str | None]
"""Default of each parameter as it is written, None where there is none."""

_TFLITE = "tensorflow_examples/lite/model_maker/core/"
_MEDIAPIPE = "mediapipe_model_maker/python/"
_DETECTOR = f"{_MEDIAPIPE}vision/object_detector/"
_WANTED: dict[str, dict[str, tuple[str, ...]]] = {
    "tflite_model_maker": {
        f"{_TFLITE}task/model_spec/object_detector_spec.py": ("EfficientDetModelSpec.__init__",),
        f"{_TFLITE}data_util/object_detector_dataloader.py": (
            "DataLoader.__init__",
            "DataLoader.from_pascal_voc",
            "DataLoader.from_csv",
            "DataLoader.from_cache",
            "DataLoader.split",
        ),
        f"{_TFLITE}task/object_detector.py": (
            "ObjectDetector.__init__",
            "ObjectDetector.create",
            "ObjectDetector.train",
            "ObjectDetector.evaluate",
            "ObjectDetector.evaluate_tflite",
        ),
        f"{_TFLITE}task/custom_model.py": ("CustomModel.export",),
        f"{_TFLITE}task/configs.py": (
            "QuantizationConfig.__init__",
            "QuantizationConfig.for_dynamic",
            "QuantizationConfig.for_int8",
            "QuantizationConfig.for_float16",
        ),
        f"{_TFLITE}export_format.py": ("ExportFormat",),
    },
    "mediapipe_model_maker": {
        f"{_DETECTOR}dataset.py": (
            "Dataset.from_coco_folder",
            "Dataset.from_pascal_voc_folder",
            "Dataset.from_cache",
        ),
        f"{_DETECTOR}object_detector.py": (
            "ObjectDetector.__init__",
            "ObjectDetector.create",
            "ObjectDetector.evaluate",
            "ObjectDetector.quantization_aware_training",
            "ObjectDetector.restore_float_ckpt",
            "ObjectDetector.export_model",
        ),
        f"{_DETECTOR}hyperparameters.py": ("HParams", "QATHParams"),
        f"{_MEDIAPIPE}core/hyperparameters.py": ("BaseHParams",),
        f"{_DETECTOR}model_options.py": ("ObjectDetectorModelOptions",),
        f"{_DETECTOR}object_detector_options.py": ("ObjectDetectorOptions",),
        f"{_DETECTOR}model_spec.py": ("SupportedModels",),
        f"{_MEDIAPIPE}core/utils/quantization.py": (
            "QuantizationConfig.__init__",
            "QuantizationConfig.for_dynamic",
            "QuantizationConfig.for_int8",
            "QuantizationConfig.for_float16",
        ),
    },
}
_HPARAMS = "tensorflow_examples/lite/model_maker/third_party/efficientdet/hparams_config.py"


def interfaces(wheels: Path) -> dict[str, dict[str, Parameters]]:
    """Returns what the goldens hold, by package and name."""
    by_package: dict[str, dict[str, Parameters]] = {}
    for package, files in _WANTED.items():
        (wheel,) = wheels.glob(f"{package}-*.whl")
        with zipfile.ZipFile(wheel) as archive:
            classes = by_package[package] = {}
            for file, names in files.items():
                tree = ast.parse(archive.read(file))
                classes |= {name: _parameters(tree, name) for name in names}
            if package == "tflite_model_maker":
                classes["hparams"] = _assigned(ast.parse(archive.read(_HPARAMS)))
    return by_package


def _parameters(tree: ast.Module, name: str) -> Parameters:
    """Returns the parameters of a function or method, or the fields of a class."""
    body: list[ast.stmt] = tree.body
    for part in name.split("."):
        (node,) = (node for node in body if getattr(node, "name", None) == part)
        assert isinstance(node, ast.ClassDef | ast.FunctionDef)
        body = node.body
    assert isinstance(node, ast.ClassDef | ast.FunctionDef)
    return dict(_fields(node) if isinstance(node, ast.ClassDef) else _arguments(node))


def _arguments(node: ast.FunctionDef) -> Iterator[tuple[str, str | None]]:
    names = [argument.arg for argument in node.args.args]
    defaults = [None] * (len(names) - len(node.args.defaults)) + [*node.args.defaults]
    for name, default in zip(names, defaults, strict=True):
        if name not in ("self", "cls"):
            yield name, ast.unparse(default) if default else None


def _fields(node: ast.ClassDef) -> Iterator[tuple[str, str | None]]:
    for statement in node.body:
        if isinstance(statement, ast.AnnAssign) and isinstance(statement.target, ast.Name):
            yield statement.target.id, ast.unparse(statement.value) if statement.value else None
        elif isinstance(statement, ast.Assign) and isinstance(statement.targets[0], ast.Name):
            yield statement.targets[0].id, ast.unparse(statement.value)


def _assigned(tree: ast.Module) -> Parameters:
    """Returns the values of `default_detection_configs` and the values of all Lite models."""
    functions = {node.name: node for node in tree.body if isinstance(node, ast.FunctionDef)}
    values: Parameters = {}
    for statement in functions["default_detection_configs"].body:
        if isinstance(statement, ast.Assign) and isinstance(statement.targets[0], ast.Attribute):
            values[statement.targets[0].attr] = ast.unparse(statement.value)
    for statement in tree.body:
        if (
            isinstance(statement, ast.Assign)
            and ast.unparse(statement.targets[0]) == "lite_common_param"
        ):
            assert isinstance(statement.value, ast.Call)
            values |= {str(word.arg): ast.unparse(word.value) for word in statement.value.keywords}
    return values


if __name__ == "__main__":
    print(json.dumps(interfaces(Path(sys.argv[1])), indent=1))
