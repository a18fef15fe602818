"""Values of the schema: from plain ones, from fields of a language, from --set; known weights."""

import dataclasses
import re
from pathlib import Path

import pytest

from stillbox.checkpoints.pretrained import ARCHIVES
from stillbox.cli.overrides import changes_of
from stillbox.errors import UserError
from stillbox.experiment import schema
from stillbox.experiment.known_weights import (
    KnownFile,
    advise_weights,
    known_weights,
    suggest_weights,
)
from stillbox.experiment.pipeline_config import read_pipeline_config
from stillbox.experiment.reading import field_mapping
from stillbox.experiment.resolve import resolve
from stillbox.experiment.schema import OneStage, ResNetV1
from stillbox.experiment.updating import apply_changes, update
from stillbox.experiment.values import (
    choices,
    differences,
    field_types,
    leaf_paths,
    node_of,
    to_plain,
)
from stillbox.references import Parameter, Setting
from tests.experiment.sample import FASTER_RCNN, read_section
from tests.helpers import refusal as user_error


def from_plain(plain):
    return update(schema.Experiment(), node_of(plain, "here"), {})


def refusal(plain):
    caught = user_error(from_plain, plain)
    assert caught.where == "here"
    return caught


def all_classes():
    """Returns every dataclass that an Experiment can hold."""
    classes, todo = set(), [schema.Experiment]
    while todo:
        cls = todo.pop()
        if cls in classes:
            continue
        classes.add(cls)
        for hint in field_types(cls).values():
            for member in choices(hint):
                inner = [part for arg in getattr(member, "__args__", ()) for part in choices(arg)]
                todo += [part for part in (member, *inner) if dataclasses.is_dataclass(part)]
    return classes


def test_plain_values_read_back_as_the_same_experiment():
    experiment = schema.Experiment(
        train=schema.Training(
            optimizer=schema.RmsProp(schedule=schema.CosineSchedule()),
            augmentations=(schema.RandomHorizontalFlip(), schema.SsdRandomCrop()),
            early_stopping=schema.EarlyStopping(),
        )
    )
    assert from_plain(to_plain(experiment)) == experiment


def test_plain_values_are_mappings_lists_and_scalars_with_the_kind_first():
    plain = to_plain(schema.Experiment())
    assert next(iter(plain["train"]["optimizer"])) == "kind"
    assert plain["model"]["pixels"]["mean"] == [127.5, 127.5, 127.5]
    assert plain["train"]["ema_decay"] is None
    assert "kind" not in plain["train"]


def test_classes_have_defaults_and_choices_differ_in_kind():
    for cls in all_classes():
        for name, hint in field_types(cls).items():
            members = [m for m in choices(hint) if dataclasses.is_dataclass(m)]
            if len(members) > 1:
                kinds = [member.kind for member in members]
                assert len(set(kinds)) == len(kinds), (cls, name)
    for cls in all_classes():
        cls()


