"""The originals have the same names, arguments and defaults.

`packages/legacy/tools/model_maker.py` makes the golden.
"""

import ast
import dataclasses
import inspect
import json
from pathlib import Path

import pytest

from stillbox.errors import UserError
from stillbox_legacy.model_maker import mediapipe_model_maker, tflite_model_maker
from stillbox_legacy.model_maker.tflite_model_maker import config, model_spec, object_detector

GOLDEN = json.loads((Path(__file__).parents[1] / "goldens/model_maker.json").read_text())
MEDIAPIPE = mediapipe_model_maker.object_detector

# The original's name, ours, and what differs with the reason.
SHARED_QUANTIZATION = mediapipe_model_maker.quantization.QuantizationConfig
FUNCTIONS = [
    ("tflite_model_maker", "EfficientDetModelSpec.__init__", model_spec.EfficientDetModelSpec),
    ("tflite_model_maker", "DataLoader.__init__", object_detector.DataLoader),
    ("tflite_model_maker", "CustomModel.export", object_detector.ObjectDetector.export),
    ("tflite_model_maker", "ObjectDetector.__init__", object_detector.ObjectDetector),
    ("tflite_model_maker", "QuantizationConfig.__init__", config.QuantizationConfig),
    ("mediapipe_model_maker", "ObjectDetector.__init__", MEDIAPIPE.ObjectDetector),
    ("mediapipe_model_maker", "QuantizationConfig.__init__", SHARED_QUANTIZATION),
    *(
        (package, f"{owner.__name__}.{name}", getattr(owner, name))
        for package, owner, names in (
            (
                "tflite_model_maker",
                object_detector.DataLoader,
                ("from_pascal_voc", "from_csv", "from_cache", "split"),
            ),
            (
                "tflite_model_maker",
                object_detector.ObjectDetector,
                ("create", "train", "evaluate", "evaluate_tflite"),
            ),
            (
                "tflite_model_maker",
                config.QuantizationConfig,
                ("for_dynamic", "for_int8", "for_float16"),
            ),
            (
                "mediapipe_model_maker",
                MEDIAPIPE.Dataset,
                ("from_coco_folder", "from_pascal_voc_folder", "from_cache"),
            ),
            (
                "mediapipe_model_maker",
                MEDIAPIPE.ObjectDetector,
                ("create", "evaluate", "quantization_aware_training", "restore_float_ckpt"),
            ),
            (
                "mediapipe_model_maker",
                SHARED_QUANTIZATION,
                ("for_dynamic", "for_int8", "for_float16"),
            ),
        )
        for name in names
    ),
]
# TensorFlow's types and constants by name; one class serves both packages.
TENSORFLOW = {"tf.uint8": "uint8", "tf.lite.OpsSet.TFLITE_BUILTINS_INT8": "TFLITE_BUILTINS_INT8"}
DIFFERENT = {
    ("mediapipe_model_maker", "QuantizationConfig.__init__", "experimental_new_quantizer"): None,
}


def value(text):
    constants = {"DEFAULT_QUANTIZATION_STEPS": 500, **TENSORFLOW}
    return constants[text] if text in constants else ast.literal_eval(text)


@pytest.mark.parametrize(("package", "name", "ours"), FUNCTIONS)
def test_arguments_and_defaults(package, name, ours):
    empty = inspect.Parameter.empty
    defaults = {
        parameter.name: parameter.default
        for parameter in inspect.signature(ours).parameters.values()
        if parameter.name != "self" and parameter.kind is not inspect.Parameter.VAR_KEYWORD
    }
    wanted = {
        parameter: empty if default is None else value(default)
        for parameter, default in GOLDEN[package][name].items()
    }
    for parameter in wanted:
        wanted[parameter] = DIFFERENT.get((package, name, parameter), wanted[parameter])
    assert list(defaults) == list(wanted)
    assert defaults == wanted


@pytest.mark.parametrize(
    "ours", [MEDIAPIPE.HParams, MEDIAPIPE.QATHParams, MEDIAPIPE.ObjectDetectorModelOptions]
)
def test_hyperparameters(ours):
    golden = GOLDEN["mediapipe_model_maker"]
    wanted = dict(golden[ours.__name__])
    if ours is MEDIAPIPE.HParams:
        base = {name: text for name, text in golden["BaseHParams"].items() if name[0] != "_"}
        # A folder is made for each set of hyperparameters, not one for all.
        assert base.pop("export_dir") == "tempfile.mkdtemp()"
        wanted = base | wanted
    defaults = {
        field.name: field.default
        for field in dataclasses.fields(ours)
        if field.name != "export_dir"
    }
    assert defaults == {name: value(text) for name, text in wanted.items()}


