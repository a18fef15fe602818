"""Whatever data, model or training says shows: another value, another program or another batch.

Every field is changed, one at a time. That must show in what a run is made of: in a refusal, in the
batches, in fresh parameters and anchors, or in a program as it is traced. Nothing is compiled.
"""

import dataclasses
import re
from functools import cache, cached_property
from pathlib import Path
from typing import Literal, get_args, get_origin

import jax
import numpy as np
import pytest
from jax.sharding import AbstractMesh

from stillbox.checkpoints.model_directory import ModelDirectory
from stillbox.devices.mesh import DATA_AXIS, SPACE_AXIS
from stillbox.errors import UserError
from stillbox.evaluation.history import HISTORY, read_history
from stillbox.experiment import schema
from stillbox.experiment.resolve import resolve
from stillbox.experiment.rules import check, check_trainable
from stillbox.experiment.run_length import replicas_as_groups
from stillbox.experiment.updating import apply_overrides
from stillbox.experiment.values import choices, field_types
from stillbox.experiment.variants import implementation_of
from stillbox.inputs.dataset import open_dataset
from stillbox.inputs.loader import EvalLoader, TrainLoader
from stillbox.lowering import lowering
from stillbox.models.build import build_detector
from stillbox.models.detector import Predictions, RatedPredictions, detect_function
from stillbox.models.variables import bind_detector, read_statistics, split_detector
from stillbox.records.label_map import LabelMap
from stillbox.records.tf_example import serialize_example
from stillbox.records.tfrecord import tfrecord_writer
from stillbox.training.loop import train
from stillbox.training.optimizer import build_optimizer
from stillbox.training.program import train_program
from stillbox.training.start import start_run
from tests.inputs.helpers import example
from tests.small import SMALL