@pytest.mark.parametrize(("plain", "message", "fix"), [
    ({"train": {"batch_size": True}}, "train.batch_size is a whole number, not True", None),
    ({"train": {"batch_size": 8.0}}, "train.batch_size is a whole number, not 8.0", None),
    ({"train": {"batch_size": "8"}}, "train.batch_size is a whole number, not '8'", None),
    ({"train": {"batch_size": None}}, "train.batch_size is a whole number, not null", None),
    ({"train": {"gradient_clip_norm": False}}, "is a number, not False", None),
    ({"train": {"gradient_clip_norm": "much"}}, "is a number, not 'much'", None),
    ({"train": {"gradient_clip_norm": float("nan")}}, "is a number, not nan", None),
    ({"train": {"gradient_clip_norm": float("inf")}}, "is a number, not inf", None),
    ({"train": {"regularization": 1}}, "is true or false, not 1", None),
    ({"train": {"precision": "bf16"}}, "is one of float32, bfloat16", "'bfloat16'?"),
    ({"model": {"backbone": {"kind": "resnet_v1", "output_stride": 12}}},
     "model.backbone.output_stride is one of 8, 16, 32, not 12", None),
    ({"model": {"backbone": {"kind": "resnet_v1", "output_stride": 16.0}}},
     "is one of 8, 16, 32, not 16.0", "'16'"),
    ({"train": {"freeze": {"a": "b"}}}, "train.freeze is a list, not a section", None),
    ({"train": {"augmentations": {}}}, "train.augmentations is a list, not a section", None),
    ({"train": {"freeze": [1]}}, "train.freeze.0 is text, not 1", "quotes"),
    ({"train": {"optimizer": 3}}, "train.optimizer is a section", "optimizer.kind="),
    ({"train": {"optimizer": "adm"}}, "train.optimizer has no kind 'adm'", "'adam'"),
    ({"train": {"optimizer": {"kind": "adm"}}}, "has no kind 'adm'", "'adam' or 'adamw'?"),
    ({"train": {"optimizer": {"kind": 3}}}, "has no kind 3", "adam"),
    ({"train": [1]}, "train is a section with named fields, not a list", "train.batch_size"),
    ({"train": {"fine_tun": {}}}, "train has no field 'fine_tun'", "'fine_tune'?"),
    ({"data": {"train": {"label_map": 7}}}, "label_map is text, not 7", "quotes"),
    ({"model": {"postprocessing": {"calibration": {"a": 1}}}},
     "model.postprocessing.calibration needs a kind", "kind: curve or class_curves"),
    ({"train": {"optimizer": {"kind": "adam", "momentum": 0.9}}},
     "train.optimizer (kind adam) has no field 'momentum'", "kind momentum or rms_prop has it"),
    ({"momentum": 1}, "no field 'momentum'", "'train.optimizer.momentum'?"),
])  # fmt: skip
def test_values_of_the_wrong_type_are_refused_with_their_path(plain, message, fix):
    error = refusal(plain)
    assert message in error.what
    assert fix is None or fix in error.fix


def test_plain_values_take_the_type_of_their_field_and_leave_others():
    plain = {"train": {"gradient_clip_norm": 10, "ema_decay": "9e-1"}}
    train = from_plain(plain).train
    assert train.gradient_clip_norm == 10.0
    assert isinstance(train.gradient_clip_norm, float)
    assert train.ema_decay == 0.9
    head = from_plain({"model": {"head": {"kernel_size": 3}}}).model.head
    assert head == schema.ConvolutionalHead(kernel_size=3)


def test_differences_name_path_old_and_new():
    before = schema.Experiment()
    after = dataclasses.replace(
        before,
        name="other",
        train=schema.Training(optimizer=schema.Adam(), augmentations=(schema.SsdRandomCrop(),)),
    )
    changes = {path: (old, new) for path, old, new in differences(before, after)}
    assert changes["name"] == ("experiment", "other")
    assert changes["train.optimizer.kind"] == ("momentum", "adam")
    assert changes["train.optimizer.momentum"] == (0.9, None)
    assert changes["train.augmentations"][0] == []
    assert list(differences(before, before)) == []


def test_differences_look_into_lists_of_sections():
    def experiment(probability):
        flip = schema.RandomHorizontalFlip(probability=probability)
        return schema.Experiment(train=schema.Training(augmentations=(flip,)))

    assert list(differences(experiment(0.5), experiment(0.25))) == [
        ("train.augmentations.0.probability", 0.5, 0.25)
    ]


def test_leaf_paths_are_the_fields_that_are_not_sections():
    paths = list(leaf_paths(schema.Experiment()))
    assert "train.optimizer.schedule.learning_rate" in paths
    assert "model.pixels.mean" in paths
    assert "train.optimizer" not in paths


def test_a_part_reads_fields_of_the_same_and_of_another_name():
    reader = field_mapping(
        schema.RandomImageScale, min_ratio="min_scale_ratio", max_ratio="max_scale_ratio"
    )
    value, log = read_section(reader, "RandomImageScale", "min_scale_ratio: 0.25")
    assert value == schema.RandomImageScale(min_ratio=0.25, max_ratio=2.0)
    assert log.origins == {"here.min_ratio": "p:1:1"}


def test_an_optional_field_keeps_the_default_of_the_schema():
    name = "max_target_pixels"
    reader = field_mapping(schema.RandomDownscaleToTargetPixels, name, name)
    value, _ = read_section(reader, "RandomDownscaleToTargetPixels", "")
    assert value == schema.RandomDownscaleToTargetPixels()
    reader = field_mapping(schema.RandomDownscaleToTargetPixels, name)
    value, _ = read_section(reader, "RandomDownscaleToTargetPixels", "")
    assert value.max_target_pixels == 500000


