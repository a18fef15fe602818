"""The choices of `test_nothing_ignored.py`: experiments that use every section of the schema."""

# Fields without an effect in this test: the reason, and the tests of their effect.
ELSEWHERE = {
    "name": "a name for people: tests/evaluation/test_scoring.py",
    "data.workers": "no result depends on it: tests/inputs/test_loader.py",
    "data.processes": "no result depends on it: tests/inputs/test_processes.py",
    "data.prefetch": "no result depends on it: tests/inputs/test_loader.py",
    "data.reduced_decoding": "shows on images shrunk by 2: tests/inputs/test_decode.py",
    "data.bad_records": "shows on damaged records: tests/cli/test_train.py",
    "data.bad_boxes": "shows on damaged boxes: tests/records/test_source.py",
    "data.evaluation.shuffle": "evaluation goes through all records once, in order",
    "data.evaluation.num_epochs": "likewise; the rules allow 0 and 1",
    "data.evaluation.annotations": "what is scored against: tests/evaluation/test_ground_truth.py",
    "data.tiles.merge": "of detections: tests/proofs/test_tiles.py",
    "model.pixels.bits": "shows on images of more bits: tests/inputs/test_image_kinds.py",
    "train.steps": "the loop: tests/training/test_loop.py",
    "train.log_every": "the loop: tests/training/test_nothing_ignored.py",
    "train.loggers": "the loggers: tests/training/test_tracking.py",
    "train.summary_every": "the loop: tests/training/test_nothing_ignored.py",
    "train.checkpoint_every": "the loop: tests/training/test_nothing_ignored.py",
    "train.keep_checkpoints": "the loop: tests/training/test_nothing_ignored.py",
    "train.evaluate_every": "the loop: tests/training/test_periodic.py",
    "train.early_stopping": "the loop: tests/training/test_periodic.py",
    "train.distillation": "what a teacher adds: tests/training/test_distillation.py",
    "train.fine_tune": "where weights come from: tests/cli/test_train.py, tests/checkpoints",
    "devices.cpu_convolutions": "shows on 64 channels: tests/training/test_program.py",
    "evaluation": "tests/cli/test_measuring.py, tests/training/test_periodic.py",
}
# Other values of fields for which no value can be computed from the present one.
OTHERS = {
    "data.train.paths": "[{folder}/other.record]",
    "data.evaluation.paths": "[{folder}/other.record]",
    "data.train.label_map": "{folder}/swapped.pbtxt",
    "data.train.annotations": "{folder}/instances.json",
    "data.evaluation.label_map": "{folder}/swapped.pbtxt",
    "model.neck.taps": "[conv_2_pointwise]",
    "model.neck.tap": "conv_2_pointwise",
    "model.neck.block_conv": "{}",
    "model.loss.initial": "{steps: 3}",
    "model.backbone.conv.group_norm": "{groups: 1}",
    "model.neck.conv.group_norm": "{groups: 1}",
    "model.head.conv.group_norm": "{groups: 1}",
    "model.neck.block_conv.group_norm": "{groups: 1}",
    "model.backbone.block_depthwise_initializer": "{kind: random_normal}",
    "model.backbone.last_depths": "[64, 32]",
    "model.backbone.last_layer": "conv_12_pointwise",
    "model.resizer.pad_value": "[1.0, 2.0, 3.0]",
    "train.optimizer.groups.0.pattern": "^backbone",
    "train.freeze": "[^backbone]",
    "train.trainable": "[^head]",
}
# Three maps, dropout and a layer before the heads use every part of the detector.
BASE = (
    "data.train={paths: [{folder}/data.record], label_map: {folder}/labels.pbtxt, max_boxes: 3}",
    "data.evaluation={paths: [{folder}/data.record], label_map: {folder}/labels.pbtxt}",
    "model.num_classes=4",
    "model.resizer={height: 40, width: 48}",
    "model.backbone.last_layer=conv_3_pointwise",
    "model.neck={extra_depths: [64], depthwise: true}",
    "model.anchors={num_layers: 3, scales: []}",
    "model.head={layers_before: 1, min_depth: 10, max_depth: 12, dropout: true}",
    "model.head={kernel_size: 3, depthwise: true}",
    "model.head.conv.batch_norm={scale: true, statistics: per_replica}",
    "devices.replicas=2",
    # Without a bias there would be nothing to penalise.
    "model.backbone.conv.force_bias=true",
    "model.neck.conv.force_bias=true",
    "train.augmentations=[{kind: random_horizontal_flip}]",
    "train.optimizer.schedule={kind: cosine, total_steps: 600, warmup_steps: 50, hold_steps: 9}",
)
# For bases without a variant: two maps, and one layer less.
FEWER_LAYERS = (
    "model.backbone.last_layer=conv_2_pointwise",
    "model.neck.taps=[conv_1_pointwise]",
    "model.anchors.num_layers=2",
)
# Fields of a shared section that one of its owners does not use.
UNUSED = {
    (None, "model.backbone.last_depths"): "of layers that are not built; a variant builds them",
    ("model.backbone ", "model.backbone.output_stride"): "of blocks that are not built here: "
    "tests/models/backbones/test_resnet.py",
    ("model.backbone ", "model.backbone.conv.regularize_depthwise"): "ResNet has no such kernel",
    ("model.backbone  ", "model.backbone.conv.regularize_depthwise"): "neither has this one",
    ("model.backbone   ", "model.backbone.conv.regularize_depthwise"): "nor has SpineNet",
    ("model.backbone   ", "model.backbone.pools_by_halves"): "of steps down by two levels, which "
    "this one has not: packages/legacy/tests/model_garden/test_models.py",
    ("model.backbone     ", "model.backbone.last_convolution"): "of a layer that is not built here",
    ("model.backbone       ", "model.backbone.conv.regularize_bias"): "it has no biases",
    ("model.neck ", "model.neck.conv.regularize_depthwise"): "pooling has no kernel at all",
    ("model.neck     ", "model.neck.block_conv.regularize_depthwise"): "nor have bottlenecks",
}
# Two nodes of levels 2 and 3.
SMALL_CELL = (
    "min_level: 2, max_level: 3, depth: 8, num_repeats: 1, drop_block: {block_size: 2}, cell: "
    "[{level: 2, combine: attention, inputs: [1, 0], output: true}, "
    "{level: 3, inputs: [1, 2], output: true}]"
)
# Parts of a dense detector: one anchor at a location of each of two maps with equal channels.
_DENSE = (
    "model={background_class: false, postprocessing: {score_converter: sigmoid}, anchors: "
    "{num_layers: 2, scales: [], aspect_ratios: [1.0], interpolated_scale_aspect_ratio: 0, "
    "reduce_boxes_in_lowest_layer: false}}",
    "model.neck={kind: fpn, min_level: 2, max_level: 3, depth: 8, min_depth: 8}",
)
_GROUPED = (
    "depth: 8, layers_before: 1, depthwise: true, "
    "conv: {regularizer: {kind: l2}, force_bias: true, group_norm: {groups: 4}}"
)
_DRAWN = "dropout: true, predictor_initializer: {kind: random_normal}"
_GFL = f"{{kind: gfl, {_DRAWN}, {_GROUPED}}}"
_ALIGNED = f"{{kind: task_aligned, {_GROUPED}}}"
_QUALITY = "{kind: quality}"
_CENTERED = (
    "{kind: quality, classification: {kind: varifocal}, distribution_weight: 0, "
    "centerness_weight: 1}"
)
_ALIGNMENT = (
    "{kind: quality, class_targets: alignment, box_weights: alignment, distribution_weight: 0, "
    "initial: {steps: 9}}"
)
_TOWER = (
    "layers_before: 1, depth: 12, depthwise: true, predictor_initializer: {kind: random_normal}"
)
_OF_GFL = ("model.box_coder.kind=distribution", "model.matcher.kind=atss", *_DENSE)
_OF_ATSS = ("model.box_coder.kind=distances", "model.matcher.kind=atss", *_DENSE)
_OF_ALIGNED = (
    "model.box_coder.kind=distances",
    "model.matcher.kind=task_aligned",
    *_DENSE,
    "model.anchors={kind: multiscale, min_level: 2, max_level: 3, anchor_scale: 8.0, "
    "aspect_ratios: [1.0], scales_per_octave: 1}",
)
_CONV = "{force_bias: true, regularizer: {kind: l2}, batch_norm: {}}"
_PLAIN_HEAD = "model.head={layers_before: 0, depthwise: false}"
_LARGE = "model.resizer={height: 136, width: 144}"
_BESIDE_SPINENET = (
    "model.neck={kind: identity, min_level: 2, max_level: 3}",
    "model.anchors.num_layers=2",
    _PLAIN_HEAD,
)
_BESIDE_EFFICIENTNET = (
    _PLAIN_HEAD,
    "model.neck.taps=[stack_1_block_1, stack_2_block_0]",
    "model.backbone={last_layer: stack_3_block_0, conv: {initializer: {uniform: false}}}",
    _LARGE,
)
_UNIFORM = "model.neck.conv.initializer.uniform=false"


