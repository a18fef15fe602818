"""Reads the text of a `pipeline.config` as an experiment, with `InputReader` and `EvalConfig`."""

import dataclasses
from collections.abc import Collection
from dataclasses import replace
from pathlib import Path
from typing import Any

from stillbox.errors import UserError
from stillbox.experiment import schema
from stillbox.experiment.pipeline_config.faster_rcnn import read_faster_rcnn
from stillbox.experiment.pipeline_config.section import ROOT, MessageSection, load_schema
from stillbox.experiment.pipeline_config.ssd import read_ssd
from stillbox.experiment.pipeline_config.training import (
    as_trained_by_keras,
    read_quantization,
    read_training,
)
from stillbox.experiment.reading import Reading, ReadTracker, field_mapping
from stillbox.references import Parameter, Setting
from stillbox.textformat.messages import Decoder
from stillbox.textformat.parser import Block, parse
from stillbox.textformat.writing import message_text

_read_input = field_mapping(
    schema.Records,
    "use_display_name shuffle num_epochs",
    label_map="label_map_path",
    max_boxes="max_number_of_boxes",
    sample_1_of_n="sample_1_of_n_examples",
)


def read_data(root: MessageSection) -> schema.Data:
    """Reads both input readers. A config without any still serves for predicting."""
    readers = root.children("eval_input_reader")
    if len(readers) > 1:
        problem = "there is a second eval_input_reader, and stillbox scores one set of records"
        fix = "keep one; other records are named on the command line of evaluate"
        raise UserError(problem, where=readers[1].where(), fix=fix)
    train, evaluation = schema.Records(), schema.Records(shuffle=False)
    if root.has("train_input_reader"):
        train = _read_records(root.child("train_input_reader"), "data.train")
    for reader in readers:
        evaluation = _read_records(reader, "data.evaluation")
        if reader.has("shuffle") and evaluation.shuffle:
            text = "shuffle has no effect on evaluation: it scores every image once, in order"
            reader.note("shuffle", text)
        if evaluation.num_epochs > 1:
            reader.note(
                "num_epochs",
                f"num_epochs = {evaluation.num_epochs} is read as 1: the original reads the images "
                "as often, and scores each of them once",
            )
        epochs = min(evaluation.num_epochs, 1)
        evaluation = dataclasses.replace(evaluation, shuffle=False, num_epochs=epochs)
    return schema.Data(train=train, evaluation=evaluation)


def _read_records(section: MessageSection, path: str) -> schema.Records:
    name = section.member("input_reader", {"tf_record_input_reader": None})
    # The format calls the same thing INPUT_DEFAULT.
    if section.value("input_type") == "tf_sequence_example":
        problem = (
            "InputReader.input_type = TF_SEQUENCE_EXAMPLE: sequences of frames are not supported"
        )
        fix = "write a tf.Example for each frame"
        raise UserError(problem, where=section.where("input_type"), fix=fix)
    paths = section.child(name).value("input_path", f"{path}.paths")
    return _read_input(section, path, paths=paths)


