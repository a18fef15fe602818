"""Experiments of TensorFlow Model Garden: defaults, layers, effects and refusals."""

import math
from pathlib import Path

import pytest

from stillbox.errors import UserError
from stillbox.experiment import schema
from stillbox.experiment.resolve import resolve
from stillbox.references import Parameter
from stillbox.training.optimizer import build_schedule
from stillbox_legacy.model_garden import read_garden, resolved_text
from stillbox_legacy.model_garden.keys import EXPERIMENTS, FIELDS, PRETRAINED
from stillbox_legacy.model_garden.section import NO_EFFECT, REFUSED
from tests.helpers import read_json, refused
from tests.small import SHARED

GOLDEN = read_json(Path(__file__).parents[1] / "goldens" / "model_garden_configs.json")
COCO = "retinanet_resnetfpn_coco"
FILES = sorted((SHARED / "configs" / "model_garden").glob("*.yaml"))


def read(override: str = "", experiment: str = COCO, **more):
    """The experiment with an override."""
    return read_garden(experiment=experiment, params_override=override, **more)


def plain(value):
    """A tuple as the golden writes it."""
    return list(value) if isinstance(value, tuple) else value


def test_fields_are_those_of_the_original() -> None:
    """Every field of its config classes, with its default, and no other."""
    fields = {path: field for path, field in GOLDEN["fields"].items() if field["type"] != "section"}
    assert {path: plain(key.default) for path, key in FIELDS.items()} == {
        path: field["default"] for path, field in fields.items()
    }


@pytest.mark.parametrize("name", GOLDEN["experiments"])
def test_experiments_are_those_of_the_original(name: str) -> None:
    """All names, and what each changes."""
    assert {path: plain(value) for path, value in EXPERIMENTS[name].items()} == (
        GOLDEN["experiments"][name]
    )
    assert set(EXPERIMENTS) == set(GOLDEN["experiments"])


def test_reasons_are_about_fields() -> None:
    """No reason is left of a field that there is not."""
    assert set(NO_EFFECT) <= set(FIELDS)
    assert {label.partition("=")[0] for label in REFUSED} <= set(FIELDS)


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_published_files_read(file: Path) -> None:
    """By name alone, and the rules have no objection."""
    assert resolve(file).experiment.model.num_classes == 90


def test_what_set_may_still_change_decides_nothing() -> None:
    """An interval without records, modules without a checkpoint, annotations without records."""
    override = (
        "task.validation_data.input_path='',trainer.validation_interval=57,"
        "task.init_checkpoint='',task.init_checkpoint_modules=backbone,task.annotation_file=a.json"
    )
    given = read(override).experiment
    assert given.train.evaluate_every == 57
    assert given.train.fine_tune.min_loaded == 1.0
    assert given.data.evaluation.annotations == "a.json"


def test_the_published_file_of_mobiledet_reads(tmp_path: Path) -> None:
    """The file describes another backbone than it chooses, and its size lacks a comma."""
    file = tmp_path / "coco_mobiledetcpu_tpu.yaml"
    file.write_text(
        "task:\n  model:\n"
        "    backbone: {mobilenet: {model_id: MobileDetCPU}, type: mobiledet}\n"
        "    decoder: {type: fpn, fpn: {num_filters: 128, use_separable_conv: true}}\n"
        "    input_size: [320 320, 3]\n    max_level: 6\n"
        "    norm_activation: {activation: relu6}\n"
    )
    reading = read_garden(experiment="retinanet_mobile_coco", config_files=(file,))
    model = reading.experiment.model
    assert isinstance(model.backbone, schema.MobileDetCpu)
    assert (model.backbone.conv.activation, model.head.conv.activation) == ("hard_swish", "relu6")
    assert model.resizer.input_size == (320, 320)
    assert any("[320, 320, 3]" in warning for warning in reading.warnings)
    assert any("mobilenet.model_id" in note for note in reading.notes)


