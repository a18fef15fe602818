import dataclasses
import time
import typing

import pytest

from stillbox.cli.overrides import changes_of
from stillbox.experiment import schema
from stillbox.experiment.rules import check, check_trainable, warnings_about
from stillbox.experiment.updating import apply_changes
from stillbox.references import worded
from tests.helpers import refusal

READY = ("train.steps=10", "data.train.paths=a.record", "data.train.label_map=labels.pbtxt")


def overridden(*overrides):
    origins = {}
    return apply_changes(schema.Experiment(), changes_of(overrides), origins), origins


def test_the_defaults_hold_together():
    check(schema.Experiment(), {})
    assert warnings_about(schema.Experiment(), {}) == ()


HEAD_NORM = "model.head.conv.batch_norm={%s}"
JITTER = "model.resizer={kind: scale_jitter, %s}"
KEEP = "model.resizer={kind: keep_aspect_ratio, min_dimension: %d, max_dimension: %d}"
COSINE = (
    "train.optimizer.schedule={kind: cosine, total_steps: %d, warmup_steps: %d, hold_steps: %d}"
)


@pytest.mark.parametrize(("overrides", "message"), [
    (["model.matcher.unmatched_threshold=0.6"], "unmatched_threshold 0.6 is above matched_thr"),
    (["model.matcher.negatives_lower_than_unmatched=false"], "no anchor would be background"),
    (["model.matcher.matched_threshold=1.5"], "matched_threshold is 1.5"),
    (["model.postprocessing.nms.max_per_class=101"], "max_per_class 101 is more than max_tot"),
    (["model.postprocessing.nms.iou_threshold=1.1"], "iou_threshold is 1.1"),
    (["model.postprocessing.nms.max_total=0"], "max_total is 0"),
    ([KEEP % (700, 600)], "min_dimension 700 is above max_dimension 600"),
    ([KEEP % (20, 32)], "image side of 32 pixels is too small"),
    (["model.resizer.width=32"], "image side of 32 pixels is too small for mobilenet_v1"),
    (["model.resizer.height=0"], "model.resizer.height is 0"),
    ([JITTER % "multiple: 0"], "model.resizer.multiple is 0"),
    ([JITTER % "min_scale: 0"], "model.resizer.min_scale is 0"),
    ([JITTER % "min_scale: 2"], "min_scale 2.0 is above max_scale 1.0"),
    ([JITTER % "width: 20, multiple: 16"], "image side of 32 pixels is too small"),
    (["train.input_sizes=[288, 288]"], "train.input_sizes has a size twice"),
    (["train.input_sizes=[300, 0]"], "train.input_sizes is 0"),
    (["train.input_sizes=[20]"], "at 20 x 20 of train.input_sizes: an image side of 20 pixels"),
    ([JITTER % "width: 640, height: 480", "train.input_sizes=[400]"], "480 x 640 has no whol"),
    ([KEEP % (300, 400), "train.input_sizes=[30]"], "at 30 x 30 of train.input_sizes: an ima"),
    (["model.resizer={kind: identity, canvas: [64, 64]}", "train.input_sizes=[64]"],
     "identity"),
    ([JITTER % "pad_value: [1]"], "model.resizer.pad_value has 1 number"),
    (["model.pixels.mean=[1, 2]"], "model.pixels.mean has 2 numbers"),
    (["model.pixels.std=[1, 0, 1]"], "model.pixels.std is 0.0"),
    (["model.neck.taps=[conv_11_pointwise, conv_14_pointwise]"], "no layer 'conv_14_pointwi"),
    (["model.neck.taps=[conv_13_pointwise, conv_11_pointwise]"], "taps are not in order"),
    (["model.neck.taps=[conv_13_pointwise, conv_13_pointwise]"], "taps are not in order"),
    (["model.neck.taps=[]", "model.anchors.num_layers=4"], "the neck taps nothing"),
    (["model.anchors.num_layers=5"], "anchors for 5 feature maps, but the neck makes 6"),
    (["model.neck.extra_depths=[512]"], "anchors for 6 feature maps, but the neck makes 3"),
    (["model.anchors.scales=[0.1, 0.2]"], "scales has 2 values for 6 feature maps"),
    (["model.anchors.aspect_ratios=[]"], "no aspect ratios"),
    (["model.anchors.aspect_ratios=[1, 0]"], "aspect_ratios is 0.0"),
    (["model.anchors.min_scale=0.96"], "min_scale 0.96 is above max_scale 0.95"),
    (["model.anchors.height_strides=[1, 2, 3, 4, 5, 6]"], "height_strides without width_strid"),
    (["model.neck.extra_depths=[]", "model.neck.taps=[conv_0]", "model.anchors.num_layers=1"],
     "one feature map has no room"),
    (["model.loss.classification.kind=sigmoid_focal", "model.loss.hard_example_miner={}"],
     "hard_example_miner together with a focal loss"),
    (["model.background_class=false"], "no slot that a background target could fill"),
    (["model.head.max_depth=8", "model.head.min_depth=9"], "min_depth 9 is above max_depth 8"),
    (["model.num_classes=0"], "model.num_classes is 0"),
    ([f"model.num_classes=1{'0' * 30}"], "model.num_classes is a number of 31 digits"),
    (["model.head.dropout_keep_probability=0"], "dropout_keep_probability is 0.0"),
    (["model.neck.conv.batch_norm={decay: 1.5}"], "model.neck.conv.batch_norm.decay is 1.5"),
    ([COSINE % (9, 10, 0)], "total_steps 9 is less than 10 warmup_steps"),
    ([COSINE % (10, 5, 0), "train.optimizer.schedule.warmup_learning_rate=1"],
     "warmup_learning_rate 1.0 is above learning_rate 0.002"),
    (["train.optimizer.schedule={kind: manual_step, schedule: [{step: 5}, {step: 5}]}"],
     "step 5 follows step 5"),
    (["train.optimizer.schedule={kind: manual_step, schedule: [{step: -1}]}"],
     "train.optimizer.schedule.schedule.0.step is -1"),
    (["train.optimizer.schedule="
     "{kind: manual_step, warmup: true, schedule: [{step: 0}, {step: 5}]}"],
     "warmup goes to the first scheduled rate, which is at step 0"),
    (["train.optimizer.schedule={kind: manual_step, warmup: true}"], "the schedule is empty"),
    (["train.optimizer.schedule.learning_rate=-1"], "learning_rate is -1.0"),
    (["train.optimizer={kind: adagrad, initial_accumulator: 0}"], "initial_accumulator is 0"),
    (["train.optimizer={kind: adadelta, rho: 2}"], "train.optimizer.rho is 2"),
    (["data.tiles={side: 31}"], "data.tiles.side is 31"),
    (["data.tiles={overlap: 0.95}"], "data.tiles.overlap is 0.95"),
    (["data.tiles={side: 80}", "model.resizer={kind: identity, canvas: [64, 96]}"],
     "a tile of 80 pixels does not fit the canvas of 64"),
    (["data.tiles={side: 64, whole_image: true}",
      "model.resizer={kind: identity, canvas: [64, 96]}"],
     "the resizer identity does not shrink whole images"),
    (["data.reduced_decoding=true", "model.resizer.method=area"],
     "the resizer's method area reads whole images"),
    (["data.reduced_decoding=true", "data.cache_images=true"],
     "data.cache_images keeps whole images, so that none is reduced"),
    (["data.train.annotations=instances.json"], "annotations are the ground truth of eval"),
    (["train.freeze=['(']"], "'(' is no regular expression"),
    (["train.fine_tune.skip=['(']"], "'(' is no regular expression"),
    (["train.batch_size=0"], "train.batch_size is 0"),
    (["train.steps=-1"], "train.steps is -1"),
    (["train.ema_decay=1.5"], "train.ema_decay is 1.5"),
    (["train.augmentations=[{kind: random_crop_image, min_area: 0.9, max_area: 0.5}]"],
     "min_area 0.9 is above max_area 0.5"),
    (["train.augmentations=[{kind: ssd_random_crop, operations: [{min_aspect_ratio: 3}]}]"],
     "min_aspect_ratio 3.0 is above max_aspect_ratio 1.33"),
    (["train.augmentations=[{kind: ssd_random_crop, operations: []}]"], "no operations"),
    (["train.augmentations=[{kind: random_horizontal_flip, probability: 2}]"],
     "train.augmentations.0.probability is 2.0"),
    (["train.early_stopping={}"], "early_stopping without evaluations"),
    (["train.ema_decay=0.9", "train.ema_from_zero=true", "train.ema_warmup=false"],
     "an average that starts at 0 is too small until"),
    (["train.ema_decay=0.9", "train.ema_tau=9", "train.ema_warmup=true"],
     "ema_tau and ema_warmup are two ramps of one decay"),
    (["train.ema_decay=0.9", "train.ema_copy_first=true", "train.ema_warmup=true",
     "train.ema_from_zero=true"],
     "whose first update copies the parameters does not start at 0"),
    (["train.optimizer={kind: adam, groups: [{pattern: a, decay_multiplier: 0}]}"],
     "adam has no weight decay; that of its kernels is in the loss"),
    (["train.optimizer={kind: adamw, groups: [{pattern: a}]}"], "changes neither learning"),
    (["train.optimizer={groups: [{learning_rate_multiplier: 2}]}"],
     "a group without a pattern"),
    (["train.optimizer={groups: [{pattern: '(', learning_rate_multiplier: 2}]}"],
     "is no regular expression"),
    (["train.early_stopping={patience: 0}", "train.evaluate_every=5"],
     "patience 0 and without a target never stops"),
    (["train.early_stopping={patience: 0, min_delta: 0.1, target: 0.2}"],
     "min_delta 0.1 has no effect while patience is 0"),
    (["train.early_stopping={target: 23.0}"], "train.early_stopping.target is 23.0"),
    (["train.early_stopping={target: 0}"], "train.early_stopping.target is 0.0"),
    (["train.summary_every=-1"], "train.summary_every is -1"),
    (["evaluation.metrics=[]"], "no metrics"),
    (["evaluation.batch_size=0"], "evaluation.batch_size is 0"),
    (["devices.spatial_partitions=0"], "devices.spatial_partitions is 0"),
    (["devices.spatial_partitions=7"], "300 rows (model.resizer.height) cannot be cut into 7"),
    ([HEAD_NORM % "group_size: 4"], "group_size 4 has no effect while statistics is global"),
    ([HEAD_NORM % "statistics: groups"], "statistics of groups of 0 images"),
    ([HEAD_NORM % "statistics: groups, group_size: 5"], "cannot be divided into groups of 5"),
    ([HEAD_NORM % "group_size: -1"], "model.head.conv.batch_norm.group_size is -1"),
    (["devices.replicas=-1"], "devices.replicas is -1"),
    (["devices.replicas=5"], "a batch of 32 (train.batch_size) cannot be divided among 5 repl"),
    (["data.evaluation.num_epochs=2"], "data.evaluation.num_epochs is 2"),
    (["data.train.max_boxes=0"], "data.train.max_boxes is 0"),
    (["data.evaluation.repeat_threshold=0.1"], "an evaluation reads every image once"),
])  # fmt: skip
def test_a_contradiction_is_refused_with_its_place_and_a_remedy(overrides, message):
    experiment, origins = overridden(*overrides)
    caught = refusal(check, experiment, origins)
    assert message in str(caught)
    assert caught.fix
    where = caught.where
    assert worded(where).split(".")[0] in ("model", "train", "data", "evaluation", "devices")


