"""Each check of advice: the field and the fix that it names, and where it gives no advice."""

import dataclasses
from pathlib import Path

import numpy as np
import pytest

from stillbox.checking.advice import files, models, training
from stillbox.cli.overrides import changes_of
from stillbox.experiment.recipes import recipe_names
from stillbox.experiment.resolve import resolve
from stillbox.experiment.rules.rule import RULES, apply_rules
from stillbox.experiment.schema import Experiment, Momentum, Schedule, Training
from stillbox.records.label_map import LabelMap, LabelMapItem
from stillbox.references import worded
from tests.checking.advised import SMALL_SOUND, OtherModel, advice_of, findings_of
from tests.checkpoints.tf_writer import write_checkpoint

COSINE = "train.optimizer.schedule"
CHECKS = [rule.function for rule in RULES if rule.occasion == "checking"]


def manual(*rates, warmup="false"):
    pairs = ", ".join(f"{{step: {step}, learning_rate: {rate}}}" for step, rate in rates)
    return (
        f"{COSINE}={{kind: manual_step, learning_rate: 0.001, warmup: {warmup}, "
        f"schedule: [{pairs}]}}"
    )


def exponential(**fields):
    fields = {"learning_rate": 0.01} | fields
    inside = ", ".join(f"{name}: {value}" for name, value in fields.items())
    return f"{COSINE}={{kind: exponential, {inside}}}"