# What does not show here, and why it may not.
ELSEWHERE = {
    "name": "a word for people: tests/evaluation/test_scoring.py",
    "data.workers": "no result depends on it: tests/inputs/test_loader.py",
    "data.prefetch": "no result depends on it: tests/inputs/test_loader.py",
    "data.reduced_decoding": "shows on images shrunk by 2: tests/inputs/test_decode.py",
    "data.bad_records": "shows on damaged records: tests/cli/test_train.py",
    "data.bad_boxes": "shows on damaged boxes: tests/records/test_source.py",
    "data.evaluation.shuffle": "evaluation goes through all records once, in order",
    "data.evaluation.num_epochs": "likewise; the rules allow 0 and 1",
    "data.evaluation.annotations": "what is scored against: tests/evaluation/test_ground_truth.py",
    "train.steps": "the loop: tests/training/test_loop.py",
    "train.log_every": "the loop: test_the_loop_follows_its_counters below",
    "train.loggers": "the loggers: tests/training/test_tracking.py",
    "train.summary_every": "the loop: test_the_loop_follows_its_counters below",
    "train.checkpoint_every": "the loop: test_the_loop_follows_its_counters below",
    "train.keep_checkpoints": "the loop: test_the_loop_follows_its_counters below",
    "train.evaluate_every": "the loop: tests/training/test_periodic.py",
    "train.early_stopping": "the loop: tests/training/test_periodic.py",
    "train.distillation": "what a teacher adds: tests/training/test_distillation.py",
    "train.fine_tune": "where weights come from: tests/cli/test_train.py, tests/checkpoints",
    "devices.cpu_convolutions": "shows on 64 channels: tests/training/test_program.py",
    "evaluation": "tests/cli/test_measuring.py, tests/training/test_periodic.py",
}
# Fields whose next value cannot be made up from the one that they have.
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
    "model.backbone.last_depths": "[64, 32]",
    "model.backbone.last_layer": "conv_12_pointwise",
    "model.resizer.pad_value": "[1.0, 2.0, 3.0]",
    "train.optimizer.groups.0.pattern": "^backbone",
    "train.freeze": "[^backbone]",
    "train.trainable": "[^head]",
}
# Three maps, dropout and a layer before the heads: every part of the detector has work.
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
    # Without a bias there would be none to penalise.
    "model.backbone.conv.force_bias=true",
    "model.neck.conv.force_bias=true",
    "train.augmentations=[{kind: random_horizontal_flip}]",
    "train.optimizer.schedule={kind: cosine, total_steps: 600, warmup_steps: 50, hold_steps: 9}",
)
# Where no variant needs more: two maps, and a layer less.
FEWER_LAYERS = (
    "model.backbone.last_layer=conv_2_pointwise",
    "model.neck.taps=[conv_1_pointwise]",
    "model.anchors.num_layers=2",
)
# Fields that all parts of a kind share, though one of them has no use for it.
UNUSED = {
    (None, "model.backbone.last_depths"): "of layers that are not built; a variant builds them",
    ("model.backbone ", "model.backbone.output_stride"): "of blocks that are not built here: "
    "tests/models/backbones/test_resnet.py",
    ("model.backbone ", "model.backbone.conv.regularize_depthwise"): "ResNet has no such kernel",
    ("model.backbone  ", "model.backbone.conv.regularize_depthwise"): "neither has this one",
    ("model.backbone   ", "model.backbone.conv.regularize_depthwise"): "nor has SpineNet",
    ("model.neck ", "model.neck.conv.regularize_depthwise"): "pooling has no kernel at all",
    ("model.neck     ", "model.neck.block_conv.regularize_depthwise"): "nor have bottlenecks",
}
# Two nodes of levels 2 and 3.
SMALL_CELL = (
    "min_level: 2, max_level: 3, depth: 8, num_repeats: 1, drop_block: {block_size: 2}, cell: "
    "[{level: 2, combine: attention, inputs: [1, 0], output: true}, "
    "{level: 3, inputs: [1, 2], output: true}]"
)
# A base for each further member of a choice, and the section that holds it.
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
VARIANTS = {
    "model.head ": _GFL,
    "model.head    ": "{kind: per_map, layers_before: 1, depth: 12, depthwise: true, "
    "predictor_initializer: {kind: random_normal}}",
    "model.head  ": f"{{kind: atss, {_DRAWN}, {_GROUPED}}}",
    "model.head   ": _ALIGNED,
    "model.box_coder  ": "{kind: distribution}",
    "model.matcher  ": "{kind: task_aligned}",
    "model.loss": _QUALITY,
    "model.loss ": _CENTERED,
    "model.loss  ": _ALIGNMENT,
    "train.quantization": "{delay: 5}",
    "model.resizer": "{kind: keep_aspect_ratio, min_dimension: 40, max_dimension: 48}",
    "model.resizer ": "{kind: identity, canvas: [48, 64]}",
    "model.resizer  ": "{kind: conditional_shape, threshold: 50, canvas: [48, 64]}",
    "model.resizer   ": "{kind: pad_to_multiple, multiple: 16, canvas: [48, 64]}",
    "model.resizer    ": (
        "{kind: scale_jitter, height: 40, width: 48, min_scale: 0.5, max_scale: 1.5, multiple: 16}"
    ),
    "model.backbone": "{kind: mobilenet_v2, depth_multiplier: 0.25, min_depth: 16, "
    "depthwise_initializer: {kind: random_normal}}",
    "model.backbone ": "{kind: resnet_v1}",
    "model.backbone  ": "{kind: resnet, depth: 10, drop_block: {block_size: 3}}",
    "model.backbone   ": (
        "{kind: spinenet, filter_scale: 0.2, min_level: 2, max_level: 3, conv: {force_bias: true}, "
        "blocks: [{block: residual, output: true}, {level: 2, inputs: [1, 2], output: true}]}"
    ),
    "model.backbone    ": (
        "{kind: spinenet_mbconv, min_level: 2, max_level: 3, conv: {force_bias: true}, "
        "depthwise_initializer: {uniform: false}, "
        "blocks: [{output: true}, {level: 2, inputs: [1, 2], output: true}]}"
    ),
    "model.backbone     ": "{kind: mobilenet_v3_small, depth_multiplier: 0.25, min_depth: 8}",
    "model.backbone       ": (
        "{kind: efficientnet_lite, width_coefficient: 0.25, depth_coefficient: 0.6}"
    ),
    "model.backbone      ": "{kind: efficientnet, width_coefficient: 0.25, depth_coefficient: 0.6}",
    "model.neck      ": "{kind: bifpn, min_level: 4, max_level: 6, depth: 8, num_repeats: 1}",
    "model.neck       ": "{kind: mnasfpn, depth: 40, num_repeats: 1, min_depth: 8, "
    "depth_multiplier: 0.2}",
    "model.head.conv.batch_norm": "{statistics: groups, group_size: 2}",
    "model.backbone.last_depths": "[1024, 1024]",
    "model.backbone.conv": "{force_bias: true, regularizer: {kind: l1}, "
    "initializer: {kind: random_normal}}",
    "model.neck": "{kind: fpn, min_level: 3, max_level: 6, depth: 24, depthwise: true}",
    "model.neck ": "{kind: ppn, tap: conv_3_pointwise, num_maps: 3, depth: 24}",
    "model.neck  ": "{kind: identity, min_level: 3, max_level: 5}",
    "model.neck   ": "{kind: retinanet_fpn, min_level: 4, max_level: 7, depth: 8, depthwise: true}",
    "model.neck    ": f"{{kind: nas_fpn, {SMALL_CELL}, depthwise: true}}",
    "model.neck     ": f"{{kind: nas_fpn, {SMALL_CELL}, block: bottleneck, "
    "drop_connect_rate: 0.2, depthwise: true, block_conv: {force_bias: true}}",
    "model.head": "{kind: weight_shared, layers_before: 1, depth: 12, depthwise: true, "
    "predictor_initializer: {kind: random_normal}}",
    "model.neck.conv": "{initializer: {kind: variance_scaling}}",
    "model.anchors": (
        "{height_strides: [2, 4, 8], width_strides: [2, 4, 8], "
        "height_offsets: [1, 2, 4], width_offsets: [1, 2, 4]}"
    ),
    "model.anchors ": "{kind: multiscale, min_level: 4, max_level: 6}",
    "model.anchors  ": "{kind: grid}",
    "model.anchors   ": "{kind: flexible_grid, grids: [{}, {sizes: [64]}, {sizes: [128]}]}",
    "model.anchors    ": (
        "{kind: default_boxes, maps: [{size: 9, next_size: 30}, {size: 30, next_size: 60}, {}]}"
    ),
    "model.box_coder": "{kind: mean_stddev}",
    "model.box_coder ": "{kind: square}",
    "model.matcher": "{kind: bipartite}",
    "model.matcher ": "{kind: atss}",
    "model.similarity": "{kind: thresholded_iou}",
    "model.similarity ": "{kind: ioa}",
    "model.similarity  ": "{kind: neg_sq_dist}",
    "model.loss.classification": "{kind: softmax}",
    "model.loss.classification ": "{kind: softmax_against_logits}",
    "model.loss.classification  ": "{kind: bootstrapped_sigmoid}",
    "model.loss.localization": "{kind: l1}",
    "model.loss.localization ": "{kind: l2}",
    "model.loss.localization  ": "{kind: iou}",
    "model.loss.localization   ": "{kind: giou}",
    "model.loss.localization    ": "{kind: diou}",
    "model.loss.localization     ": "{kind: ciou}",
    "model.loss.hard_example_miner": (
        "{num_hard_examples: 9, max_negatives_per_positive: 3, min_negatives_per_image: 2}"
    ),
    "model.postprocessing.box_encodings_clip": "{min: -3, max: 3}",
    "model.postprocessing.calibration": "{kind: curve}",
    "model.postprocessing.calibration ": "{kind: class_curves}",
    "model.postprocessing.calibration  ": "{kind: sigmoid}",
    "model.postprocessing.calibration   ": "{kind: class_sigmoids}",
    "model.postprocessing.calibration    ": "{kind: temperature, scaler: 2}",
    "train.optimizer": (
        "{kind: rms_prop, "
        "schedule: {kind: exponential, min_learning_rate: 1.0e-9, warmup_steps: 9}}"
    ),
    "train.optimizer ": (
        "{kind: adam, schedule: {kind: manual_step, warmup: true, schedule: [{step: 9}, "
        "{step: 20, learning_rate: 0.1}]}}"
    ),
    "train.optimizer  ": (
        "{kind: adagrad, "
        "schedule: {kind: polynomial, decay_steps: 20, warmup_steps: 9, power: 2.0}}"
    ),
    "train.optimizer   ": "{kind: adadelta}",
    "train.optimizer    ": (
        "{kind: adamw, groups: [{pattern: ^head, learning_rate_multiplier: 0.5, "
        "decay_multiplier: 0.5}]}"
    ),
    "train.optimizer.schedule": "{kind: constant}",
    "train.augmentations": (
        "[{kind: random_crop_image, min_object_covered: 0.4, random_coef: 0.2}, "
        "{kind: ssd_random_crop, operations: [{overlap_thresh: 0.2}, {min_area: 0.3}]}]"
    ),
}
_PLAIN_HEAD = "model.head={layers_before: 0, depthwise: false}"
_BESIDE_SPINENET = (
    "model.neck={kind: identity, min_level: 2, max_level: 3}",
    "model.anchors.num_layers=2",
    _PLAIN_HEAD,
)
# What else a variant needs, for the rules to let it be.
_OF_GFL = ("model.box_coder.kind=distribution", "model.matcher.kind=atss", *_DENSE)
_OF_ATSS = ("model.box_coder.kind=distances", "model.matcher.kind=atss", *_DENSE)
_OF_ALIGNED = ("model.box_coder.kind=distances", "model.matcher.kind=task_aligned", *_DENSE)
BESIDE = {
    "model.head ": (f"model.loss={_QUALITY}", *_OF_GFL),
    "model.head  ": (f"model.loss={_CENTERED}", *_OF_ATSS),
    "model.head   ": (f"model.loss={_ALIGNMENT}", *_OF_ALIGNED),
    "model.box_coder  ": (f"model.loss={_QUALITY}", f"model.head={_GFL}", *_OF_GFL),
    "model.matcher  ": (f"model.loss={_ALIGNMENT}", f"model.head={_ALIGNED}", *_OF_ALIGNED),
    "model.loss": (f"model.head={_GFL}", *_OF_GFL),
    "model.loss ": ("model.head={kind: atss, depth: 8, conv: {group_norm: null}}", *_OF_ATSS),
    "model.loss  ": (f"model.head={_ALIGNED}", *_OF_ALIGNED),
    "model.backbone": (
        _PLAIN_HEAD,
        "model.neck.taps=[block_1, block_2]",
        "model.backbone={last_layer: conv_1, conv: {force_bias: true, regularizer: {kind: l2}, "
        "batch_norm: {}}}",
    ),
    "model.backbone ": (
        _PLAIN_HEAD,
        "model.neck.taps=[root, block_1]",
        "model.backbone.conv={force_bias: true, regularizer: {kind: l2}, batch_norm: {}}",
        "model.resizer={height: 136, width: 144}",
    ),
    "model.backbone  ": (
        _PLAIN_HEAD,
        "model.neck={taps: [group_2, group_3], extra_depths: [16], extra_strides: [2]}",
        "model.neck.conv={force_bias: true, regularizer: {kind: l2}, batch_norm: {}}",
        "model.backbone={last_layer: group_3, conv: {force_bias: true, "
        "regularizer: {kind: l2}, batch_norm: {}}}",
        "model.resizer={height: 136, width: 144}",
    ),
    "model.backbone   ": _BESIDE_SPINENET,
    "model.backbone    ": _BESIDE_SPINENET,
    "model.backbone     ": (
        _PLAIN_HEAD,
        "model.neck.taps=[block_0, block_1]",
        "model.backbone={last_layer: block_8, conv: {force_bias: true, "
        "regularizer: {kind: l2}, batch_norm: {}}}",
    ),
    "model.backbone      ": (
        _PLAIN_HEAD,
        "model.neck.taps=[stack_1_block_1, stack_2_block_0]",
        "model.backbone={last_layer: stack_3_block_0, conv: {initializer: {uniform: false}}}",
        "model.resizer={height: 136, width: 144}",
    ),
    "model.backbone       ": (
        _PLAIN_HEAD,
        "model.neck.taps=[stack_1_block_1, stack_2_block_0]",
        "model.backbone={last_layer: stack_3_block_0, conv: {initializer: {uniform: false}}}",
        "model.resizer={height: 136, width: 144}",
    ),
    "model.neck      ": (
        _PLAIN_HEAD,
        "model.resizer={height: 64, width: 128}",
        "model.anchors.num_layers=3",
    ),
    "model.neck       ": (
        _PLAIN_HEAD,
        "model.resizer={height: 64, width: 128}",
        "model.anchors.num_layers=4",
        "model.neck.conv={force_bias: true, initializer: {exact_cut: false}}",
    ),
    "model.backbone.last_depths": (
        _PLAIN_HEAD,
        "model.backbone.last_layer=conv_13_pointwise",
    ),
    "model.neck": (
        _PLAIN_HEAD,
        "model.resizer={height: 64, width: 96}",
        "model.anchors.num_layers=4",
        "model.neck.conv={force_bias: true, regularizer: {kind: l2}, batch_norm: {}}",
    ),
    "model.neck ": (
        _PLAIN_HEAD,
        "model.neck.conv={force_bias: true, regularizer: {kind: l2}, batch_norm: {}}",
    ),
    "model.neck   ": (
        _PLAIN_HEAD,
        "model.resizer={height: 64, width: 96}",
        "model.anchors.num_layers=4",
        "model.neck.conv.initializer.uniform=false",
    ),
    "model.neck    ": (
        _PLAIN_HEAD,
        "model.resizer={height: 64, width: 96}",
        "model.anchors.num_layers=2",
        "model.neck.conv.initializer.uniform=false",
    ),
    "model.neck     ": (
        _PLAIN_HEAD,
        "model.resizer={height: 64, width: 96}",
        "model.anchors.num_layers=2",
        "model.neck.conv.initializer.uniform=false",
        "model.neck.block_conv={regularizer: {kind: l2}, batch_norm: {}}",
    ),
    "model.head": (
        "model.anchors.reduce_boxes_in_lowest_layer=false",
        "model.head={dropout: true, conv: {force_bias: true, regularizer: {kind: l2}, "
        "batch_norm: {}}}",
    ),
    "model.head    ": (
        "model.head={dropout: true, conv: {force_bias: true, regularizer: {kind: l2}, "
        "batch_norm: {}}}",
    ),
    "model.anchors  ": ("model.neck={taps: [conv_3_pointwise], extra_depths: []}",),
    "model.similarity  ": ("model.matcher.ignore_thresholds=true",),
    "model.loss.hard_example_miner": ("model.loss.classification={kind: sigmoid}",),
    "model.neck  ": (_PLAIN_HEAD,),
    "model.neck.conv": (_PLAIN_HEAD,),
    "model.backbone.conv": (_PLAIN_HEAD,),
}