def test_options_and_models():
    golden = GOLDEN["mediapipe_model_maker"]
    options = dataclasses.fields(MEDIAPIPE.ObjectDetectorOptions)
    assert [field.name for field in options] == list(golden["ObjectDetectorOptions"])
    assert [member.name for member in MEDIAPIPE.SupportedModels] == list(golden["SupportedModels"])
    formats = {member.name: member.value for member in config.ExportFormat}
    assert formats == {
        name: value(text) for name, text in GOLDEN["tflite_model_maker"]["ExportFormat"].items()
    }


def test_every_hyperparameter_has_its_default():
    """`hparams_config.py`, with what EfficientDetModelSpec and the Lite models set."""
    defaults = model_spec.get("efficientdet_lite0").config.as_dict()
    wanted = {name: value(text) for name, text in GOLDEN["tflite_model_maker"]["hparams"].items()}
    wanted |= {
        "anchor_scale": 3.0,
        "backbone_name": "efficientnet-lite0",
        "fpn_num_filters": 64,
        "image_size": (320, 320),
        "model_name": "efficientdet-lite0",
        "moving_average_decay": 0,
        "name": "efficientdet-lite0",
        "num_epochs": 50,
        "tflite_max_detections": 25,
        "var_freeze_expr": "(efficientnet|fpn_cells|resample_p6)",
        "verbose": 0,
    }
    of_spec = {
        "profile",
        "debug",
        "steps_per_execution",
        "tf_random_seed",
        "batch_size",
        "model_dir",
    }
    assert {name: defaults[name] for name in defaults if name not in of_spec} == wanted


@pytest.mark.parametrize("number", range(5))
def test_specifications(number):
    spec = getattr(object_detector, f"EfficientDetLite{number}Spec")(epochs=3)
    assert spec.config.num_epochs == 3
    assert spec.config.image_size == ((320, 384, 448, 512, 640)[number],) * 2
    assert spec.config.anchor_scale == (3.0, 3.0, 3.0, 4.0, 4.0)[number]
    assert model_spec.get(f"efficientdet_lite{number}").model_name == spec.model_name
    assert tflite_model_maker.ExportFormat.TFLITE.value == "TFLITE"


def test_changes_of_the_configuration():
    spec = object_detector.EfficientDetSpec(
        "efficientdet-lite1", "", hparams="max_instances_per_image=300,aspect_ratios=1.0*3.0"
    )
    spec.config.alpha = 0.5
    spec.config.nms_configs.iou_thresh = None
    changes = config.changes_of(spec.config, spec.recipe)
    assert changes["data.train.max_boxes"] == 300
    assert changes["model.anchors.aspect_ratios"] == [1.0, 3.0]
    assert changes["model.loss.classification.alpha"] == 0.5
    assert not any("gamma" in path for path in changes)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"autoaugment_policy": "v0"}, "autoaugment_policy='v0' has no counterpart"),
        ({"nms_configs": {"iou_thresh": 0.3}}, "nms_configs="),
        ({"image_size": "320x640"}, "square image"),
        ({"learning_rat": 1}, "'learning_rate'"),
    ],
)
def test_changes_without_a_counterpart_are_refused(change, message):
    with pytest.raises(UserError, match=message):
        spec = model_spec.get("efficientdet_lite0", hparams=change)
        config.changes_of(spec.config, spec.recipe)


def test_values_without_effect_are_named(capsys):
    spec = model_spec.get("efficientdet_lite0", steps_per_execution=8, tpu="grpc://1.2.3.4")
    config.changes_of(spec.config, spec.recipe)
    said = capsys.readouterr().err
    assert "steps_per_execution=8 has no effect" in said
    assert "tpu has no effect" in said


@pytest.mark.parametrize(
    ("expression", "parts"),
    [
        ("(efficientnet|fpn_cells|resample_p6)", ["^backbone", "^neck"]),
        ("efficientnet", ["^backbone"]),
        ("class_net", [r"^head\.class"]),
        ("nothing", []),
    ],
)
def test_frozen_parts(expression, parts):
    assert model_spec.frozen_parts(expression, "efficientnet-lite0") == parts


@pytest.mark.parametrize(
    ("expression", "message"),
    [("fpn_cells", "only some variables of neck"), ("(", "no regular expression")],
)
def test_half_a_part_is_not_frozen(expression, message):
    with pytest.raises(UserError, match=message):
        model_spec.frozen_parts(expression, "efficientnet-lite0")


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: model_spec.get("efficientdet_lite5"), "efficientdet_lite"),
        (lambda: object_detector.EfficientDetSpec("efficientdet-d0", ""), "efficientdet-lite0"),
        (lambda: MEDIAPIPE.SupportedModels.get("MOBILENET_V2"), "SupportedModels.MOBILENET_V2"),
        (lambda: config.QuantizationConfig(supported_types="int4"), "int4 has no counterpart"),
        (lambda: SHARED_QUANTIZATION(inference_input_type="int8"), "use float32, uint8"),
        (lambda: SHARED_QUANTIZATION(supported_types=["int8"]).resolve(None), "for_int8"),
    ],
)
def test_unknown_names_are_refused(make, message):
    with pytest.raises(UserError, match=message):
        make()