TWO_STAGES = (
    "model={kind: faster_rcnn, resizer: {kind: fixed_shape, height: 800, width: 800}}",
    "model.boxes.postprocessing.nms.score_threshold=0",
)
# Check, overrides, severity, field, a part of the message, a part of the fix.
CASES = [
    (training.rounding_is_trained, ["train.steps=400", "train.quantization={delay: 400}"],
     "warning", "train.quantization.delay", "rounding begins after 400 steps, but there are 400",
     "train.quantization.delay=360"),
    (training.levels_are_exact, ["train.quantization={delay: 1}", "train.precision=bfloat16"],
     "note", "train.precision", "bfloat16 rounds once more", "train.precision=float32"),
    # Batch 64 at the published .04: .9 is 22.5 times that. .9 * 64 / 1024 = .056, .7 / 8 = .0875.
    (training.rate_fits_the_batch, [f"{COSINE}.learning_rate=0.9"], "warning",
     f"{COSINE}.learning_rate",
     "the linear rule gives 0.04 (published: 0.04 for 64), and 0.04 to 0.087 over all",
     f"{COSINE}.learning_rate=0.04"),
    # A batch of 8 has an eighth of .04, and the warm-up keeps its third.
    (training.rate_fits_the_batch, ["train.batch_size=8"], "warning", f"{COSINE}.learning_rate",
     "a learning rate of 0.04 is out of scale with a batch of 8",
     f"{COSINE}.learning_rate=0.005 {COSINE}.warmup_learning_rate=0.0017"),
    (training.rate_fits_the_batch,
     [f"{COSINE}.learning_rate=0.001", f"{COSINE}.warmup_learning_rate=0"], "note",
     f"{COSINE}.learning_rate", "such runs hardly learn", f"{COSINE}.learning_rate=0.04"),
    # Momentum .99 counts every gradient ten times as often as .9.
    (training.rate_fits_the_batch, ["train.optimizer.momentum=0.99"], "warning",
     f"{COSINE}.learning_rate", "the linear rule gives 0.004", "=0.004"),
    (training.rate_fits_the_batch, [manual((100, 0.8))], "warning", f"{COSINE}.learning_rate",
     "a learning rate of 0.8", "multiply learning_rate and every scheduled rate by 0.05"),
    (training.rate_fits_the_batch, [exponential(learning_rate=0.5, burnin_learning_rate=0.8)],
     "warning", f"{COSINE}.learning_rate", "a learning rate of 0.8",
     "learning_rate=0.025 train.optimizer.schedule.burnin_learning_rate=0.04"),
    (training.a_high_rate_is_warmed_up, [f"{COSINE}.warmup_steps=0"], "warning",
     f"{COSINE}.learning_rate", "0.04 from the first step on", "warmup_steps"),
    (training.a_high_rate_is_warmed_up, [manual((100, 0.04))], "warning", f"{COSINE}.learning_rate",
     "without a warm-up", f"{COSINE}.warmup=true"),
    (training.warm_up_ends, ["train.steps=2000"], "warning", f"{COSINE}.warmup_steps",
     "the warm-up takes 2,000 steps and training 2,000", "shorten it to some 100 steps"),
    (training.warm_up_ends, [manual((100, 0.04), warmup="true"), "train.steps=50"], "warning",
     f"{COSINE}.warmup", "takes 100 steps and training 50", "raise train.steps"),
    (training.warm_up_ends, [exponential(burnin_steps=100), "train.steps=50"], "warning",
     f"{COSINE}.burnin_steps", "takes 100 steps and training 50", "raise train.steps"),
    # Half of the decay from 2000 to 25000 is done at 13500: the cosine is at one half.
    (training.cosine_ends_with_training, ["train.steps=13500"], "warning", f"{COSINE}.total_steps",
     "training ends at step 13500 of a schedule of 25000: the learning rate is still at 50 %",
     f"{COSINE}.total_steps=13500"),
    (training.cosine_ends_with_training, ["train.steps=0"], "warning", "train.steps",
     "training has no end", "train.steps=25000"),
    (training.rates_are_reached, [manual((100, 0.04), (30000, 0.004))], "warning",
     f"{COSINE}.schedule.1.step", "the rate of step 30000 is never used", "move the boundary"),
    (training.rates_are_reached, [exponential(decay_steps=800720)], "note", f"{COSINE}.decay_steps",
     "only after 800,720 steps, and training has 25,000", f"{COSINE}.decay_steps=2500"),
    (training.epochs_last, ["data.train.num_epochs=3"], "note", "data.train.num_epochs",
     "after 3 passes over the records, or after 25,000 steps", ""),
    # .9997 ** 5000 = exp(-1.5) = .22; .997 ** 5000 is nothing; .999 ** 5000 = exp(-5) = .0067.
    (training.statistics_arrive,
     ["train.steps=5000", "model.backbone.conv.batch_norm.decay=0.9997"], "warning",
     "model.backbone.conv.batch_norm.decay", "22 % of the moving statistics",
     "model.backbone.conv.batch_norm.decay=0.999"),
    (training.statistics_have_a_batch, ["train.batch_size=1"], "warning", "train.batch_size",
     "statistics from 1 image", "model.freeze_batch_norm=true"),
    (training.statistics_have_weights,
     ["model.freeze_batch_norm=true", "train.fine_tune.checkpoint="], "warning",
     "model.freeze_batch_norm", "training mostly ends in NaN",
     "train.fine_tune.checkpoint=PATH"),
    (training.statistics_have_weights, [*TWO_STAGES, "train.fine_tune.checkpoint="], "warning",
     "model.freeze_batch_norm", "model.freeze_batch_norm=false",
     "train.fine_tune.checkpoint=PATH"),
    (training.statistics_have_weights,
     ["model.backbone.conv.batch_norm.train=false", "train.fine_tune.checkpoint="], "warning",
     "model.backbone.conv.batch_norm.train", "model.backbone.conv.batch_norm.train=true",
     "train.fine_tune.checkpoint=PATH"),
    # .9999 ** 5000 = exp(-.5) = .61.
    (training.averages_arrive,
     ["train.ema_decay=0.9999", "train.steps=5000", "evaluation.use_ema=true"], "warning",
     "train.ema_decay", "keeps 61 % of the first ones over 5,000 steps",
     "train.ema_warmup=true"),
    (training.averages_arrive,
     ["train.ema_decay=0.9999", "train.steps=5000", "evaluation.use_ema=false"], "note",
     "train.ema_decay", "keeps 61 %", ""),
    (training.averages_exist, ["evaluation.use_ema=true"], "warning", "evaluation.use_ema",
     "training keeps no moving average", "train.ema_decay"),
    (models.background_is_balanced, ["model.loss.classification=sigmoid"], "warning",
     "model.loss.classification", "the sigmoid loss weighs every background anchor equally",
     "sigmoid_focal"),
    (models.focal_loss_has_alpha, ["model.loss.classification.alpha=null"], "note",
     "model.loss.classification", "without alpha", "alpha=0.25"),
    (models.scores_fit_the_loss, ["model.postprocessing.score_converter=identity"], "warning",
     "model.postprocessing.score_converter", "score_converter identity after a sigmoid_focal loss",
     "score_converter=sigmoid"),
    (models.scores_fit_the_loss, ["model.loss.classification=softmax"], "warning",
     "model.postprocessing.score_converter", "score_converter sigmoid after a softmax loss",
     "score_converter=softmax"),
    (models.bias_reaches_the_loss, ["model.loss.classification=softmax"], "warning",
     "model.head.class_bias_init", "class_bias_init -4.6 has no effect with a softmax loss",
     "class_bias_init=0"),
    (models.losses_count, ["model.loss.localization_weight=0"], "warning",
     "model.loss.localization_weight", "never trained", "localization_weight=1"),
    (training.penalties_are_small, ["model.head.conv.regularizer={kind: l1}"], "warning",
     "model.head.conv.regularizer.weight", "a weight of 1, the format's default,", "weight=4e-05"),
    (models.every_box_has_an_anchor, ["model.matcher.force_match_for_each_row=false"], "note",
     "model.matcher.force_match_for_each_row", "that no anchor overlaps by 0.5",
     "force_match_for_each_row=true"),
    (models.curves_are_whole, ["model.postprocessing.nms.score_threshold=0.3"], "note",
     "model.postprocessing.nms.score_threshold", "up to a score of 0.3", "score_threshold=1e-08"),
    (models.mining_is_static,
     ["model.loss.classification=sigmoid", "model.loss.hard_example_miner={}"], "note",
     "model.loss.hard_example_miner", "the originals could not run it on a TPU", ""),
    (models.static_forms_exist, ["model.matcher=bipartite"], "note", "model.matcher",
     "the originals could not run it on a TPU", ""),
    (models.one_stage_dropout_drops,
     ["model.head.dropout=true", "model.head.dropout_keep_probability=1"], "note",
     "model.head.dropout_keep_probability", "drops nothing", "dropout=false"),
    (models.one_stage_dropout_drops,
     ["model.head.dropout=false", "model.head.dropout_keep_probability=0.5"], "note",
     "model.head.dropout_keep_probability", "0.5 has no effect while dropout is false",
     "dropout=true"),
    # 800 / 16 = 50 rows and columns of twelve anchors.
    (models.proposals_have_anchors, [*TWO_STAGES, "model.proposals.max_proposals=30001"], "warning",
     "model.proposals.max_proposals",
     "max_proposals 30001 is more than the 30000 anchors of an image", "max_proposals=30000"),
    # Three shapes on 200^2 + 100^2 + 50^2 + 25^2 + 13^2 places.
    (models.samples_have_anchors, [*TWO_STAGES,
     "model.neck={kind: fpn, min_level: 2, max_level: 6}",
     "model.proposals.anchors={kind: multiscale, min_level: 2, max_level: 6, "
     "scales_per_octave: 1}", "model.proposals.sample_size=159883"], "warning",
     "model.proposals.sample_size",
     "no image can fill a sample_size of 159883: it has 159,882 anchors", "sample_size=159882"),
    (models.samples_have_positives, [*TWO_STAGES, "model.boxes.sample_size=3"], "warning",
     "model.boxes.positive_fraction", "0.25 of a sample_size of 3 is less than one box",
     "raise model.boxes.sample_size"),
    # Scale 1 at the ratios 1/2 and 2 is 362 x 181 pixels; three shapes of scale 2 are larger.
    (models.anchors_fit_into_images,
     [*TWO_STAGES, "model.resizer.height=300", "model.resizer.width=300"], "note",
     "model.proposals.clip_anchors",
     "5 of 12 shapes of anchors fit into no image, such as 362 x 724 pixels", "clip_anchors=true"),
    (models.anchors_fit_into_images,
     [*TWO_STAGES, "model.resizer.height=40", "model.resizer.width=40"], "warning",
     "model.proposals.clip_anchors", "12 of 12 shapes", "smaller anchors"),
    # Images of 600 x 1024 pixels stand or lie: 724 x 362 fits, a square of 700 pixels does not.
    (models.anchors_fit_into_images, [*TWO_STAGES, "model.resizer={kind: keep_aspect_ratio}",
     "model.mask_padding=true",
     "model.proposals.anchors={kind: flexible_grid, grids: [{sizes: [512, 512, 700], "
     "aspect_ratios: [0.5, 2, 1]}]}"], "note", "model.proposals.clip_anchors",
     "1 of 3 shapes of anchors fit into no image, such as 700 x 700 pixels", ""),
    (models.anchors_stand_on_the_map, [*TWO_STAGES, "model.proposals.anchors.height_stride=8"],
     "warning", "model.proposals.anchors.height_stride",
     "anchors stand every 8 pixels, but those of the map every 16", "height_stride=16"),
    (models.crops_have_pixels, [*TWO_STAGES, "model.boxes.crop.size=51"], "warning",
     "model.boxes.crop.size", "crops of 51 x 51 points from a map of 50 x 50", "crop.size=50"),
    (models.classes_are_told_apart, [*TWO_STAGES[:1], "model.boxes=null"], "warning",
     "model.num_classes", "90 classes without a second stage", "num_classes=1"),
    (models.proposals_are_trained, [*TWO_STAGES, "model.proposals.objectness_weight=0"], "warning",
     "model.proposals.objectness_weight", "never trained", "objectness_weight=1"),
    (models.padding_is_there, [*TWO_STAGES, "model.mask_padding=true"], "note",
     "model.mask_padding", "mask_padding has no effect", "mask_padding=false"),
    (models.two_stage_dropout_drops,
     [*TWO_STAGES, "model.boxes.dropout=true", "model.boxes.dropout_keep_probability=1"], "note",
     "model.boxes.dropout_keep_probability", "drops nothing", "model.boxes.dropout=false"),
    (models.scores_fit_the_loss,
     [*TWO_STAGES, "model.boxes.postprocessing.score_converter=sigmoid"], "warning",
     "model.boxes.postprocessing.score_converter", "score_converter sigmoid after a softmax loss",
     "score_converter=softmax"),
    (training.penalties_are_small, [*TWO_STAGES, "model.boxes.predictor.regularizer={kind: l2}"],
     "warning", "model.boxes.predictor.regularizer.weight", "a weight of 1, the format's default,",
     "weight=4e-05"),
    (training.statistics_have_a_batch,
     [*TWO_STAGES, "model.freeze_batch_norm=false", "train.batch_size=1"], "warning",
     "train.batch_size", "statistics from 1 image", "model.freeze_batch_norm=true"),
    (training.clipping_clips, ["train.gradient_clip_norm=0"], "note", "train.gradient_clip_norm",
     "does not clip", ""),
    (training.penalties_are_added, ["train.regularization=false"], "warning",
     "train.regularization", "no regularizer has an effect", "regularization=true"),
    (models.scales_are_used,
     ["model.anchors={kind: ssd, min_scale: 0.1, scales: [.1, .2, .3, .4, .5]}"], "note",
     "model.anchors.min_scale", "min_scale have no effect beside scales", "take one"),
    (training.first_weights_are_named, ["train.fine_tune.scope=classification"], "note",
     "train.fine_tune.scope", "scope has no effect: no checkpoint is named",
     "train.fine_tune.checkpoint=PATH"),
    (training.evaluations_happen, ["train.evaluate_every=30000"], "note", "train.evaluate_every",
     "evaluate_every 30,000 is more than the 25,000 steps", ""),
    (files.checkpoint_fits, ["train.fine_tune.checkpoint=nowhere/model.ckpt"], "warning",
     "train.fine_tune.checkpoint", "nowhere/model.ckpt: there are no such weights",
     "`stillbox weights get mobilenet_v1_1.0_224`"),
    (files.sets_differ, ["data.train.paths=[a, b]", "data.evaluation.paths=[b]"], "warning",
     "data.evaluation.paths", "b is trained on and scored on", ""),
]  # fmt: skip