def _pyramid(width, maps, *more):
    """The overrides that a pyramid requires: an input, and anchors for its number of maps."""
    resizer = f"model.resizer={{height: 64, width: {width}}}"
    return _PLAIN_HEAD, resizer, f"model.anchors.num_layers={maps}", *more


def _kinds(*kinds):
    return [f"{{kind: {kind}}}" for kind in kinds]


# The other members of each choice by section, each with the further overrides that the rules
# require.
_CHOICES = {
    "data.tiles": ["{side: 32, overlap: 0.1}"],
    "model.head": [
        (
            f"{{kind: weight_shared, {_TOWER}}}",
            "model.anchors.reduce_boxes_in_lowest_layer=false",
            f"model.head={{dropout: true, conv: {_CONV}}}",
        ),
        (_GFL, f"model.loss={_QUALITY}", *_OF_GFL),
        (f"{{kind: atss, {_DRAWN}, {_GROUPED}}}", f"model.loss={_CENTERED}", *_OF_ATSS),
        (_ALIGNED, f"model.loss={_ALIGNMENT}", *_OF_ALIGNED),
        (f"{{kind: per_map, {_TOWER}}}", f"model.head={{dropout: true, conv: {_CONV}}}"),
    ],
    "model.head.conv.batch_norm": ["{statistics: groups, group_size: 2}"],
    "model.box_coder": [
        *_kinds("mean_stddev", "square"),
        ("{kind: distribution}", f"model.loss={_QUALITY}", f"model.head={_GFL}", *_OF_GFL),
    ],
    "model.matcher": [
        *_kinds("bipartite", "atss"),
        (
            *_kinds("task_aligned"),
            f"model.loss={_ALIGNMENT}",
            f"model.head={_ALIGNED}",
            *_OF_ALIGNED,
        ),
    ],
    "model.similarity": [
        *_kinds("thresholded_iou", "ioa"),
        ("{kind: neg_sq_dist}", "model.matcher.ignore_thresholds=true"),
    ],
    "model.loss": [
        (_QUALITY, f"model.head={_GFL}", *_OF_GFL),
        (_CENTERED, "model.head={kind: atss, depth: 8, conv: {group_norm: null}}", *_OF_ATSS),
        (_ALIGNMENT, f"model.head={_ALIGNED}", *_OF_ALIGNED),
    ],
    "model.loss.classification": _kinds(
        "softmax", "softmax_against_logits", "bootstrapped_sigmoid"
    ),
    "model.loss.localization": _kinds("l1", "l2", "iou", "giou", "diou", "ciou"),
    "model.loss.hard_example_miner": [
        (
            "{num_hard_examples: 9, max_negatives_per_positive: 3, min_negatives_per_image: 2}",
            "model.loss.classification={kind: sigmoid}",
        )
    ],
    "model.postprocessing.box_encodings_clip": ["{min: -3, max: 3}"],
    "model.postprocessing.calibration": [
        *_kinds("curve", "class_curves", "sigmoid", "class_sigmoids"),
        "{kind: temperature, scaler: 2}",
    ],
    "model.resizer": [
        "{kind: keep_aspect_ratio, min_dimension: 40, max_dimension: 48}",
        "{kind: identity, canvas: [48, 64]}",
        "{kind: conditional_shape, threshold: 50, canvas: [48, 64]}",
        "{kind: pad_to_multiple, multiple: 16, canvas: [48, 64]}",
        "{kind: scale_jitter, height: 40, width: 48, min_scale: 0.5, max_scale: 1.5, multiple: 16}",
    ],
    "model.backbone": [
        (
            "{kind: mobilenet_v2, depth_multiplier: 0.25, min_depth: 16, "
            "depthwise_initializer: {kind: random_normal}}",
            _PLAIN_HEAD,
            "model.neck.taps=[block_1, block_2]",
            f"model.backbone={{last_layer: conv_1, conv: {_CONV}}}",
        ),
        (
            *("{kind: resnet_v1}", _PLAIN_HEAD, "model.neck.taps=[root, block_1]"),
            *(f"model.backbone.conv={_CONV}", _LARGE),
        ),
        (
            *("{kind: resnet, depth: 10, drop_block: {block_size: 3}}", _PLAIN_HEAD),
            "model.neck={taps: [group_2, group_3], extra_depths: [16], extra_strides: [2]}",
            f"model.neck.conv={_CONV}",
            f"model.backbone={{last_layer: group_3, conv: {_CONV}}}",
            _LARGE,
        ),
        (
            "{kind: spinenet, filter_scale: 0.2, min_level: 2, max_level: 3, "
            "conv: {force_bias: true}, "
            "blocks: [{block: residual, output: true}, {level: 2, inputs: [1, 2], output: true}]}",
            *_BESIDE_SPINENET,
        ),
        (
            "{kind: spinenet_mbconv, filter_scale: 0.65, min_level: 2, max_level: 3, "
            "conv: {force_bias: true}, "
            "depthwise_initializer: {uniform: false}, "
            "blocks: [{output: true}, {level: 2, inputs: [1, 2], output: true}]}",
            *_BESIDE_SPINENET,
        ),
        (
            *("{kind: mobilenet_v3_small, depth_multiplier: 0.25, min_depth: 8}", _PLAIN_HEAD),
            "model.neck.taps=[block_0, block_1]",
            f"model.backbone={{last_layer: block_8, conv: {_CONV}}}",
        ),
        *(
            (
                f"{{kind: {kind}, width_coefficient: 0.25, depth_coefficient: 0.6}}",
                *_BESIDE_EFFICIENTNET,
            )
            for kind in ("efficientnet", "efficientnet_lite")
        ),
    ],
    "model.backbone.last_depths": [
        ("[1024, 1024]", _PLAIN_HEAD, "model.backbone.last_layer=conv_13_pointwise")
    ],
    "model.backbone.conv": [
        (
            "{force_bias: true, regularizer: {kind: l1}, initializer: {kind: random_normal}}",
            _PLAIN_HEAD,
        )
    ],
    "model.neck": [
        (
            "{kind: fpn, min_level: 3, max_level: 6, depth: 24, depthwise: true}",
            *_pyramid(96, 4, f"model.neck.conv={_CONV}"),
        ),
        (
            *("{kind: ppn, tap: conv_3_pointwise, num_maps: 3, depth: 24}", _PLAIN_HEAD),
            f"model.neck.conv={_CONV}",
        ),
        ("{kind: identity, min_level: 3, max_level: 5}", _PLAIN_HEAD),
        (
            "{kind: retinanet_fpn, min_level: 4, max_level: 7, depth: 8, depthwise: true}",
            *_pyramid(96, 4, _UNIFORM),
        ),
        (f"{{kind: nas_fpn, {SMALL_CELL}, depthwise: true}}", *_pyramid(96, 2, _UNIFORM)),
        (
            f"{{kind: nas_fpn, {SMALL_CELL}, block: bottleneck, "
            "drop_connect_rate: 0.2, depthwise: true, block_conv: {force_bias: true}}",
            *_pyramid(96, 2, _UNIFORM),
            "model.neck.block_conv={regularizer: {kind: l2}, batch_norm: {}}",
        ),
        ("{kind: bifpn, min_level: 4, max_level: 6, depth: 8, num_repeats: 1}", *_pyramid(128, 3)),
        (
            "{kind: mnasfpn, depth: 40, num_repeats: 1, min_depth: 8, depth_multiplier: 0.2}",
            *_pyramid(128, 4),
            "model.neck.conv={force_bias: true, initializer: {exact_cut: false}}",
        ),
    ],
    "model.neck.conv": [("{initializer: {kind: variance_scaling}}", _PLAIN_HEAD)],
    "model.anchors": [
        "{height_strides: [2, 4, 8], width_strides: [2, 4, 8], height_offsets: [1, 2, 4], "
        "width_offsets: [1, 2, 4]}",
        "{kind: multiscale, min_level: 4, max_level: 6}",
        ("{kind: grid}", "model.neck={taps: [conv_3_pointwise], extra_depths: []}"),
        "{kind: flexible_grid, grids: [{}, {sizes: [64]}, {sizes: [128]}]}",
        "{kind: default_boxes, maps: [{size: 9, next_size: 30}, {size: 30, next_size: 60}, {}]}",
    ],
    "train.quantization": ["{delay: 5}"],
    "train.optimizer": [
        "{kind: rms_prop, "
        "schedule: {kind: exponential, min_learning_rate: 1.0e-9, warmup_steps: 9}}",
        "{kind: adam, schedule: {kind: manual_step, warmup: true, schedule: [{step: 9}, "
        "{step: 20, learning_rate: 0.1}]}}",
        "{kind: adagrad, "
        "schedule: {kind: polynomial, decay_steps: 20, warmup_steps: 9, power: 2.0}}",
        "{kind: adadelta}",
        "{kind: adamw, groups: [{pattern: ^head, learning_rate_multiplier: 0.5, "
        "decay_multiplier: 0.5}]}",
    ],
    "train.optimizer.schedule": ["{kind: constant}"],
    "train.augmentations": [
        "[{kind: random_crop_image, min_object_covered: 0.4, random_coef: 0.2}, "
        "{kind: ssd_random_crop, operations: [{overlap_thresh: 0.2}, {min_area: 0.3}]}]"
    ],
}
# By section, with a space for each member before it.
_MEMBERS = {
    section + " " * number: (member,) if isinstance(member, str) else member
    for section, members in _CHOICES.items()
    for number, member in enumerate(members)
}
VARIANTS = {name: value for name, (value, *_) in _MEMBERS.items()}
BESIDE = {name: beside for name, (_, *beside) in _MEMBERS.items()}