LABELS = """
item { id: 1 name: "disc" display_name: "a disc" }
item { id: 2 name: "ring" display_name: "a ring" }
item { id: 4 name: "star" display_name: "a star" }
"""


@pytest.mark.usefixtures("shared_programs")
def test_the_loop_follows_its_counters(experiment, tmp_path):
    counters = ["train.log_every=2", "train.checkpoint_every=3", "train.keep_checkpoints=1"]
    train(experiment("train.steps=7", *counters, evaluated=False), tmp_path)
    logged = [line["step"] for line in read_history(tmp_path / HISTORY).training]
    assert logged == [2, 4, 6, 7]
    assert ModelDirectory.open(tmp_path).steps() == (7,)
    train(
        experiment("train.steps=9", *counters, "train.keep_checkpoints=5", evaluated=False),
        tmp_path,
    )
    assert ModelDirectory.open(tmp_path).steps() == (7, 9)


@pytest.mark.usefixtures("shared_programs")
def test_entries_and_lines_have_counters_of_their_own(experiment, tmp_path, capfd):
    counters = ["train.log_every=2", "train.summary_every=3", "train.checkpoint_every=9"]
    train(experiment("train.steps=7", *counters, evaluated=False), tmp_path)
    kept = [line["step"] for line in read_history(tmp_path / HISTORY).training]
    assert kept == [3, 6, 7]
    shown = re.findall(r"^step (\d)/7 ", capfd.readouterr().err, re.MULTILINE)
    assert shown == ["1", "2", "4", "6", "7"]  # the first one always