def test_inner_sections_have_the_path_of_their_field_and_number():
    grid = field_mapping(schema.AnchorGrid, sizes="base_sizes")
    reader = field_mapping(schema.FlexibleGridAnchors, grids=("anchor_grid", grid))
    text = "anchor_grid { } anchor_grid { base_sizes: 3 }"
    value, log = read_section(reader, "FlexibleGridAnchorGenerator", text)
    assert [grid.sizes for grid in value.grids] == [(), (3.0,)]
    assert log.origins == {"here.grids.1.sizes": "p:1:31"}


def test_fields_without_a_place_or_of_no_such_name_are_refused():
    reader = field_mapping(schema.RandomRgbToGray, "probability")
    assert read_section(reader, "RandomRGBtoGray", "probability: 0.5")[0].probability == 0.5
    with pytest.raises(UserError, match=r"p:1:1: RandomImageScale\.min_scale_ratio = 0\.25: has"):
        read_section(
            field_mapping(schema.RandomImageScale), "RandomImageScale", "min_scale_ratio: 0.25"
        )
    with pytest.raises(TypeError, match="RandomImageScale has no field 'min_ration'"):
        field_mapping(schema.RandomImageScale, min_ration="min_scale_ratio")


# ---- Weights that a configuration names and that are known ---------------------------------------


ROWS = known_weights()
SUFFIXES = {"torch": ".pth", "tfjs": ".json", "tflite": ".tflite"}


@pytest.mark.parametrize("name", ROWS)
def test_rows_are_whole(name):
    row = ROWS[name]
    assert row.about and row.publisher and row.licence and row.files
    assert row.scope in ("classification", "detection")
    assert Path(row.path).suffix == SUFFIXES.get(row.kind, Path(row.path).suffix)
    assert bool(row.measured) <= bool(row.checked)
    for file in row.files:
        assert file.address.startswith("https://") or file.package
        assert re.fullmatch(r"([0-9a-f]{8}|[0-9a-f]{64})?", file.sha256)
        # A registry's file never changes.
        assert not file.package or (file.bytes and len(file.sha256) == 64)
    names = [file.name for file in row.files]
    archived = names[0].endswith(ARCHIVES)
    assert archived or row.path in names or f"{row.path}.index" in names


@pytest.mark.parametrize("name", ROWS)
def test_the_recipes_of_a_row_take_the_weights(name):
    row = ROWS[name]
    for recipe in row.recipes:
        experiment = resolve(recipe, row.changes()).experiment
        assert row.fits(experiment.model), recipe
        assert experiment.train.fine_tune.checkpoint == name
        assert experiment.train.fine_tune.scope == row.scope


@pytest.mark.parametrize(
    ("recipe", "scope", "first"),
    [
        ("ssd_mobilenet_v1_300x300", "detection", "ssd_mobilenet_v1_coco"),
        ("ssd_mobilenet_v1_300x300", "classification", "mobilenet_v1_1.0_224"),
        ("ssd_mobilenet_v1_fpn_640x640", "detection", "ssd_mobilenet_v1_fpn_coco"),
        ("ssd_mobilenet_v1_ppn_300x300", "detection", "ssd_mobilenet_v1_ppn_coco"),
        ("ssd_resnet50_v1_fpn_640x640", "detection", "ssd_resnet50_v1_fpn_coco"),
        ("faster_rcnn_resnet101_coco", "detection", "faster_rcnn_resnet101_coco"),
        ("faster_rcnn_resnet50_v1_640x640", "detection", "faster_rcnn_resnet50_v1_640x640_coco17"),
        ("faster_rcnn_inception_v2_coco", "detection", "faster_rcnn_inception_v2_coco"),
        ("ssd_resnet34", "classification", "resnet34_tpu"),
        ("retinanet", "classification", "resnet50_tpu"),
    ],
)
def test_a_model_gets_the_weights_that_fit_it(recipe, scope, first):
    model = resolve(recipe).experiment.model
    assert suggest_weights("PATH_TO_BE_CONFIGURED/model.ckpt", model, scope)[0].name == first


@pytest.mark.parametrize("kind", ["resnet50", "resnet101", "inception_v2"])
def test_a_faster_rcnn_of_the_first_generation_gets_its_own_weights(kind):
    text = FASTER_RCNN.replace("faster_rcnn_resnet50", f"faster_rcnn_{kind}")
    model = read_pipeline_config(text, "p").experiment.model
    names = [row.name for row in suggest_weights("model.ckpt", model, "detection")]
    assert names == [f"faster_rcnn_{kind}_coco"]