@pytest.mark.parametrize(("overrides", "fix"), [
    ([JITTER % "height: 600, multiple: 128", "devices.spatial_partitions=3"], "to 384 or 768"),
    ([JITTER % "height: 480, multiple: 128", "train.input_sizes=[404]"], "such as 402 or 405"),
])  # fmt: skip
def test_the_remedy_of_a_padded_height_is_sound(overrides, fix):
    assert fix in worded(refusal(check, *overridden(*overrides)).fix)


@pytest.mark.parametrize("overrides", [
    ["model.matcher.matched_threshold=1", "model.matcher.unmatched_threshold=0"],
    ["model.matcher.unmatched_threshold=0.4",
     "model.matcher.negatives_lower_than_unmatched=false"],
    [KEEP % (33, 33)],
    ["model.resizer.width=33"],
    [COSINE % (11, 10, 0)],
    [COSINE % (10, 10, 0)],
    [COSINE % (10, 5, 50)],
    [COSINE % (10, 0, 0), "train.optimizer.schedule.warmup_learning_rate=1"],
    ["model.neck.extra_depths=[]", "model.neck.taps=[conv_0]", "model.anchors.num_layers=1",
     "model.anchors.scales=[0.5]"],
    ["model.background_class=false", "model.loss.encode_background_as_zeros=true"],
    ["model.postprocessing.nms.score_threshold=-100"],
    ["train.early_stopping={}", "train.evaluate_every=5"],
    ["train.ema_decay=0.9", "train.ema_from_zero=true", "train.ema_warmup=true"],
    ["train.ema_decay=null", "train.ema_from_zero=true", "train.ema_warmup=false"],
    ["train.early_stopping={patience: 0, target: 1}", "train.evaluate_every=5"],
    ["model.neck.taps=[conv_0, conv_1_depthwise]"],
])  # fmt: skip
def test_values_at_the_edge_are_fine(overrides):
    check(*overridden(*overrides))