@pytest.fixture(scope="module")
def plain_programs():
    """One form of every operation: whether a field shows does not depend on the platform."""
    with lowering(portable=True):
        yield


@pytest.fixture(scope="module")
def folder(tmp_path_factory, plain_programs):
    """Records in which every field can show: a crowd, four boxes where three have room."""
    folder = tmp_path_factory.mktemp("records")
    corners = [(0.1, 0.1, 0.5, 0.5), (0.4, 0.3, 0.9, 0.8), (0.0, 0.6, 0.3, 1.0), (0.5, 0, 1, 0.3)]
    labels = LabelMap.from_text(LABELS, "labels")
    for name, count in (("data", 4), ("other", 3)):
        with tfrecord_writer(folder / f"{name}.record") as write:
            for number in range(count):
                boxes, classes = corners[: number + 1], [1, 2, 4, 1][: number + 1]
                one = example(number, boxes, classes, crowds=(number,))
                write(serialize_example(one, labels))
    (folder / "labels.pbtxt").write_text(LABELS)
    (folder / "swapped.pbtxt").write_text(LABELS.replace('"disc"', '"hoop"'))
    yield folder
    # Detectors and open files of a hundred experiments.
    for kept in (base, original, made_of):
        kept.cache_clear()


def changed(experiment, overrides, folder):
    texts = [text.replace("{folder}", str(folder)) for text in overrides]
    return apply_overrides(experiment, texts, {})