# Deprecated names, and names of 2017, which published configs have (`legacy/evaluator.py`).
_OLD_NAMES = {
    "pascal_voc_metrics": "pascal_voc_detection_metrics",
    "weighted_pascal_voc_metrics": "weighted_pascal_voc_detection_metrics",
    "open_images_metrics": "oid_V2_detection_metrics",
    "open_images_V2_detection_metrics": "oid_V2_detection_metrics",
}
METRICS: dict[str, Any] = {
    "coco_detection_metrics": "coco",
    "pascal_voc_detection_metrics": "pascal_voc",
    "weighted_pascal_voc_detection_metrics": "weighted_pascal_voc",
    "oid_V2_detection_metrics": "open_images",
}
METRICS |= {old: METRICS[new] for old, new in _OLD_NAMES.items()}
"""Supported values of `metrics_set`, and their names in the schema."""
# The number of each by which the best checkpoint is chosen.
_BEST: dict[str, Any] = {
    "coco": "AP",
    "pascal_voc": "VOC_mAP",
    "weighted_pascal_voc": "VOC_weighted_mAP",
    "open_images": "OpenImages_mAP",
}
_MASKS = "it scores masks, and stillbox detects boxes"
_IMAGE_LABELS = (
    "it needs labels of whole images, which are not read; oid_V2_detection_metrics does without"
)
# All other values (`object_detection/eval_util.py`, `EVAL_METRICS_CLASS_DICT`).
_REFUSED_METRICS = {
    "coco_keypoint_metrics": "it scores keypoints, and stillbox detects boxes",
    "coco_mask_metrics": _MASKS,
    "coco_panoptic_metrics": _MASKS,
    "lvis_mask_metrics": _MASKS,
    "pascal_voc_instance_segmentation_metrics": _MASKS,
    "weighted_pascal_voc_instance_segmentation_metrics": _MASKS,
    "oid_challenge_detection_metrics": _IMAGE_LABELS,
    "oid_challenge_segmentation_metrics": _MASKS,
    "precision_at_recall_detection_metrics": "precision within bounds of recall is not computed",
}
# Fields that change no score keep stillbox's defaults: the format's are only slower and
# quieter (batches of 1, no AP per class), limits that are seldom meant (5000 images), or a score of
# pictures that suits few models (0.5).
_read_evaluation = field_mapping(
    schema.Evaluation,
    "batch_size all_metrics_per_category num_visualizations",
    "batch_size per_category max_examples max_evaluations min_score",
    per_category="include_metrics_per_category",
    max_examples="num_examples",
    max_evaluations="max_evals",
    use_ema="use_moving_averages",
    min_score="min_score_threshold",
    max_boxes_drawn="max_num_boxes_to_visualize",
    draw_truth_on_predictions="visualize_groundtruth_boxes",
    truth_color="groundtruth_box_visualization_color",
    name_pictures_by_image="keep_image_id_for_visualization_export",
)


def _read_pictures_directory(section: MessageSection) -> str:
    """Returns a folder in the folder of results; the original's may be anywhere."""
    name = "visualization_export_dir"
    given = Path(str(section.value(name, "evaluation.pictures_directory")))
    if not given.anchor and ".." not in given.parts:
        return str(section.get(name))
    folder = given.name if given.name != ".." else "exported"
    section.note(name, f"{name}: pictures are written into the folder {folder!r} of the results")
    return folder


def read_evaluation(section: MessageSection) -> schema.Evaluation:
    """Reads `eval_config`."""
    names = section.choose("metrics_set", METRICS, "evaluation.metrics", reasons=_REFUSED_METRICS)
    # An empty set means COCO's metrics, and naming them twice does not compute them twice.
    for name in names:
        if name in _OLD_NAMES:
            section.warn("metrics_set", f"{name} is deprecated; write {_OLD_NAMES[name]}")
    metrics = tuple(dict.fromkeys(METRICS[name] for name in names)) or ("coco",)
    evaluation: schema.Evaluation = _read_evaluation(
        section,
        "evaluation",
        metrics=metrics,
        best_metric=_BEST[metrics[0]],
        pictures_directory=_read_pictures_directory(section),
        show_labels=not section.value("skip_labels", "evaluation.show_labels"),
        show_scores=not section.value("skip_scores", "evaluation.show_scores"),
    )
    if evaluation.max_examples:
        section.warn(
            "num_examples",
            f"num_examples {evaluation.max_examples}: of more images only the first so many are "
            f"scored; {Setting('evaluation.max_examples', 0)} scores all",
        )
    if evaluation.max_evaluations:
        section.note(
            "max_evals",
            f"max_evals {evaluation.max_evaluations}: training evaluates at most that often, the "
            f"last time at its end; {Setting('evaluation.max_evaluations', 0)} lifts the limit",
        )
    return evaluation


_READERS = {"ssd": read_ssd, "faster_rcnn": read_faster_rcnn}


def read_model(section: MessageSection) -> schema.Model:
    """Reads `model`."""
    name = section.member("model", _READERS)
    return _READERS[name](section.child(name))