def test_layers_apply_in_order(tmp_path: Path) -> None:
    """Files one after the other, then the override; origins name the last."""
    first, second = tmp_path / "a.yaml", tmp_path / "b.yaml"
    first.write_text("task: {losses: {focal_loss_gamma: 2.0}}\ntrainer: {train_steps: 5}\n")
    second.write_text("task: {losses: {focal_loss_gamma: 2.5}}\n")
    reading = read("trainer.train_steps=7", config_files=(first, second))
    assert reading.experiment.train.steps == 7
    assert reading.experiment.model.loss.classification.gamma == 2.5
    assert "b.yaml" in reading.origins["model.loss.classification.gamma"]


def test_the_written_file_reads_back(tmp_path: Path) -> None:
    """As the original's `params.yaml`, for every experiment and with an average."""
    for name in ("retinanet_spinenet_coco", "retinanet_mobile_coco", COCO):
        reading = read("trainer.optimizer_config.ema.average_decay=0.9998", name)
        file = tmp_path / "params.yaml"
        file.write_text(resolved_text(reading.params))
        again = read_garden(experiment="retinanet", config_files=(file,), name=name)
        assert again.experiment == reading.experiment


@pytest.mark.parametrize(("override", "parts"), [
    ("task.model.head.num_conv=3", ("no key 'num_conv'", "did you mean 'num_convs'")),
    ("task.model.head.num_convs=many", ("a whole number",)),
    ("task.model.include_mask=true", ("Mask R-CNN",)),
    ("task.model.backbone.type=vit", ("vision transformers", "params_override")),
    ("task.model.backbone.type=spinenett", ("did you mean 'spinenet'",)),
    ("{task: {model: {head: {attribute_heads: [{name: depth}]}}}}", ("attribute",)),
    ("task.model.detection_generator.nms_version=tflite", ("tflite",)),
    ("task.model.decoder.fpn.fusion_type=concat", ("added",)),
    ("task.train_data.parser.aug_type.type=randaug", ("RandAugment",)),
    ("task.init_checkpoint=gs://bucket/ckpt-1", ("local",)),
    ("task.init_checkpoint_modules=[backbone, head]", ("modules = head", "backbone, decoder")),
    ("trainer.optimizer_config.optimizer.type=lars", ("lars",)),
    ("trainer.optimizer_config.optimizer.sgd.decay=0.1", ("decay",)),
    ("trainer.optimizer_config.optimizer.sgd={clipnorm: 1, global_clipnorm: 1}", ("one of",)),
    ("trainer.optimizer_config.optimizer.sgd.clipvalue=0", ("clipvalue: null",)),
    ("trainer.optimizer_config.optimizer={type: adam_experimental, adam_experimental: "
     "{clipnorm: 1, clipvalue: 1}}", ("no effect", "clipvalue: null")),
    ("trainer.optimizer_config.optimizer={type: adamw, adamw: {clipnorm: 1}}",
     ("gradient_clip_norm: 0",)),
    ("task.model.decoder={type: nasfpn, nasfpn: {num_filters: 64}}", ("256",)),
    ("task.model.backbone={type: mobilenet, mobilenet: {output_stride: 16}}", ("stride",)),
    ("task.model.backbone.type=mobiledet,task.model.decoder.type=identity", ("fpn",)),
    ("task.model.backbone.type=spinenet,task.model.max_level=6", ("max_level=7",)),
    ("trainer.optimizer_config.learning_rate.stepwise.values=[0.1]", ("boundaries",)),
    ("runtime.mixed_precision_dtype=int8", ("int8",)),
    ("task.model.num_classes=1", ("background",)),
    ("task.model.input_size=[640]", ("height",)),
])  # fmt: skip
def test_refusals(override: str, parts: tuple[str, ...]) -> None:
    """Each names the field, and what there is."""
    with pytest.raises(UserError) as caught:
        read(override)
    assert all(part in str(caught.value) for part in parts), caught.value


def test_the_bare_experiment_needs_a_model() -> None:
    """The experiment has neither classes nor an optimiser, as in the original."""
    with pytest.raises(UserError, match="num_classes"):
        read(experiment="retinanet")
    with refused(Parameter("experiment"), "retinanet_mobile_coco"):
        read(experiment="retinanet_mobil_coco")