def small():
    return resolve("demo_scenes", SMALL).experiment


@cache
def base(folder, variant=None):
    experiment = changed(small(), (*BASE, *(FEWER_LAYERS if variant is None else ())), folder)
    if variant is not None:
        experiment = changed(experiment, [f"{variant.strip()}={VARIANTS[variant]}"], folder)
    experiment = changed(experiment, BESIDE.get(variant, ()), folder)
    # A base that is refused would make every change of it look as if it showed.
    check(experiment, {})
    return experiment


class Made:
    """What a run would be made of; each part is made when it is asked for."""

    def __init__(self, experiment: schema.Experiment) -> None:
        self.experiment = experiment
        check(experiment, {})
        check_trainable(experiment, {})
        data, model = experiment.data, experiment.model
        self.dataset = open_dataset(data, data.train, model)
        self.evaluation = open_dataset(data, data.evaluation, model)

    def batches(self):
        train, data = self.experiment.train, self.experiment.data
        loader = TrainLoader(
            self.dataset,
            augmentations=train.augmentations,
            batch_size=train.batch_size,
            seed=data.seed,
            shuffle=data.train.shuffle,
            repeat_first_batch=data.repeat_first_batch,
            workers=0,
            pixels=data.pixels,
            reduced_decoding=data.reduced_decoding,
        )
        some = [loader.batch(step) for step in range(6)]
        every = list(EvalLoader(self.evaluation, batch_size=2, workers=0))
        cached = self.dataset.cache is None
        return repr((loader.steps, cached)), *(a.tobytes() for b in some + every for a in b)

    @cached_property
    def started(self):
        return start_run(self.experiment, Path("nowhere"), None)

    def state(self):
        return sorted(self.started.trainable), as_bytes(self.started.state)

    @cached_property
    def detector(self):
        seed, dtype = self.experiment.train.seed, np.dtype(self.experiment.train.precision)
        model = replicas_as_groups(self.experiment.model, len(self.batch.records), 2)
        return build_detector(model, seed=seed, dtype=dtype)

    def parameters(self):
        _, params, stats = split_detector(self.detector)
        return self.detector.anchors.tobytes(), as_bytes((params, stats))

    def optimizer(self):
        layers = self.experiment.model.backbone.layers
        optimizer = build_optimizer(self.experiment.train, layers)
        paths = [f"backbone.{layer}.kernel" for layer in (layers[0], layers[-1])]
        paths += ["head.box.kernel", "neck.conv.bias", "neck.conv.norm.scale", "neck.scale_0"]
        value = {path: np.ones(2, np.float32) for path in paths}
        return traced(optimizer.update, value, optimizer.init(value), value)

    def loss(self):
        anchors, batch = self.detector.anchors, self.batch
        count, slots = len(batch.records), self.experiment.model.num_classes
        slots += self.experiment.model.background_class
        code_size = self.experiment.model.box_coder.code_size
        predictions = Predictions(
            np.zeros((count, len(anchors), code_size), np.float32),
            np.zeros((count, len(anchors), slots), np.float32),
        )
        model = self.experiment.model
        if isinstance(model.head, schema.AtssHead):
            quality = np.zeros((count, len(anchors)), np.float32)
            predictions = RatedPredictions(*predictions, quality)

        def loss(predictions, batch, step):
            state = self.detector.initial_loss_state()
            more = {"step": step, "replicas": 2, "level_sizes": self.detector.level_sizes}
            function = implementation_of(model.loss)
            return function(model.loss, predictions, batch, anchors, model, state, **more)

        return traced(loss, predictions, batch, np.int32(5))

    def training(self):
        def run(params, stats, images):
            detector = bind_detector(graph, params, stats)
            predictions = detector(images, train=True, dropout_key=jax.random.key(0))
            return predictions, detector.regularization(), read_statistics(detector)

        graph, params, stats = split_detector(self.detector)
        return traced(run, params, stats, self.batch.images)

    def detection(self):
        graph, params, stats = split_detector(self.detector)
        detect = detect_function(graph)
        return traced(detect, params, stats, self.batch.images, self.batch.true_sizes)

    def step(self):
        return traced(self.program(1).function, self.started.state, self.batch)

    def placement(self):
        program = self.program(4)
        return repr((program.state, program.batch))

    def program(self, rows):
        """The step on a mesh that is not there, of `rows` devices or groups that share an image."""
        parts = self.experiment.devices.spatial_partitions
        mesh = AbstractMesh((rows, parts), (DATA_AXIS, SPACE_AXIS))
        return train_program(self.experiment, mesh)

    @cached_property
    def batch(self):
        return TrainLoader(self.dataset, batch_size=4, workers=0).batch(0)