def test_all_broken_rules_are_in_one_message_with_their_places():
    experiment, origins = overridden("train.batch_size=0", "model.num_classes=0")
    caught = refusal(check, experiment, origins)
    text = str(caught)
    assert "model.num_classes=0: model.num_classes is 0\n  fix: give a value of at" in text
    assert "\nand train.batch_size=0: train.batch_size is 0\n  fix: " in text
    experiment = schema.Experiment(model=schema.OneStage(num_classes=0))
    caught = refusal(check, experiment, {"model.num_classes": "p.config:9:5"})
    assert caught.where == "p.config:9:5"
    check_trainable(*overridden(*READY))


@pytest.mark.parametrize(("overrides", "message", "fix"), [
    (["data.train.paths=[]"], "no records to train on", "data.train.paths="),
    (["data.train.label_map="], "no label map for the training", "data.train.label_map"),
    (["data.evaluation.paths=v"], "no label map for the eval", "data.evaluation.label"),
    (["data.train.paths=PATH_TO_BE_CONFIGURED/x.record"], "placeholder PATH_TO_BE_CONFIGURED",
     "data.train.paths=PATH"),
    (["data.train.label_map=gs://${YOUR_GCS_BUCKET}/x"], "placeholder ${YOUR_GCS_BUCKET}",
     "data.train.label_map=PATH"),
    (["train.fine_tune.checkpoint=gs://bucket/x"], "is not a local file",
     "copy it to this machine"),
    (["train.fine_tune.checkpoint=PATH_TO_BE_CONFIGURED/model.ckpt"], "placeholder",
     "train.fine_tune.checkpoint= to start from random weights"),
])  # fmt: skip
def test_what_training_lacks_is_refused_with_the_set_that_gives_it(overrides, message, fix):
    experiment, origins = overridden(*READY, *overrides)
    check(experiment, origins)
    caught = refusal(check_trainable, experiment, origins)
    assert message in caught.what
    assert fix in worded(caught.fix)