@pytest.mark.parametrize(
    ("check", "overrides", "severity", "field", "message", "fix"),
    CASES,
    ids=[f"{case[0].__name__}-{number}" for number, case in enumerate(CASES)],
)
def test_a_check_gives_advice(check, overrides, severity, field, message, fix):
    (advice,) = advice_of(check, overrides)
    assert (advice.severity, advice.path) == (severity, field)
    assert message in advice.what
    assert fix in worded(advice.fix)


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
@pytest.mark.parametrize("overrides", [(), TWO_STAGES], ids=["one_stage", "two_stage"])
def test_a_sound_experiment_gets_no_advice(check, overrides):
    # A recipe of two stages freezes batch norm, which is sound with weights alone.
    weights = check is training.statistics_have_weights and overrides
    named = ["train.fine_tune.checkpoint=a.npz"] if weights else []
    assert advice_of(check, [*overrides, *named]) == []


@pytest.mark.parametrize(("check", "overrides"), [
    # Adaptive optimisers have no rule.
    (training.rate_fits_the_batch, ["train.optimizer={kind: adam}", "train.batch_size=1"]),
    (training.rate_fits_the_batch, ["train.optimizer={kind: rms_prop}", "train.batch_size=1"]),
    (training.rate_fits_the_batch, ["train.optimizer.momentum=1"]),
    # Published with .9 for 1024; .056 for 64 lies between.
    (training.rate_fits_the_batch, [f"{COSINE}.learning_rate=0.056"]),
    (training.a_high_rate_is_warmed_up, [manual((100, 0.04), warmup="true")]),
    (training.a_high_rate_is_warmed_up, [exponential(learning_rate=0.04, burnin_steps=9)]),
    (training.statistics_arrive, ["train.steps=10", "model.freeze_batch_norm=true"]),
    (training.statistics_arrive, ["train.steps=0"]),
    # Nothing lower would help in so few steps.
    (training.statistics_arrive, ["train.steps=5"]
     + [f"model.{part}.conv.batch_norm.decay=0.5" for part in ("backbone", "neck", "head")]),
    (training.statistics_have_weights, ["train.fine_tune.checkpoint="]),
    (training.statistics_have_weights, ["model.freeze_batch_norm=true",
                                        "train.fine_tune.checkpoint=a.npz"]),
    (training.statistics_have_a_batch, ["train.batch_size=1", "model.freeze_batch_norm=true"]),
    (training.averages_arrive, ["train.ema_decay=.9999", "train.ema_warmup=true"]),
    (training.averages_exist, ["evaluation.use_ema=true", "train.ema_decay=0.9"]),
    (models.every_box_has_an_anchor, ["model.matcher=bipartite"]),
    (models.background_is_balanced, ["model.loss.classification=sigmoid",
                                      "model.loss.hard_example_miner={}"]),
    (models.one_stage_dropout_drops, ["model.head.dropout=true"]),
    (training.penalties_are_added, ["train.regularization=false",
     *(f"model.{part}.conv.regularizer=null" for part in ("backbone", "neck", "head"))]),
    (training.warm_up_ends, ["train.steps=0"]),
    # Nine tenths of the way down a cosine there is 2 % left.
    (training.cosine_ends_with_training, ["train.steps=24000"]),
    # Of placeholders and buckets the rules speak.
    (files.checkpoint_fits, ["train.fine_tune.checkpoint=gs://bucket/model.ckpt"]),
    (files.checkpoint_fits, ["train.fine_tune.checkpoint=PATH_TO_BE_CONFIGURED/x"]),
])  # fmt: skip
def test_a_check_that_does_not_apply_gives_no_advice(check, overrides):
    assert advice_of(check, overrides) == []