# Where a field most likely shows comes first: nothing after it is made.
PARTS = {
    "data": ("batches", "state"),
    "train.augmentations": ("batches",),
    "train.batch_size": ("batches",),
    "train.optimizer": ("optimizer", "state"),
    "train": ("state", "step"),
    "devices": ("placement", "step"),
    "model.resizer": ("batches",),
    "model.loss": ("loss",),
    "model.matcher": ("loss",),
    "model.box_coder": ("loss", "detection"),
    "model.postprocessing": ("detection",),
    "model": ("parameters", "training", "detection", "loss"),
}

# The part in which a field of this name showed last: the same field of another section comes next.
SHOWED: dict[str, str] = {}


def parts_for(path):
    return next(parts for prefix, parts in PARTS.items() if path.startswith(prefix))


def as_bytes(tree):
    leaves = jax.tree_util.tree_leaves_with_path(tree)
    return [(jax.tree_util.keystr(path), np.asarray(leaf).tobytes()) for path, leaf in leaves]


def traced(function, *arguments):
    """The program as text, without addresses in memory, and its constants."""
    program = jax.make_jaxpr(function)(*arguments)
    constants = [np.asarray(constant).tobytes() for constant in program.consts]
    return re.sub(r"0x[0-9a-f]+", "", str(program)), constants


