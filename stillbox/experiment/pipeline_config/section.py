"""Messages of a `pipeline.config` as sections, and their fields without effect.

A field in `NO_EFFECT` leaves a note if a file sets it. Every other field that is not read is
refused unless it is set to its default; `REFUSED` has reasons for some of them.
"""

import functools
from collections.abc import Hashable, Iterator, Mapping
from pathlib import Path
from typing import Any

from stillbox.errors import UserError
from stillbox.experiment.reading import FieldReader, ReadTracker, Section, Unread
from stillbox.experiment.values import Value
from stillbox.references import Setting
from stillbox.textformat.messages import Entry, FieldType, Message, Schema, parse_schema

_ONE_PROGRAM = "all devices run one synchronous program"
_RANDOM_ACCESS = "records are read by index, and an epoch is one global permutation"
_NO_QUEUES = "data.workers and data.prefetch say how records are read, and no result depends on it"
_STATIC = "all shapes are static here"
_SAME_LOSS = "the loss is the same sum either way"
_NO_MASKS = "no masks are read"
_KEYPOINTS = "keypoints are not supported"
_CONTEXT = "Context R-CNN is not supported"
_IMAGE_LABELS = "labels of whole images are not read"
_CHANNELS = "images have three channels"
_ONE_PROCESS = "training evaluates in its own process, every train.evaluate_every steps"
_IN_PIXELS = "ground truth is normalised, and anchors in pixels would meet none of it"
_NO_KEYPOINTS = "no keypoints are read"
_CENTERNET = "it compares heat maps or masks, which only CenterNet predicts"
_TWO_STAGES = "it belongs to detectors of two stages"
_PLACEMENT = "it chooses an implementation, not a result"
_MASK = "it needs predict_instance_masks"
_NO_MASKS_HERE = "masks are not supported"
_NO_FEATURES = "features of detections are not returned"
_EXPECTED = "it needs use_expected_classification_loss_under_sampling"
_LABEL_CURVES = "a field of 2019 for classes by name; write class_id_{} with their numbers"
_PADDED_SIZE = (
    "a field from before March 2018; write the pair into ssd_random_crop_pad_fixed_aspect_ratio, "
    "where it holds for all operations"
)