def test_suggestions_come_from_the_name_the_model_or_neither():
    model = resolve("ssd_resnet34").experiment.model
    rows = suggest_weights("x/torchvision_resnet34", model, "classification")
    assert [row.name for row in rows] == ["torchvision_resnet34", "resnet34_tpu"]
    text = "weights/ssd_mobilenet_v1_coco_2018_01_28/model.ckpt"
    assert [row.name for row in suggest_weights(text, None)] == ["ssd_mobilenet_v1_coco"]
    assert suggest_weights("photos/holiday", None) == ()
    assert advise_weights("photos/holiday", None) == ""
    assert suggest_weights("model.ckpt", OneStage(backbone=ResNetV1(depth=101))) == ()


def test_advice_has_the_command_the_address_and_the_overrides():
    text = advise_weights("model.ckpt", resolve("ssd_resnet34").experiment.model, "classification")
    assert "`stillbox weights get torchvision_resnet34`" in text
    assert "https://download.pytorch.org/models/resnet34-b627a593.pth" in text
    assert "model.backbone.pool_padding=symmetric" in text


@pytest.mark.parametrize(
    ("address", "command", "name"),
    [
        ("pkg:npm/handtrackjs@0.1.5", "npm pack handtrackjs@0.1.5", "handtrackjs-0.1.5.tgz"),
        ("pkg:npm/@scope/net@1.0", "npm pack @scope/net@1.0", "scope-net-1.0.tgz"),
        ("pkg:pypi/net@1.0?file_name=net-1.0-py3-none-any.whl", "pip download --no-deps net==1.0",
         "net-1.0-py3-none-any.whl"),
    ],
)  # fmt: skip
def test_a_package_has_a_command_and_a_file(address, command, name):
    file = KnownFile(address=address)
    assert (file.package.command, file.name) == (command, name)
    assert file.describe() == f"`{command}` (size unknown, sha256 unknown)"


START = schema.Experiment(
    train=schema.Training(
        augmentations=(schema.RandomHorizontalFlip(), schema.SsdRandomCrop()),
        optimizer=schema.Momentum(schedule=schema.CosineSchedule(total_steps=20000)),
    )
)


def overridden(*overrides):
    return apply_changes(START, changes_of(overrides), {})


def override_refusal(override):
    caught = user_error(overridden, override)
    assert caught.about == (
        Setting.parse(override) if "=" in override else Parameter("set", override)
    )
    return caught


def test_values_take_the_type_of_their_field():
    experiment = overridden(
        "train.batch_size=8",
        "train.gradient_clip_norm=1e-4",
        "train.regularization=false",
        "train.precision=bfloat16",
        "train.ema_decay=0.5",
        "data.train.label_map=2024",
        "name=C:\\runs: first",
    )
    assert experiment.train.batch_size == 8
    assert experiment.train.gradient_clip_norm == 1e-4
    assert experiment.train.regularization is False
    assert experiment.train.precision == "bfloat16"
    assert experiment.train.ema_decay == 0.5
    assert experiment.data.train.label_map == "2024"
    assert experiment.name == "C:\\runs: first"


def test_lists_are_yaml_lists_or_one_bare_value():
    experiment = overridden(
        "data.train.paths=a-?????-of-00010.record",
        "data.evaluation.paths=[b.record, c.record]",
        "model.pixels.std=[1, 2.5, 3]",
        "train.freeze=[]",
    )
    assert experiment.data.train.paths == ("a-?????-of-00010.record",)
    assert experiment.data.evaluation.paths == ("b.record", "c.record")
    assert experiment.model.pixels.std == (1.0, 2.5, 3.0)
    assert experiment.train.freeze == ()


def test_kinds_have_their_defaults_or_keep_what_was_set():
    experiment = overridden("model.similarity=ioa", "train.augmentations=[random_horizontal_flip]")
    assert experiment.model.similarity == schema.IoaSimilarity()
    assert experiment.train.augmentations == (schema.RandomHorizontalFlip(),)
    # The kind that is there already keeps its values.
    assert overridden("train.optimizer=momentum").train.optimizer == START.train.optimizer
    experiment = overridden("train.optimizer.kind=adam")
    assert experiment.train.optimizer == schema.Adam()
    experiment = overridden("train.optimizer.kind=adam", "train.optimizer.epsilon=1")
    assert experiment.train.optimizer == schema.Adam(epsilon=1.0)
    assert overridden("train.optimizer.kind=momentum") == START