def test_fields_without_effect_are_noted() -> None:
    """Notes give the reason, for fields of an unused section too."""
    notes = " ".join(read("task.train_data.cycle_length=8,runtime.num_gpus=2").notes)
    assert "cycle_length" in notes
    assert "num_gpus" in notes
    notes = " ".join(read("task.model.backbone.spinenet.model_id=96").notes)
    assert "backbone.type is resnet" in notes


@pytest.mark.parametrize(
    ("override", "said"),
    [
        (
            "task.model.detection_generator={nms_version: batched, pre_nms_top_k: 9}",
            "pre_nms_top_k has no effect here: nms_version is batched",
        ),
    ],
)
def test_a_field_that_another_switches_off_is_noted(override: str, said: str) -> None:
    """And not refused."""
    assert any(said in note for note in read(override).notes)


def test_soft_suppression_drops_no_box(tmp_path: Path) -> None:
    """Which the rules demand."""
    file = tmp_path / "soft.yaml"
    file.write_text(
        "task: {model: {detection_generator: {nms_version: v1, soft_nms_sigma: 0.5}}}\n"
    )
    nms = resolve(file).experiment.model.postprocessing.nms
    assert (nms.soft_sigma, nms.drop_at_threshold) == (0.5, False)


def test_weights_of_a_bucket_are_a_warning() -> None:
    """The default of one experiment cannot be fetched; an empty path is silent."""
    assert any(PRETRAINED in warning for warning in read().warnings)
    assert not any(PRETRAINED in warning for warning in read("task.init_checkpoint=''").warnings)


@pytest.mark.parametrize(
    ("modules", "scope", "heads"),
    [
        ("all", "detection", True),
        ("backbone", "classification", False),
        ("[backbone, decoder]", "detection", False),
    ],
)
def test_checkpoint_modules(modules: str, scope: str, heads: bool) -> None:
    """What is taken from a checkpoint."""
    override = f"{{task: {{init_checkpoint: /c/ckpt-1, init_checkpoint_modules: {modules}}}}}"
    fine_tune = read(override).experiment.train.fine_tune
    assert (fine_tune.checkpoint, fine_tune.scope, fine_tune.load_heads) == (
        "/c/ckpt-1",
        scope,
        heads,
    )


def rates(override: str, *steps: int) -> list[float]:
    """Learning rates of an experiment at steps."""
    prefix = "trainer.optimizer_config"
    text = override.replace("$lr", f"{prefix}.learning_rate").replace("$warm", f"{prefix}.warmup")
    schedule = build_schedule(read(text).experiment.train.optimizer.schedule)
    return [float(schedule(step)) for step in steps]


def test_stepwise_rates() -> None:
    """A boundary has the rate before it, and the warm-up is a line."""
    computed = rates("$warm.linear.warmup_steps=100", 0, 50, 100, 57 * 462, 57 * 462 + 1)
    assert computed == pytest.approx([0.0067, (0.0067 + 0.32) / 2, 0.32, 0.32, 0.032])


def test_cosine_rates() -> None:
    """The cosine begins at step 0, also under a warm-up."""
    computed = rates(
        "$lr.type=cosine,$lr.cosine.initial_learning_rate=0.1,$lr.cosine.decay_steps=100,"
        "$warm.linear.warmup_steps=20,$warm.linear.warmup_learning_rate=0.05",
        *(0, 10, 20, 50, 100, 200),
    )
    top = 0.05 * (1 + math.cos(math.pi * 0.2))
    assert computed == pytest.approx([0.05, (0.05 + top) / 2, top, 0.05, 0, 0], abs=1e-7)


def test_the_loss_weight_is_a_factor_of_everything() -> None:
    """Of both losses and of the penalty."""
    model = read("task.losses.loss_weight=2.0").experiment.model
    assert model.loss.classification_weight == 2
    assert model.loss.localization_weight == 100
    assert model.backbone.conv.regularizer == schema.L2(weight=2e-4)


def test_a_frozen_backbone_keeps_its_statistics() -> None:
    """No parameter is trained, and batch norms use their moving statistics."""
    frozen = read("task.freeze_backbone=true").experiment
    assert frozen.train.freeze == (r"^backbone\.",)
    assert not frozen.model.backbone.conv.batch_norm.train
    assert frozen.model.neck.conv.batch_norm.train