NO_EFFECT: dict[str, dict[str, str]] = {
    "Ssd": {
        "inplace_batchnorm_update": "every step updates all moving statistics",
        "implicit_example_weight": "it needs use_confidences_as_targets",
        "minimum_negative_sampling": _EXPECTED,
        "min_num_negative_samples": _EXPECTED,
        "desired_negative_sampling_ratio": _EXPECTED,
        "return_raw_detections_during_predict": "it concerns exported graphs",
    },
    "FasterRcnn": {
        "inplace_batchnorm_update": "every step updates all moving statistics",
        "use_matmul_gather_in_matcher": _PLACEMENT,
        "use_partitioned_nms_in_first_stage": "proposals are the same; the original then gives "
        "their multiclass scores to other boxes, which nothing reads here",
        "use_static_balanced_label_sampler": "samples are drawn at random from the same "
        "candidates; the original's static form fills small ones up with ignored boxes",
        "use_static_shapes_for_eval": f"{_STATIC}, and one form serves training and evaluation",
        "resize_masks": _NO_MASKS,
        "second_stage_mask_prediction_loss_weight": _NO_MASKS,
        "return_raw_detections_during_predict": "it concerns exported graphs",
    },
    "MaskRCNNBoxPredictor": {
        "conv_hyperparams": _MASK,
        "mask_prediction_conv_depth": _MASK,
        "mask_height": _MASK,
        "mask_width": _MASK,
        "mask_prediction_num_conv_layers": _MASK,
        "masks_are_class_agnostic": _MASK,
        "convolve_then_upsample_masks": _MASK,
    },
    "ArgMaxMatcher": {"use_matmul_gather": _PLACEMENT},
    "BipartiteMatcher": {"use_matmul_gather": _PLACEMENT},
    "WeightedSigmoidClassificationLoss": {"anchorwise_output": _SAME_LOSS},
    "BootstrappedSigmoidClassificationLoss": {"anchorwise_output": _SAME_LOSS},
    "SigmoidFocalClassificationLoss": {"anchorwise_output": _SAME_LOSS},
    "WeightedSoftmaxClassificationLoss": {"anchorwise_output": _SAME_LOSS},
    "WeightedSoftmaxClassificationAgainstLogitsLoss": {"anchorwise_output": _SAME_LOSS},
    "WeightedSmoothL1LocalizationLoss": {"anchorwise_output": _SAME_LOSS},
    "WeightedL2LocalizationLoss": {"anchorwise_output": _SAME_LOSS},
    "Loss": {
        "min_num_negative_samples": "it needs expected_loss_weights",
        "desired_negative_sampling_ratio": "it needs expected_loss_weights",
    },
    "BatchNonMaxSuppression": {
        "use_static_shapes": _STATIC,
        "use_hard_nms": _PLACEMENT,
        "use_cpu_nms": _PLACEMENT,
    },
    "XYPairs": {"training_data_type": "it names the source of the points"},
    "TrainConfig": {
        "sync_replicas": _ONE_PROGRAM,
        "replicas_to_aggregate": _ONE_PROGRAM,
        "startup_delay_steps": _ONE_PROGRAM,
        "keep_checkpoint_every_n_hours": "train.keep_checkpoints limits them by number "
        "and not by the clock",
        "run_fine_tune_checkpoint_dummy_computation": "weights need no dummy computation",
        "batch_queue_capacity": _NO_QUEUES,
        "num_batch_queue_threads": _NO_QUEUES,
        "prefetch_queue_capacity": _NO_QUEUES,
        "max_number_of_boxes": "the original does not read it either; max_number_of_boxes of the "
        "input readers is the limit, 100 where it is not set",
        "unpad_groundtruth_tensors": _STATIC + ": padded boxes have weight 0",
        "retain_original_images": "pictures are drawn from the records",
        "summarize_gradients": "the norm of the gradient is always logged",
    },
    "RandomHorizontalFlip": {"keypoint_flip_permutation": _NO_KEYPOINTS},
    "RandomVerticalFlip": {"keypoint_flip_permutation": _NO_KEYPOINTS},
    "RandomRotation90": {"keypoint_rot_permutation": _NO_KEYPOINTS},
    "EvalConfig": {
        "eval_interval_secs": _ONE_PROCESS,
        "eval_master": _ONE_PROCESS,
        "save_graph": "there is no graph file",
        "export_path": "results lie in the model directory",
        "retain_original_images": "pictures are drawn from the records",
        "recall_lower_bound": "it belongs to precision_at_recall_detection_metrics",
        "recall_upper_bound": "it belongs to precision_at_recall_detection_metrics",
        "use_dummy_loss_in_eval": "evaluation computes no loss",
        "keypoint_edge": "no keypoints are drawn",
    },
    "InputReader": {
        "name": "it is a label",
        "shuffle_buffer_size": _RANDOM_ACCESS,
        "filenames_shuffle_buffer_size": _RANDOM_ACCESS,
        "read_block_length": _RANDOM_ACCESS,
        "min_after_dequeue": _RANDOM_ACCESS,
        "num_readers": _NO_QUEUES,
        "num_parallel_batches": _NO_QUEUES,
        "num_prefetch_batches": _NO_QUEUES,
        "prefetch_buffer_size": _NO_QUEUES,
        "queue_capacity": _NO_QUEUES,
        "prefetch_size": _NO_QUEUES,
        "num_parallel_map_calls": _NO_QUEUES,
        "drop_remainder": "training batches run on over the end of an epoch; evaluation pads",
        "mask_type": _NO_MASKS,
        "include_source_id": "every image keeps its id",
        "frame_index": "it needs sequences",
        "load_multiclass_scores": "it needs use_multiclass_scores",
    },
}
_SEPARABLE_KERAS = "it concerns use_depthwise in extractors of the second generation (_keras)"