@cache
def original(folder, variant, part):
    return getattr(made_of(folder, variant), part)()


@cache
def made_of(folder, variant):
    return Made(base(folder, variant))


def leaves(value, path=""):
    """Yields path, type and value of every field that is no section."""
    for name, hint in field_types(type(value)).items():
        inner, field = f"{path}.{name}" if path else name, getattr(value, name)
        if dataclasses.is_dataclass(field):
            yield from leaves(field, inner)
        elif isinstance(field, tuple) and field and dataclasses.is_dataclass(field[0]):
            for index, item in enumerate(field):
                yield from leaves(item, f"{inner}.{index}")
        else:
            yield inner, hint, field


def other_values(path, hint, value):
    """Yields values that the field might have instead, as YAML."""
    members = [member for member in choices(hint) if member is not type(None)]
    if path in OTHERS:
        yield OTHERS[path]
    elif get_origin(members[0]) is Literal:
        yield from (option for option in get_args(members[0]) if option != value)
    elif isinstance(value, bool):
        yield str(not value).lower()
    elif isinstance(value, int):
        yield from (str(value + 1), str(max(value - 1, 0)), str(2 * value + 3))
    elif isinstance(value, float):
        others = (value * 0.7, value * 1.5 + 0.2, 0.05, 0.95)
        yield from (f"{number:.6f}" for number in others if number != value)
    elif isinstance(value, tuple):
        # An empty list is filled in one of the variants.
        items = [2 * item if isinstance(item, int) else item * 0.9 for item in value]
        yield str(items or [0.1, 0.3, 0.6])