def test_a_head_without_layers_has_no_statistics():
    overrides = ["train.steps=100", "model.head.kind=convolutional"]
    norm = "model.head.conv.batch_norm={decay: 0.9999}"
    fields = {advice.path for advice in advice_of(training.statistics_arrive, [*overrides, norm])}
    assert not any(path.startswith("model.head") for path in fields)
    layers = ["model.head.layers_before=1", "model.head.max_depth=8"]
    fields = {a.path for a in advice_of(training.statistics_arrive, [*overrides, norm, *layers])}
    assert "model.head.conv.batch_norm.decay" in fields


@pytest.fixture
def label_map(tmp_path, monkeypatch):
    """The function from class names to a label map in the current folder."""
    monkeypatch.chdir(tmp_path)

    def write(name, *classes):
        (tmp_path / name).write_text(LabelMap.from_names(classes).to_text())
        return name

    return write


def test_num_classes_fits_the_label_map(label_map):
    sets = [f"data.train.label_map={label_map('m.pbtxt', 'cat', 'owl')}"]
    (advice,) = advice_of(files.label_maps_fit, [*sets, "model.num_classes=1"])
    assert (advice.severity, advice.path) == ("error", "model.num_classes")
    assert "goes up to id 2, the model has 1 class" in advice.what
    (advice,) = advice_of(files.label_maps_fit, [*sets, "model.num_classes=90"])
    assert advice.severity == "warning"
    assert "ends at id 2: the other 88 are never trained" in advice.what
    assert worded(advice.fix) == "model.num_classes=2"
    assert advice_of(files.label_maps_fit, [*sets, "model.num_classes=2"]) == []