REFUSED: dict[str, str] = {
    "DetectionModel.center_net": "stillbox has detectors with anchors",
    "DetectionModel.experimental_model": "it belongs to another program",
    "BoxPredictor.mask_rcnn_box_predictor": _TWO_STAGES,
    "BoxPredictor.rfcn_box_predictor": "R-FCN is not supported",
    "FasterRcnn.context_config": _CONTEXT,
    "FasterRcnn.output_final_box_features": _NO_FEATURES,
    "FasterRcnn.output_final_box_rpn_features": _NO_FEATURES,
    "MaskRCNNBoxPredictor.predict_instance_masks": _NO_MASKS_HERE,
    "MaskRCNNBoxPredictor.predict_keypoints": _KEYPOINTS,
    "Initializer.keras_initializer_by_name": "initializers of Keras are not looked up by name",
    "InputReader.external_input_reader": "records are TFRecords",
    "Ssd.mask_head_config": _NO_MASKS_HERE,
    "Ssd.weight_regression_loss_by_score": "a field of 2018; scores of the ground truth are not "
    "read from the records",
    "Ssd.use_expected_classification_loss_under_sampling": "a field of 2018; expected-sampling "
    "weights of the anchors are not supported",
    "Ssd.explicit_background_class": "the background is slot 0 (add_background_class) or absent",
    "SsdFeatureExtractor.batch_norm_trainable": "a field from before April 2018, when its false "
    "froze the statistics of this extractor alone; the nearest is Ssd.freeze_batchnorm: true, "
    "which freezes all of the model's",
    "SsdFeatureExtractor.fpn": "this feature extractor has no feature pyramid",
    "SsdFeatureExtractor.bifpn": "this feature extractor has no BiFPN",
    "SsdFeatureExtractor.replace_preprocessor_with_placeholder": "there is no graph to patch",
    "ConvolutionalBoxPredictor.mask_head": _NO_MASKS_HERE,
    "WeightSharedConvolutionalBoxPredictor.mask_head": _NO_MASKS_HERE,
    "ConvolutionalBoxPredictor.apply_sigmoid_to_scores": "post_processing.score_converter SIGMOID "
    "does that where it belongs",
    "WeightSharedConvolutionalBoxPredictor.apply_conv_hyperparams_to_heads": _SEPARABLE_KERAS,
    "WeightSharedConvolutionalBoxPredictor.apply_conv_hyperparams_pointwise": _SEPARABLE_KERAS,
    "Hyperparams.op": "it describes convolutions",
    "Hyperparams.group_norm": "it is not read from a pipeline.config; "
    f"`{Setting('model.head.conv.group_norm', {})}` normalises groups in the head, and "
    "likewise in other parts",
    "BatchNonMaxSuppression.max_classes_per_detection": "a box stands for one class, as it always "
    "does in the original, which stops at more",
    "MultiscaleAnchorGenerator.normalize_coordinates": _IN_PIXELS,
    "FlexibleGridAnchorGenerator.normalize_coordinates": _IN_PIXELS,
    "CalibrationConfig.label_function_approximations": _LABEL_CURVES.format(
        "function_approximations"
    ),
    "CalibrationConfig.label_sigmoid_calibrations": _LABEL_CURVES.format("sigmoid_calibrations"),
    "SSDRandomCropPadFixedAspectRatioOperation.min_padded_size_ratio": _PADDED_SIZE,
    "SSDRandomCropPadFixedAspectRatioOperation.max_padded_size_ratio": _PADDED_SIZE,
    "BoxCoder.keypoint_box_coder": "keypoints are not supported",
    "ClassificationLoss.penalty_reduced_logistic_focal_loss": _CENTERNET,
    "ClassificationLoss.weighted_dice_classification_loss": _CENTERNET,
    "Loss.random_example_sampler": "training with a random part of the anchors is not supported",
    "Loss.equalization_loss": "the equalization loss (for long-tailed classes) is not supported",
    "Loss.expected_loss_weights": "expected-sampling weights of the anchors are not supported",
    "Ssd.use_confidences_as_targets": "confidences of labels are not read from the records",
    "InputReader.sample_from_datasets_weights": "mixing data sets by weight is not supported; "
    "without weights all files make one data set",
    "InputReader.load_instance_masks": _NO_MASKS_HERE,
    "InputReader.num_additional_channels": _CHANNELS,
    "InputReader.num_keypoints": _KEYPOINTS,
    "InputReader.keypoint_type_weight": _KEYPOINTS,
    "InputReader.use_keypoint_label_map": _KEYPOINTS,
    "InputReader.load_keypoint_depth_features": _KEYPOINTS,
    "InputReader.load_context_features": _CONTEXT,
    "InputReader.load_context_image_ids": _CONTEXT,
    "InputReader.load_dense_pose": "DensePose is not supported",
    "InputReader.load_track_id": "tracking is not supported",
    "InputReader.expand_labels_hierarchy": "ancestor_ids and descendant_ids of label maps are not "
    "read; write every class of a box into the records",
    "TrainConfig.merge_multiple_label_boxes": "a box has one class here; boxes that share their "
    "place stay as many boxes",
    "TrainConfig.use_multiclass_scores": "scores of several classes as targets of one box are not "
    "supported",
    "EvalConfig.eval_instance_masks": _NO_MASKS_HERE,
    "EvalConfig.ignore_groundtruth": "scores need ground truth; `stillbox predict` draws "
    "detections without it",
    "EvalConfig.force_no_resize": "every shape is static, so images are always resized "
    "as the model says",
    "EvalConfig.skip_predictions_for_unlabeled_class": _IMAGE_LABELS,
    "EvalConfig.image_classes_field_map_empty_to_ones": _IMAGE_LABELS,
    "EvalConfig.retain_original_image_additional_channels": _CHANNELS,
    "EvalConfig.parameterized_metric": _KEYPOINTS,
    "EvalConfig.super_categories": "metrics of groups of classes are not computed; those of every "
    "class are (include_metrics_per_category)",
    "PreprocessingStep.scale_boxes_to_pixel_coordinates": (
        "boxes are normalised everywhere: anchors would meet none in pixels"
    ),
    "PreprocessingStep.convert_class_logits_to_softmax": "multiclass scores are not read",
    **{
        f"{resizer}Resizer.convert_to_grayscale": "all detectors here take RGB"
        for resizer in ("KeepAspectRatio", "FixedShape", "ConditionalShape", "PadToMultiple")
    },
}