def shows(folder, variant, path, text):
    """Whether a change is refused or makes another part of a run; cheap parts come first."""
    try:
        other = Made(changed(base(folder, variant), [f"{path}={text}"], folder))
        name = path.rpartition(".")[2]
        for part in sorted(parts_for(path), key=lambda part: part != SHOWED.get(name)):
            if getattr(other, part)() != original(folder, variant, part):
                SHOWED[name] = part
                return True
    except UserError:
        return True
    return False


def is_elsewhere(path):
    return any(path == entry or path.startswith(f"{entry}.") for entry in ELSEWHERE)


def silent(folder, variant, prefix=""):
    """Returns the paths below `prefix` that can be changed without anything showing."""
    return [
        path
        for path, hint, value in leaves(base(folder, variant))
        if path.startswith(prefix)
        and not is_elsewhere(path)
        and (variant, path) not in UNUSED
        and not (value is None and path in VARIANTS)
        and not any(shows(folder, variant, path, text) for text in other_values(path, hint, value))
    ]


def test_the_same_experiment_twice_shows_no_difference(folder):
    again = Made(base(folder))
    for part in {part for parts in PARTS.values() for part in parts}:
        assert getattr(again, part)() == original(folder, None, part), part


@pytest.mark.parametrize("prefix", ["data", "model", "train", "devices"])
def test_no_field_is_ignored(folder, prefix):
    assert silent(folder, None, prefix) == []


@pytest.mark.slow
@pytest.mark.parametrize("variant", VARIANTS)
def test_no_field_of_the_other_choices_is_ignored(folder, variant):
    assert silent(folder, variant, variant.strip()) == []


def test_every_section_of_the_schema_has_been_looked_at(folder):
    seen = set()
    for variant in (None, *VARIANTS):
        todo = [base(folder, variant)]
        while todo:
            section = todo.pop()
            seen.add(type(section))
            fields = [getattr(section, field.name) for field in dataclasses.fields(section)]
            items = [i for f in fields for i in (f if isinstance(f, tuple) else (f,))]
            todo += [item for item in items if dataclasses.is_dataclass(item)]
    classes = {item for item in vars(schema).values() if isinstance(item, type)}
    sections = set(filter(dataclasses.is_dataclass, classes))
    # The augmentations are asked one by one: tests/inputs/augment/test_every_augmentation.py.
    sections -= {*schema.Augmentation.variants.values(), schema.FixedAspectCrop}
    # Families, and what their members have in common.
    sections -= {cls for cls in sections if cls.__subclasses__() and not hasattr(cls, "kind")}
    sections -= {schema.Range, schema.Items, schema.Outside}
    # Other blocks, mostly in the same network: tests/models/test_mobile_extractors.py.
    sections -= {schema.MobileNetV3Large, schema.MobileNetEdgeTpu}
    # tests/checkpoints/test_object_names.py.
    sections -= {schema.MobileNetMulti}
    sections -= {*schema.MobileDet.__subclasses__(), schema.InceptionV3}
    # Those of two-stage detectors: test_nothing_ignored_two_stages.py.
    sections -= {schema.FasterRcnn, schema.RPN, schema.RoIHead, schema.InceptionV2}
    # tests/models/backbones/test_inception.py.
    sections -= {schema.InceptionResNetV2}
    sections -= {*schema.RoiCrop.variants.values(), *schema.BoxHead.variants.values()}
    # Without early stopping or a teacher their sections are not there.
    assert sections - seen == {schema.EarlyStopping, schema.Distillation}