def test_one_shard_of_many_is_warned_about_with_the_pattern_for_all():
    experiment, origins = overridden("data.train.paths=d/coco.record-00000-of-00100")
    assert tuple(map(worded, warnings_about(experiment, origins))) == (
        "data.train.paths=d/coco.record-00000-of-00100: 1 of 100 shards of d/coco.record; "
        "for all of them write d/coco.record-?????-of-00100",
    )


@pytest.mark.parametrize(
    "paths",
    [
        ("coco.record-?????-of-00100",),
        ("coco-00000-of-00001.tfrecord",),
        ("coco-00000-of-00002.tfrecord", "coco-00001-of-00002.tfrecord"),
        ("coco.record",),
    ],
)
def test_complete_sets_of_shards_are_fine(paths):
    records = schema.Records(paths=paths)
    assert warnings_about(schema.Experiment(data=schema.Data(train=records)), {}) == ()


def test_fields_without_effect_are_warned_about():
    model = dataclasses.replace(schema.OneStage(), head=schema.ConvolutionalHead(layers_before=2))
    (warning,) = warnings_about(schema.Experiment(model=model), {})
    assert "layers_before 2 has no effect while max_depth is 0" in warning
    (warning,) = warnings_about(*overridden("data.repeat_first_batch=true"))
    assert worded(warning).startswith(
        "data.repeat_first_batch=true: every step trains on the first"
    )
    assert "only this batch is learnt" in warning
    experiment, origins = overridden("devices.replicas=8")
    (warning,) = warnings_about(experiment, origins)
    assert worded(warning).startswith("devices.replicas=8: replicas 8 has no effect: neither")
    experiment, origins = overridden("devices.replicas=8", "model.loss.normalizer=per_replica")
    assert warnings_about(experiment, origins) == ()
    words = ["train.fine_tune={checkpoint: a.npz, load_heads: true, scope: %s}"]
    (warning,) = warnings_about(*overridden(words[0] % "classification"))
    assert "load_heads has no effect with scope: classification" in warning
    assert warnings_about(*overridden(words[0] % "detection")) == ()