# Values of enums that have another name here than the same word in lower case.
_WORDS = {"NEAREST_NEIGHBOR": "nearest", "RELU_6": "relu6"}

ROOT = "TrainEvalPipelineConfig"
"""The message that a whole file is."""


@functools.cache
def load_schema() -> Schema:
    """Returns all messages and enums of the language, read from `messages.txt`."""
    return parse_schema((Path(__file__).parent / "messages.txt").read_text(encoding="utf-8"))


class MessageSection(Section):
    """A message. Absent inner messages read as empty ones; words of enums are the schema's."""

    def __init__(self, message: Message, log: ReadTracker) -> None:
        super().__init__(log)
        self._message = message

    def key(self, name: str) -> Hashable:
        """Returns the identity of the message and the name."""
        # Identity, because equal messages in two places are read separately.
        return id(self._message), name

    def label(self, name: str) -> str:
        """Returns `Message.field`."""
        return f"{self._message.type.name}.{name}"

    def is_scalar(self, name: str) -> bool:
        """Returns whether the message has a field of this name that is no message."""
        kind = self._message.type.fields.get(name)
        return kind is not None and not kind.is_message

    def has(self, name: str) -> bool:
        """Returns whether a field is set."""
        return bool(self._message.entries.get(name))

    def has_any(self) -> bool:
        """Returns whether any field is set."""
        return bool(self._message.entries)

    def where(self, name: str = "") -> str:
        """Returns file:line:column of a field, of the message if the field is not set."""
        entries = self._message.entries.get(name)
        return entries[0].where if entries else self._message.where

    def get(self, name: str) -> Value:
        """Returns a scalar, its default if it is not set, or a tuple of scalars."""
        kind = self._message.type.fields[name]
        values = [entry.value for entry in self._message.entries.get(name, [])]
        if kind.type in load_schema().enums:
            values = [_WORDS.get(word, word.lower()) for word in values or [kind.default]]
        if kind.repeated:
            return tuple(values)
        return values[0] if values else kind.default

    def spell(self, value: Value) -> str:
        """Returns a scalar as the text format writes it."""
        return _spell(value)

    def child(self, name: str) -> "MessageSection":
        """Returns an inner message."""
        if self.has(name):
            return self.children(name)[0]
        kind = load_schema().messages[self._message.type.fields[name].type]
        return MessageSection(Message(kind, self.where()), self.log)

    def children(self, name: str) -> tuple["MessageSection", ...]:
        """Returns all values of a repeated message."""
        self.log.read.add(self.key(name))
        entries = self._message.entries.get(name, [])
        return tuple(MessageSection(entry.value, self.log) for entry in entries)

    def read_inner(self, name: str, reader: FieldReader, path: str) -> Value:
        """Returns the result of `reader` for an inner message, or for each of a repeated one."""
        if self._message.type.fields[name].repeated:
            inner = enumerate(self.children(name))
            return tuple(reader(section, f"{path}.{index}") for index, section in inner)
        return reader(self.child(name), path)

    def is_damaged(self) -> bool:
        """Returns whether a field was removed from it, or from the message that lacks it."""
        return self._message.where in self.log.damaged

    def member(self, oneof: str, valid: Mapping[str, Any]) -> str:
        """Returns the name of the member of a choice that is set.

        Raises:
            UserError: none is set, or one that is not in `valid`.
        """
        name, there_is = self._message.which(oneof), ", ".join(valid)
        if name is None and self.is_damaged():
            name = next(iter(valid))
        if name is None:
            problem = f"{self._message.type.name} chooses nothing"
            raise UserError(problem, where=self.where(), fix=f"add {there_is}")
        if name not in valid:
            label = self.label(name)
            problem = (
                f"{label}: {REFUSED[label]}" if label in REFUSED else f"{label} is not supported"
            )
            raise UserError(problem, where=self.where(name), fix=f"there is: {there_is}")
        return name

    def finish(self) -> None:
        """Notes what is set without effect.

        Raises:
            UserError: something is set that is not read and is not its default.
        """
        self.log.finish(_unread(self._message, self.log), REFUSED)