def test_optional_sections_are_switched_on_and_off():
    experiment = overridden("train.early_stopping={patience: 3}")
    assert experiment.train.early_stopping == schema.EarlyStopping(patience=3)
    experiment = overridden("train.early_stopping={}", "train.early_stopping=null")
    assert experiment.train.early_stopping is None
    experiment = overridden("model.loss.hard_example_miner.iou_threshold=0.99")
    assert experiment.model.loss.hard_example_miner == schema.HardExampleMiner(iou_threshold=0.99)


def test_elements_of_a_list_are_addressed_by_number():
    experiment = overridden(
        "train.augmentations.0.probability=0.3", "train.augmentations.1.operations.2.random_coef=0"
    )
    flip, crop = experiment.train.augmentations
    assert flip == schema.RandomHorizontalFlip(probability=0.3)
    assert [operation.random_coef for operation in crop.operations] == [
        0.15,
        0.15,
        0.0,
        *[0.15] * 4,
    ]
    assert overridden("model.pixels.mean.1=3").model.pixels.mean == (127.5, 3.0, 127.5)


def test_a_later_override_wins_and_a_text_can_be_emptied():
    assert overridden("train.steps=1", "train.steps=2").train.steps == 2
    assert overridden("data.train.label_map=x", "data.train.label_map=").data.train.label_map == ""


def test_origins_follow_what_is_set():
    origins = {
        "train.optimizer.momentum": "p.config:5:1",
        "train.optimizer.schedule.total_steps": "p.config:6:1",
        "train.augmentations.0.probability": "p.config:7:1",
        "train.steps": "p.config:8:1",
    }
    overrides = ["train.optimizer.kind=adam", "train.steps=3", "train.augmentations=[]"]
    apply_changes(START, changes_of(overrides), origins)
    assert origins == {
        path: str(Setting(path, value))
        for path, value in {
            "train.optimizer.kind": "adam",
            "train.steps": 3,
            "train.augmentations": [],
        }.items()
    }


@pytest.mark.parametrize(
    ("override", "message", "fix"),
    [
        ("train.batchsize=8", "train has no field 'batchsize'", "did you mean 'batch_size'?"),
        ("trian.steps=8", "the experiment has no field 'trian'", "did you mean 'train'?"),
        ("batch_size=8", "no field 'batch_size'", "'train.batch_size' or 'evaluation.batch_size'"),
        ("train.steps=many", "train.steps is a whole number, not 'many'", None),
        ("train.steps=1.5", "train.steps is a whole number, not 1.5", None),
        ("train.steps=true", "train.steps is a whole number, not True", None),
        ("train.steps=", "train.steps is a whole number, not null", None),
        ("train.regularization=1", "is true or false, not 1", None),
        ("train.steps.x=1", "train.steps is a whole number, not a section", None),
        ("train.optimizer.schedule.gamma=1", "(kind cosine) has no field 'gamma'", "valid here"),
        ("train.augmentations.2.probability=1", "has no element 2", "it has 2, counted from 0"),
        pytest.param(
            *(f"train.augmentations.{'9' * 5000}.probability=1", "has no element 99", "it has 2"),
            id="an element with a number of 5000 digits",
        ),
        ("train.augmentations=[{kind: flip}]", "has no kind 'flip'", "random_horizontal_flip"),
        ("data.train.paths=[a-?????-of-00010]", "not YAML", "in quotes"),
        ("train.steps", "a path, an equals sign and a value", "train.batch_size=8"),
        ("=5", "a path, an equals sign and a value", None),
        ("train..steps=5", "a path, an equals sign and a value", None),
        ("train=!!python/name:os.system", "train is a section", None),
    ],
)
def test_what_does_not_fit_is_refused_with_the_option_and_the_remedy(override, message, fix):
    error = override_refusal(override)
    assert message in error.what
    assert fix is None or fix in error.fix


@pytest.mark.parametrize("text", ["", " ", "''", '""', "[]"])
def test_a_list_without_letters_has_no_elements(text):
    changed = apply_changes(schema.Experiment(), changes_of([f"data.evaluation.paths={text}"]), {})
    assert changed.data.evaluation.paths == ()