def _numbers(hint):
    """Yields the parts of a type that are numbers, each with the ranges around it."""
    if typing.get_origin(hint) is typing.Annotated:
        ranges = [limit for limit in hint.__metadata__ if isinstance(limit, schema.Range)]
        yield from ((number, [*ranges, *more]) for number, more in _numbers(hint.__origin__))
    elif hint in (int, float):
        yield hint, []
    elif typing.get_origin(hint) is not typing.Literal:
        for part in typing.get_args(hint):
            yield from _numbers(part)


def test_every_number_of_the_schema_has_a_range_with_two_finite_ends():
    classes = [value for value in vars(schema).values() if isinstance(value, type)]
    sections = {section for section in classes if dataclasses.is_dataclass(section)}
    fields = 0
    for section in sections - {schema.Range, schema.Items}:
        hints = typing.get_type_hints(section, include_extras=True)
        for field in dataclasses.fields(section):
            for number, ranges in _numbers(hints[field.name]):
                place = f"{section.__name__}.{field.name}"
                assert len(ranges) == 1, f"{place} is {number.__name__} without a range"
                assert abs(ranges[0].low) < 1e10, place
                # Seeds have 63 bits, and rates are float32.
                most = {"seed": 2**63, "learning_rate": 3.4e38}.get(field.name[-13:], 1e10)
                assert abs(ranges[0].high) < most, place
                fields += 1
    assert fields > 300


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("model.pad_to_multiple=65537", "give a value of at most 16,384"),
        ("model.backbone.depth_multiplier=1e308", "give a value of at most 100"),
        (f"model.resizer.height={2**63}", "model.resizer.height is a number of 19 digits"),
        (f"train.steps={2**31}", "give a value of at most 2,147,483,647"),
        ("model.pixels.mean=[1e308, 0, 0]", "give a value of at most 1e+09"),
        ("model.pixels.mean=[-1e308, 0, 0]", "give a value of at least -1e+09"),
        ("model.pixels.std=[1e-320, 1, 1]", "give a value above 0"),
        (f"model.anchors.scales={[0.5] * 65}", "model.anchors.scales has 65 items"),
        (f"train.freeze={['head'] * 1001}", "train.freeze has 1,001 items"),
        ("data.train.label_map=" + "a" * 10_001, "a text of 10,001 characters"),
        ("train.freeze=['a{1000000000}']", "repeats 1,000,000,000 times"),
    ],
)
def test_what_would_exhaust_a_check_is_refused(override, message):
    caught = refusal(check, *overridden(override))
    assert message in str(caught)


def test_a_cosine_without_a_decay_is_taken_with_a_warning():
    for steps in ((10, 10, 0), (10, 5, 5), (10, 5, 50)):
        (warning,) = warnings_about(*overridden(COSINE % steps))
        assert f"total_steps 10 leaves nothing after {steps[1]} warmup_steps" in warning
        assert "the rate is learning_rate at step 10" in warning


def test_thousands_of_items_are_read_in_little_time():
    items = [{"step": step, "learning_rate": 0.1} for step in range(1, 1001)]
    start = time.process_time()
    experiment, origins = overridden(
        f"train.optimizer.schedule={{kind: manual_step, schedule: {items}}}",
        "train.optimizer.schedule.schedule.3.learning_rate=0.2",
    )
    assert time.process_time() - start < 5
    assert experiment.train.optimizer.schedule.schedule[3].learning_rate == 0.2
    assert len(origins) > 2000