def choice(oneof: str, readers: Mapping[str, FieldReader]) -> FieldReader:
    """Returns a reader of a choice: the reader of the member that is set."""

    def read(section: MessageSection, path: str, **values: Value) -> Value:
        name = section.member(oneof, readers)
        return readers[name](section.child(name), path, **values)

    return read


def _unread(message: Message, log: ReadTracker) -> Iterator[Unread]:
    for name, entries in message.entries.items():
        kind = message.type.fields[name]
        for entry in entries:
            key = (id(message), name)
            if key not in log.read:
                reason = log.idle.get(key) or NO_EFFECT.get(message.type.name, {}).get(name)
                if reason or kind.repeated or entry.value != kind.default:
                    yield _describe(f"{message.type.name}.{name}", kind, entry, reason)
            elif isinstance(entry.value, Message):
                yield from _unread(entry.value, log)


def _describe(label: str, kind: FieldType, entry: Entry, reason: str | None) -> Unread:
    return Unread(
        label=label,
        where=entry.where,
        value=None if kind.is_message else _spell(entry.value),
        default=None if kind.is_message or kind.repeated else _spell(kind.default),
        no_effect=reason,
        deprecated=kind.deprecated,
    )


def _spell(value: Value) -> str:
    """Returns a value as the text format writes it."""
    return str(value).lower() if isinstance(value, bool) else str(value)
