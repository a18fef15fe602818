"""Modules of `object_detection` that need TensorFlow's model itself, and what does the same here.

They can be imported, since notebooks import more than they use; what is taken from them is refused
with the line to write instead. The module stands alone because folders that `stillbox tutorial`
has written import it by name.
"""

from collections.abc import Callable, Mapping

from stillbox.errors import UserError

_TRAIN = (
    "run `python object_detection/model_main_tf2.py --pipeline_config_path=CONFIG --model_dir=DIR`"
)
_EVALUATE = (
    "run `python object_detection/model_main_tf2.py --pipeline_config_path=CONFIG --model_dir=DIR "
    "--checkpoint_dir=DIR`"
)
_EXPORT = (
    "run `python object_detection/exporter_main_v2.py --pipeline_config_path=CONFIG "
    "--trained_checkpoint_dir=DIR --output_directory=DIR`"
)
_FREEZE = (
    "run `python object_detection/export_inference_graph.py --pipeline_config_path=CONFIG "
    "--trained_checkpoint_prefix=DIR/model.ckpt-2000 --output_directory=DIR`"
)
_TFLITE = (
    "run `python object_detection/export_tflite_graph_tf2.py --pipeline_config_path=CONFIG "
    "--trained_checkpoint_dir=DIR --output_directory=DIR`"
)
_RECORDS = "run `stillbox data stats RECORDS`, or read them with stillbox.records"
_BUILD = "write `model_builder.build(configs['model'], is_training=False).restore(CHECKPOINT)`"
REPLACEMENTS: Mapping[str, str] = {
    "model_lib": _TRAIN,
    "model_lib_v2": _TRAIN,
    "model_hparams": _TRAIN,
    "legacy.trainer": _TRAIN,
    "legacy.evaluator": _EVALUATE,
    "eval_util": _EVALUATE,
    "utils.object_detection_evaluation": (
        "write `from object_detection.metrics import coco_evaluation` and use its "
        "CocoDetectionEvaluator"
    ),
    "metrics.coco_tools": "write `coco_evaluation.CocoDetectionEvaluator(categories)`",
    "exporter": _FREEZE,
    "exporter_lib_v2": _EXPORT,
    "export_tflite_graph_lib_tf2": _TFLITE,
    "export_tflite_ssd_graph_lib": _TFLITE.replace("graph_tf2", "ssd_graph").replace(
        "_dir=DIR --", "_prefix=DIR/model.ckpt-2000 --"
    ),
    "inputs": _RECORDS,
    "builders.dataset_builder": _RECORDS,
    "data_decoders.tf_example_decoder": _RECORDS,
    "core.preprocessor": "run `stillbox data augmentations CONFIG`, which draws augmented images",
    "builders.optimizer_builder": _TRAIN,
    "builders.anchor_generator_builder": "run `stillbox anchors CONFIG`, which measures anchors",
    "utils.variables_helper": "set fine_tune_checkpoint in pipeline.config",
    "core.box_list": "write `from object_detection.utils import np_box_ops`",
    "core.box_list_ops": "write `from object_detection.utils import np_box_ops`",
    "utils.np_box_list": "write `from object_detection.utils import np_box_ops`",
    "utils.shape_utils": _BUILD,
    "meta_architectures.ssd_meta_arch": _BUILD,
    "meta_architectures.faster_rcnn_meta_arch": _BUILD,
    "utils.colab_utils": (
        "draw boxes with labelImg or CVAT, or write gt_boxes = [np.array([[ymin, xmin, ymax, "
        "xmax]])], one array for each image, in 0..1"
    ),
}
"""The remedies by module."""


def refusing(module: str) -> Callable[[str], object]:
    """Returns the `__getattr__` of a module; it refuses every name but Python's own."""

    def refuse(name: str) -> object:
        if name.startswith("__"):
            raise AttributeError(name)
        raise UserError(
            "this needs the model of TensorFlow, which stillbox does not have",
            where=f"object_detection.{module}.{name}",
            fix=REPLACEMENTS[module],
        )

    return refuse