def test_contiguous_num_classes_fits_the_label_map(label_map):
    name = label_map("m.pbtxt")
    items = (LabelMapItem(1, "cat"), LabelMapItem(7, "owl"))
    Path(name).write_text(LabelMap(items).to_text())
    sets = [f"data.train.label_map={name}", "model.class_slots=contiguous"]
    (advice,) = advice_of(files.label_maps_fit, [*sets, "model.num_classes=7"])
    assert (advice.severity, advice.path) == ("error", "model.num_classes")
    assert "the label map has 2 classes, the model 7" in advice.what
    assert worded(advice.fix) == "model.num_classes=2"
    fitting = [*sets, "model.num_classes=2"]
    assert advice_of(files.label_maps_fit, fitting) == []
    remap = "train.augmentations=[{kind: remap_labels, original_labels: [2], new_label: 7}]"
    (advice,) = advice_of(files.label_maps_fit, [*fitting, remap])
    assert (advice.severity, advice.path) == ("error", "train.augmentations.0.original_labels")
    assert "there is no class 2: the model has ids 1, 7" in advice.what


def test_the_built_in_label_map_fits_too(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    sets = ["data.train.label_map=coco", "model.class_slots=contiguous"]
    (advice,) = advice_of(files.label_maps_fit, [*sets, "model.num_classes=90"])
    assert advice.what.startswith("built-in label map coco: the label map has 80 classes")
    assert advice_of(files.label_maps_fit, [*sets, "model.num_classes=80"]) == []


def test_label_maps_of_both_sets_agree(label_map):
    sets = [
        "data.evaluation.paths=val.record",
        f"data.train.label_map={label_map('a.pbtxt', 'cat', 'owl')}",
        f"data.evaluation.label_map={label_map('b.pbtxt', 'owl', 'cat')}",
    ]
    (advice,) = advice_of(files.label_maps_agree, sets)
    assert "id 1 is 'owl' here and 'cat' in the label map of training" in advice.what
    (advice,) = advice_of(
        files.label_maps_agree,
        [*sets[:2], f"data.evaluation.label_map={label_map('c.pbtxt', 'cat', 'owl', 'dog')}"],
    )
    assert "id 3 is 'dog' here and 'nothing'" in advice.what
    assert advice_of(files.label_maps_agree, sets[:2]) == []


def test_the_label_map_of_a_set_without_records_is_not_used(label_map):
    """The recipe's own is coco; with it the fix would be a model of 80 classes for one."""
    changes = [f"data.train.label_map={label_map('m.pbtxt', 'cow')}", "model.num_classes=1"]
    experiment = resolve("ssd_resnet34", changes_of(changes)).experiment
    assert not findings_of(files.label_maps_fit, experiment)
    assert not findings_of(files.label_maps_agree, experiment)
    scored = resolve(
        "ssd_resnet34", changes_of([*changes, "data.evaluation.paths=val.record"])
    ).experiment
    assert findings_of(files.label_maps_fit, scored)
    assert findings_of(files.label_maps_agree, scored)


def test_a_label_map_that_cannot_be_read_is_an_error(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "bad.pbtxt").write_text("item { id: x }")
    overrides = ["data.train.label_map=bad.pbtxt"]
    (advice,) = advice_of(files.label_maps_fit, overrides)
    assert advice.severity == "error"
    assert "bad.pbtxt:1" in advice.what
    assert advice_of(files.label_maps_agree, overrides) == []


def test_a_checkpoint_is_opened_and_what_it_gives_is_said(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    overrides = [*SMALL_SOUND, "train.fine_tune.checkpoint=model.ckpt-7"]
    (tmp_path / "model.ckpt-7.index").touch()
    (advice,) = advice_of(files.checkpoint_fits, overrides)
    assert advice.severity == "error"
    assert "the index cannot be read" in advice.what
    whole = {
        f"MobilenetV1/Conv2d_0/{name}": np.ones(shape, np.float32)
        for name, shape in {
            "weights": (3, 3, 3, 8),
            "BatchNorm/gamma": (8,),
            "BatchNorm/beta": (8,),
            "BatchNorm/moving_mean": (8,),
            "BatchNorm/moving_variance": (16,),
        }.items()
    }
    write_checkpoint(tmp_path / "model.ckpt-7", whole)
    (advice,) = advice_of(files.checkpoint_fits, overrides)
    assert (advice.severity, "at least 50% are asked for" in advice.what) == ("error", True)
    opened, missing, shapes, *_ = advice_of(
        files.checkpoint_fits, [*overrides, "train.fine_tune.min_loaded=0"]
    )
    assert (opened.severity, missing.severity, shapes.severity) == ("note", "warning", "warning")
    assert "opened model.ckpt-7: 4 of 25 wanted arrays loaded, 20 missing, 1 of" in opened.what
    assert "MobilenetV1/Conv2d_1_depthwise/BatchNorm/beta" in missing.what
    assert "moving_variance: [16] in the file, [8] wanted" in shapes.what
    whole["MobilenetV1/Conv2d_0/BatchNorm/beta"][:] = np.nan
    write_checkpoint(tmp_path / "model.ckpt-7", whole)
    (advice,) = advice_of(files.checkpoint_fits, [*overrides, "train.fine_tune.min_loaded=0"])
    assert "8 of 8 values that are not finite" in advice.what


def test_patterns_that_match_nothing_or_everything_are_errors():
    (advice,) = advice_of(training.patterns_match, [*SMALL_SOUND, "train.freeze=[bakbone]"])
    assert (advice.severity, advice.path) == ("error", "train.freeze")
    assert "'bakbone' matches no parameter" in advice.what
    (advice,) = advice_of(training.patterns_match, [*SMALL_SOUND, "train.freeze=['.*']"])
    assert "no parameter is left to train" in advice.what
    (advice,) = advice_of(training.patterns_match, [*SMALL_SOUND, "train.trainable=[haed]"])
    assert (advice.severity, advice.path) == ("error", "train.trainable")
    (advice,) = advice_of(training.patterns_match, [*SMALL_SOUND, "train.freeze=['^backbone']"])
    assert advice.severity == "note"
    assert "parameters are trained" in advice.what


@pytest.mark.parametrize("recipe", recipe_names())
def test_recipes_get_no_warnings(recipe):
    resolved = resolve(recipe, changes_of(["train.fine_tune.checkpoint="]))
    advices = [
        advice
        for advice in apply_rules(resolved.experiment, "checking", resolved.origins)
        if advice.severity != "note"
    ]
    # Recipes with frozen statistics are made for weights, which are taken out above.
    frozen = getattr(resolved.experiment.model, "freeze_batch_norm", False)
    assert [advice.path for advice in advices] == ["model.freeze_batch_norm"] * frozen


def test_a_schedule_of_the_user_s_own_may_lack_a_warm_up():
    schedule = type("Own", (Schedule,), {"kind": "own"})(learning_rate=0.04)
    train = Training(optimizer=Momentum(schedule=schedule))
    (advice,) = findings_of(training.a_high_rate_is_warmed_up, Experiment(train=train))
    assert f"{COSINE}.warmup_steps" in advice.fix


def test_a_model_of_another_family_gets_no_advice_about_one_stage_models():
    experiment = resolve("demo_scenes").experiment
    experiment = dataclasses.replace(experiment, model=OtherModel(num_classes=3))
    origins = {"model.anchors.min_scale": "here", "train.optimizer.schedule.learning_rate": "here"}
    assert list(apply_rules(experiment, "checking", origins)) == []
