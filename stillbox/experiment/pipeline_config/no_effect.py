"""Fields of a `pipeline.config` without effect here, and why.

A field in `NO_EFFECT` leaves a note if a file sets it. Every other field that is not read is
refused unless it is set to its default; `REFUSED` has reasons for some of them.
"""

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

NO_EFFECT: dict[str, dict[str, str]] = {
    "Ssd": {
        "inplace_batchnorm_update": "every step updates all moving statistics",
        "implicit_example_weight": "it needs use_confidences_as_targets",
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
    "Ssd.explicit_background_class": "the background is slot 0 (add_background_class) or absent",
    "SsdFeatureExtractor.fpn": "this feature extractor has no feature pyramid",
    "SsdFeatureExtractor.bifpn": "this feature extractor has no BiFPN",
    "SsdFeatureExtractor.replace_preprocessor_with_placeholder": "there is no graph to patch",
    "ConvolutionalBoxPredictor.apply_sigmoid_to_scores": "post_processing.score_converter SIGMOID "
    "does that where it belongs",
    "WeightSharedConvolutionalBoxPredictor.apply_conv_hyperparams_to_heads": _SEPARABLE_KERAS,
    "WeightSharedConvolutionalBoxPredictor.apply_conv_hyperparams_pointwise": _SEPARABLE_KERAS,
    "Hyperparams.op": "it describes convolutions",
    "Hyperparams.group_norm": "group normalisation is not supported",
    "BatchNonMaxSuppression.max_classes_per_detection": "a box stands for one class, as it always "
    "does in the original, which stops at more",
    "MultiscaleAnchorGenerator.normalize_coordinates": _IN_PIXELS,
    "FlexibleGridAnchorGenerator.normalize_coordinates": _IN_PIXELS,
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