def extractor_of(section: MessageSection) -> MessageSection:
    """Returns `feature_extractor` of `model`."""
    name = section.member("model", _READERS)
    return section.child(name).child("feature_extractor")


class NoModelError(UserError):
    """A file describes no model."""


def read_pipeline_config(
    text: str, file: str, *, name: str = "experiment", override: str = ""
) -> Reading:
    """Reads a `TrainEvalPipelineConfig` in text format.

    Args:
        text: the file's content.
        file: the name of the file in positions.
        name: the experiment's name; the format has none.
        override: another text of the same format, merged into the first as protobuf does.

    Raises:
        UserError: the text cannot be parsed, or sets something that stillbox does not have.
    """
    merged = parse(override, f"{Parameter('config_override')}") if override else None
    return read_block(parse(text, file), name=name, override=merged)


def merged_text(text: str, file: str, override: str) -> str:
    """Returns a text with another one merged into it, as `read_pipeline_config` reads them.

    Raises:
        UserError: a text cannot be parsed.
    """
    decoder = Decoder(load_schema())
    message = decoder.decode(parse(text, file), ROOT)
    decoder.merge(message, parse(override, f"{Parameter('config_override')}"))
    return message_text(message)


def read_block(
    block: Block,
    *,
    name: str = "experiment",
    override: Block | None = None,
    damaged: Collection[str] = (),
) -> Reading:
    """Reads a syntax tree; else as `read_pipeline_config`.

    Args:
        block: the tree.
        name: the experiment's name.
        override: a tree that is merged into it.
        damaged: positions of messages from which refused fields were removed; where such a message
            chooses nothing, a choice is made for it.

    Raises:
        NoModelError: there is no model.
        UserError: as `read_pipeline_config`.
    """
    decoder, log = Decoder(load_schema()), ReadTracker(damaged)
    message = decoder.decode(block, ROOT)
    if override:
        decoder.merge(message, override)
    root = MessageSection(message, log)
    if not root.has("model"):
        raise NoModelError(
            "there is no model in this file", where=root.where(), fix="add model { ... }"
        )
    # First, because messages about the rest depend on it.
    model = read_model(root.child("model"))
    train = (
        read_training(root.child("train_config")) if root.has("train_config") else schema.Training()
    )
    if root.has("train_config"):
        train = as_trained_by_keras(train, extractor_of(root.child("model")))
    _note_differences(root, train)
    experiment = schema.Experiment(
        name=name,
        model=model,
        data=read_data(root),
        train=replace(train, quantization=read_quantization(root)),
        evaluation=read_evaluation(root.child("eval_config")),
    )
    # Last, when all parts are read.
    root.finish()
    if experiment.train.ema_decay is not None and not experiment.evaluation.use_ema:
        root.note(
            "eval_config",
            "training keeps a moving average of the parameters, but use_moving_averages is "
            f"false, so evaluation does not use it; {Setting('evaluation.use_ema', True)} does",
        )
    return Reading(
        experiment=experiment,
        origins=log.origins,
        warnings=(*decoder.warnings, *log.warnings),
        notes=tuple(log.notes),
    )


def _note_differences(root: MessageSection, train: schema.Training) -> None:
    """Notes what the original's own training makes otherwise of fields that are read here."""
    config, model = root.child("train_config"), root.child("model")
    detector = model.child("ssd" if model.has("ssd") else "faster_rcnn")
    keras = str(detector.child("feature_extractor").get("type")).endswith("_keras")
    if keras and isinstance(train.optimizer, schema.RmsProp):
        config.note(
            "optimizer",
            "rms_prop_optimizer.decay is the share of the mean square that is kept, as the format "
            "says; for _keras models the original takes it for a decay of the learning rate",
        )
    if keras and train.freeze:
        config.note(
            "freeze_variables",
            "these are frozen; the original's model_lib_v2.py, which trains _keras models, does "
            "not read the field",
        )
    if train.bias_gradient_multiplier != 1.0:
        config.note(
            "bias_grad_multiplier",
            "biases have this multiplier; in the original only the legacy train.py reads the field",
        )
