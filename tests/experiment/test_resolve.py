"""All refusals of a config at once: each as if it were alone, and none that is not."""

import dataclasses
import random
from dataclasses import replace

import pytest

from stillbox.cli.overrides import changes_of
from stillbox.errors import UserError
from stillbox.experiment import rules, schema
from stillbox.experiment.pipeline_config import read_pipeline_config
from stillbox.experiment.recipes import recipe_names, recipe_path
from stillbox.experiment.refusals import find_refusals
from stillbox.experiment.resolve import read_config, resolve
from stillbox.experiment.rules import check_trainable
from stillbox.experiment.run_length import (
    batch_norms,
    replicas_as_groups,
    resolve_schedule,
    with_batch,
    with_steps,
)
from stillbox.experiment.schema import BatchNorm, ConvHyperparams, Fpn, OneStage
from stillbox.experiment.yaml_config import from_yaml, to_yaml
from stillbox.references import Setting, worded
from tests.experiment.fuzzing import corpus, mutate
from tests.experiment.sample import SAMPLE
from tests.helpers import refusal, refused
from tests.small import SHARED, needs_shared

RECIPE = "ssd_mobilenet_v1_300x300"


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_a_pipeline_config_resolves_with_overrides_and_origins(folder):
    (folder / "squirrels.config").write_text(SAMPLE)
    resolved = resolve("squirrels.config", changes_of(["train.steps=7"]))
    assert resolved.experiment.name == "squirrels"
    assert resolved.experiment.train.steps == 7
    assert resolved.origins["train.steps"] == str(Setting("train.steps", 7))
    assert resolved.origins["model.num_classes"] == "squirrels.config:4:5"
    assert resolved.source == "squirrels.config"
    assert resolved.warnings == ()
    assert any("sync_replicas has no effect here" in note for note in resolved.notes)


def test_what_is_printed_is_itself_a_config(folder):
    (folder / "squirrels.config").write_text(SAMPLE)
    first = resolve("squirrels.config", changes_of(["train.steps=7"]))
    (folder / "printed.yaml").write_text(to_yaml(first.experiment, first.origins))
    assert resolve("printed.yaml").experiment == first.experiment


def test_files_are_recognised_by_content_and_named_after_themselves(folder):
    (folder / "pipeline").write_text(SAMPLE)
    (folder / "mine").write_text("model:\n  num_classes: 5\n")
    assert resolve("./pipeline").experiment.model.num_classes == 3
    assert resolve("./mine").experiment.model.num_classes == 5
    (folder / "a.config").write_text(SAMPLE, encoding="utf-8-sig")
    (folder / "a.yaml").write_text("name: b\n", encoding="utf-8-sig")
    assert resolve("a.config").experiment.model.num_classes == 3
    assert resolve("a.yaml").experiment.name == "b"
    (folder / "owls.yml").write_text("train: {steps: 3}\n")
    assert resolve("owls.yml").experiment.name == "owls"


def test_an_override_can_mend_what_the_file_gets_wrong(folder):
    (folder / "owls.yaml").write_text("model: {num_classes: 0}\n")
    with pytest.raises(UserError, match=r"^owls\.yaml:1:9: model.num_classes is 0"):
        resolve("owls.yaml")
    assert (
        resolve("owls.yaml", changes_of(["model.num_classes=1"])).experiment.model.num_classes == 1
    )


def test_recipes_are_found_by_name(folder):
    assert resolve(RECIPE).source == str(recipe_path(RECIPE))
    # A model directory of that name does not hide the recipe; a file does.
    (folder / RECIPE).mkdir()
    assert resolve(RECIPE).experiment.model.num_classes == 90


def test_what_cannot_be_found_leads_to_what_can(folder):
    (folder / "owls.yaml").write_text("")
    with refused(None, RECIPE):
        resolve("ssd_mobilenet_v1_300")
    with refused(None, "olws.yaml", "owls.yaml"):
        resolve("olws.yaml")
    with pytest.raises(UserError, match="there is no file"):
        resolve("nowhere/at/all.config")
    with pytest.raises(UserError, match=rf"is a folder\n  fix: give a config file.*{RECIPE}"):
        resolve(folder)


def test_a_file_that_is_no_text_is_refused(folder):
    (folder / "image.config").write_bytes(b"\xff\xd8\xff\xe0")
    with refused("image.config:1:1", "0xff", "UTF-8"):
        resolve("image.config")


@pytest.mark.parametrize("name", recipe_names())
def test_every_recipe_resolves_without_a_warning_and_has_a_header(name):
    resolved = resolve(name)
    assert resolved.experiment.name == name
    assert resolved.warnings == ()
    assert "Expected" in recipe_path(name).read_text(encoding="utf-8").partition("\nname:")[0]


def test_the_coco_recipe_requires_its_paths():
    resolved = resolve(RECIPE)
    with refused("data.train.paths"):
        check_trainable(resolved.experiment, resolved.origins)


@needs_shared
@pytest.mark.proof
def test_the_coco_recipe_is_the_original_apart_from_its_paths():
    original = resolve(
        SHARED / "configs" / "pipeline" / "ssd_mobilenet_v1_300x300_coco14_sync.config"
    ).experiment
    recipe = resolve(RECIPE).experiment
    data = dataclasses.replace(
        original.data,
        train=dataclasses.replace(original.data.train, paths=(), label_map=""),
        evaluation=dataclasses.replace(original.data.evaluation, paths=(), label_map=""),
    )
    fine_tune = schema.FineTune(scope="classification")
    assert recipe == dataclasses.replace(
        original,
        name=RECIPE,
        data=data,
        train=dataclasses.replace(original.train, fine_tune=fine_tune),
    )


def test_a_missing_folder_is_named(tmp_path):
    (tmp_path / "configs").mkdir()
    (tmp_path / "text").write_text("")
    for path, message in (
        ("config/owls.yaml", r"there is no folder \S+/config\n.*'configs'"),
        ("a/b/c/owls.yaml", r"there is no folder \S+/a\n"),
        ("text/owls.yaml", r"\S+/text is not a folder"),
        ("configs/owls.yaml", r"no config is in \S+/configs"),
    ):
        with pytest.raises(UserError, match=message) as caught:
            resolve(tmp_path / path)
        assert "nothing" not in str(caught.value)


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("apiVersion: batch/v1\nkind: Job\nspec: {}", "a manifest of Kubernetes"),
        ("train: images/train\nval: images/val\nnames: [owl]", "data.yaml of Ultralytics"),
        ("nc: 80\nbackbone: []\nhead: []", "a model of Ultralytics"),
        ("task: detect\nmode: train\nmodel: yolov8n.pt\ndata: coco.yaml", "a run of Ultralytics"),
        ('{"architectures": ["DetrForObjectDetection"], "model_type": "detr"}', "Hugging Face"),
        ("MODEL: {}\nSOLVER: {}", "Detectron2"),
        ("num_classes: 4\nmoving_average_decay: 0\n", "AutoML's EfficientDet"),
        ("num_classes: 4\nimage_size: 512x384\n", "AutoML's EfficientDet"),
        ("label_map: {1: owl}\nnum_classes: 2\n", "AutoML's EfficientDet"),
        ("{fpn_cell_repeats: 3, map_freq: 5}", "AutoML's EfficientDet"),
        ("_BASE_: ../base.yaml", "Detectron2"),
        ("services: {web: {image: x}}", "Docker Compose"),
        ("name: env\nchannels: [defaults]\ndependencies: [numpy]", "conda"),
        ('{"images": [], "annotations": [], "categories": []}', "annotations of COCO"),
    ],
)
def test_files_of_other_programs_are_refused_by_their_names(tmp_path, text, sentence):
    path = tmp_path / "config.yaml"
    path.write_text(text)
    with refused("config.yaml:1:1", sentence):
        resolve(path)


def test_a_python_config_is_refused_by_its_name(tmp_path):
    (tmp_path / "retinanet.py").write_text("model = dict(type='RetinaNet')\n")
    with refused("retinanet.py", "MMDetection"):
        resolve(tmp_path / "retinanet.py")


# Each of them is refused on its own, in another part of the file.
PIPELINE_FAULTS = (
    ("num_classes: 3", "num_clases: 3"),
    ("width: 192", "width: '192'"),
    ("RELU_6", "RELU6"),
    ("  num_steps: 400", "  num_steps: 400 use_multiclass_scores: true"),
    ('"val.record"', '"val.record" } load_instance_masks: true external_input_reader { '),
)
YAML = """recipe: ssd_mobilenet_v1_300x300
model:
  num_classes: 3
  neck: {kind: ssd_layers, depthwise: false}
  loss: {classification_weight: 1.0}
train:
  batch_size: 8
  augmentations:
  - {kind: random_horizontal_flip, probability: 0.5}
  - {kind: ssd_random_crop}
"""
YAML_FAULTS = (
    ("num_classes: 3", "num_classes: three"),
    ("kind: ssd_layers", "kind: ssd_layer"),
    ("classification_weight", "clasification_weight"),
    ("batch_size: 8", "batch_size: true"),
    ("probability: 0.5", "probability: often"),
    ("ssd_random_crop", "ssd_random_cropp"),
)
DICTIONARY = """type: retinanet
architecture: {backbone: resnet, num_classes: 91}
train:
  total_steps: 4
  train_batch_size: 64
  optimizer: {type: momentum}
eval: {type: box}
"""
DICTIONARY_FAULTS = (
    ("backbone: resnet", "backbone: resnett"),
    ("num_classes: 91", "num_classes: 1"),
    ("total_steps", "total_stepps"),
    ("64", "many"),
    ("momentum", "sgdd"),
    ("box", "mask"),
)
CASES = {
    "pipeline.config": (SAMPLE, PIPELINE_FAULTS),
    "experiment.yaml": (YAML, YAML_FAULTS),
    "dictionary.yaml": (DICTIONARY, DICTIONARY_FAULTS),
}


def said(error):
    return error.where, error.what.partition("\n")[0]


@pytest.mark.parametrize("name", CASES)
def test_every_refusal_is_found_with_its_place_and_nothing_else(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    text, faults = CASES[name]
    path = tmp_path / name
    path.write_text(text)
    assert find_refusals(path).errors == ()
    whole = text
    alone = []
    for sound, wrong in faults:
        assert whole.count(sound) >= 1, sound
        path.write_text(text.replace(sound, wrong, 1))
        caught = refusal(resolve, path)
        alone.append(caught.what.partition("\n")[0])
        whole = whole.replace(sound, wrong, 1)
    path.write_text(whole)
    refusals = find_refusals(path)
    assert {
        sentence for sentence in alone if sentence not in {said(e)[1] for e in refusals.errors}
    } == set()
    # The last fault of the pipeline.config is two.
    assert len(refusals.errors) <= len(faults) + (name == "pipeline.config")
    assert refusals.read is not None


def test_what_is_refused_of_overrides_stands_beside_the_rest(tmp_path):
    path = tmp_path / "e.yaml"
    path.write_text(YAML.replace("batch_size: 8", "batch_size: true"))
    refusals = find_refusals(
        path, changes_of(["model.heigt=3", "train.log_every=7", "train.steps=x"])
    )
    assert [worded(error.where) for error in refusals.errors] == [
        f"{path}:7:3",
        "model.heigt=3",
        "train.steps=x",
    ]
    assert refusals.read.experiment.train.log_every == 7
    assert refusals.touched == {"train", "model"}


def test_a_refused_detector_does_not_hide_what_else_is_refused(tmp_path):
    path = tmp_path / "p.config"
    path.write_text(
        "model { center_net { num_classes: 3 } }\ntrain_config { use_multiclass_scores: true\n"
        "optimizer { sgd { } } }\neval_config { eval_instance_masks: true }"
    )
    errors = find_refusals(path).errors
    assert sorted(error.where.removeprefix(f"{path}:") for error in errors) == [
        "1:9", "2:16", "3:13", "4:15"
    ]  # fmt: skip
    path.write_text("train_config { batch_size: 'x' }")
    assert [error.what for error in find_refusals(path).errors] == [
        "batch_size: 'x' is not an uint32",
        "there is no model in this file",
    ]


def test_what_cannot_be_parsed_is_one_refusal(tmp_path):
    path = tmp_path / "e.yaml"
    for text in ("train: [", "5", "- 1", "just words"):
        path.write_text(text)
        assert len(find_refusals(path).errors) == 1
    (error,) = find_refusals(tmp_path / "nowhere.yaml").errors
    assert "there is no file" in error.what


def test_damaged_files_end_in_refusals_and_agree_with_resolve(tmp_path):
    rng, texts = random.Random(1), corpus()[:6]
    for number in range(60):
        suffix, text = rng.choice(texts)
        path = tmp_path / f"{number}{suffix}"
        path.write_bytes(mutate(text, rng))
        errors = find_refusals(path).errors
        try:
            resolve(path)
        except UserError as error:
            # Rules are not the readers'.
            assert not errors or said(errors[0]) == said(error)
        else:
            assert errors == ()


# ---- Schedules that follow the run, and runs of another length or batch --------------------------


PATH = "train.optimizer.schedule"


def experiment(schedule, steps=1000, batch_size=32):
    optimizer = schema.Momentum(schedule=schedule)
    train = schema.Training(steps=steps, batch_size=batch_size, optimizer=optimizer)
    return schema.Experiment(train=train)


def settled(schedule, steps=1000):
    changed, warnings = resolve_schedule(experiment(schedule, steps))
    cosine = changed.train.optimizer.schedule
    return cosine.total_steps, cosine.warmup_steps, warnings


def test_an_open_cosine_ends_with_training_and_one_with_an_end_does_not():
    assert settled(schema.CosineSchedule()) == (1000, 50, ())
    assert settled(schema.CosineSchedule(warmup_steps=300)) == (1000, 300, ())
    assert settled(schema.CosineSchedule(), steps=1) == (1, 0, ())
    fixed = schema.CosineSchedule(total_steps=400, warmup_steps=900)
    assert settled(fixed) == (400, 900, ())
    assert settled(schema.CosineSchedule(total_steps=400)) == (400, 20, ())


def test_a_warm_up_gives_way_to_a_short_run_and_a_warning_says_so():
    total, warmup, (warning,) = settled(schema.CosineSchedule(warmup_steps=300), steps=200)
    assert (total, warmup) == (200, 10)
    assert warning == (
        f"{PATH}.warmup_steps: a warm-up of 300 steps does not fit into a run of 200: it takes 10"
    )


def test_a_run_without_an_end_leaves_the_cosine_open_and_cannot_be_trained():
    open_, _ = resolve_schedule(experiment(schema.CosineSchedule(), steps=0))
    assert open_.train.optimizer.schedule.total_steps is None
    (broken,) = (finding for finding in rules.find_missing(open_) if finding.path.startswith(PATH))
    assert "training has no end" in broken.what


def test_the_steps_of_a_recipe_move_the_end_of_its_cosine():
    moved = resolve(
        "demo_scenes", changes_of(["train.steps=400"])
    ).experiment.train.optimizer.schedule
    assert (moved.total_steps, moved.warmup_steps) == (400, 50)
    fixed = resolve(
        "demo_scenes", changes_of(["train.steps=400", f"{PATH}.total_steps=850"])
    ).experiment
    assert fixed.train.optimizer.schedule.total_steps == 850


@pytest.mark.parametrize("name", recipe_names())
def test_schedules_of_recipes_are_settled_and_read_back_alike(name):
    schedule = resolve(name).experiment.train.optimizer.schedule
    assert getattr(schedule, "total_steps", 0) is not None
    assert resolve_schedule(resolve(name).experiment) == (resolve(name).experiment, ())


def test_a_dialect_keeps_its_own_numbers():
    text = "train: {steps: 100, optimizer: {kind: adam, schedule: {kind: cosine}}}"
    assert from_yaml(text).train.optimizer.schedule.total_steps is None
    before, after = SAMPLE.split("exponential_decay_learning_rate {", 1)
    config = before + "cosine_decay_learning_rate { }" + after.partition("}")[2]
    read = read_pipeline_config(config, "p.config", name="p").experiment.train.optimizer.schedule
    assert (read.total_steps, read.warmup_steps) == (4_000_000, 10_000)


def test_another_length_stretches_every_part_of_a_schedule():
    long = read_config("retinanet").experiment
    short = with_steps(long, 2250)
    steps = [at.step for at in short.train.optimizer.schedule.schedule]
    assert (short.train.steps, steps) == (2250, [50, 1500, 2000])
    rates = [at.learning_rate for at in short.train.optimizer.schedule.schedule]
    assert rates == [at.learning_rate for at in long.train.optimizer.schedule.schedule]
    decay = schema.ExponentialSchedule(decay_steps=500, burnin_steps=0)
    stretched = with_steps(experiment(decay), 100).train.optimizer.schedule
    assert (stretched.decay_steps, stretched.burnin_steps) == (50, 0)


def test_a_constant_schedule_and_its_warm_up_are_those_of_every_length():
    constant = schema.ConstantSchedule(warmup_steps=50)
    for steps in (20, 100_000):
        assert with_steps(experiment(constant), steps).train.optimizer.schedule == constant


def test_another_length_stretches_the_last_steps_without_an_augmentation():
    some = schema.RandomHorizontalFlip(), schema.Mosaic(skip_last_steps=30), schema.MixUp()
    train = schema.Training(steps=200, augmentations=some)
    short = with_steps(schema.Experiment(train=train), 50).train.augmentations
    assert short == (some[0], schema.Mosaic(skip_last_steps=8), some[2])
    open_ended = schema.Experiment(train=schema.Training(augmentations=some))
    assert with_steps(open_ended, 50).train.augmentations == some


def test_another_length_stretches_the_steps_before_rounding():
    train = schema.Training(steps=200, quantization=schema.Quantization(delay=100))
    short = with_steps(schema.Experiment(train=train), 50).train.quantization
    assert short == schema.Quantization(delay=25)


def test_boundaries_stay_apart_in_the_shortest_run():
    short = with_steps(read_config("retinanet").experiment, 2)
    assert [at.step for at in short.train.optimizer.schedule.schedule] == [1, 2, 3]
    rules.check(short, {})


def test_another_batch_has_rates_in_proportion():
    half = with_batch(read_config("retinanet").experiment, 32).train
    assert half.batch_size == 32
    assert half.optimizer.schedule.learning_rate == pytest.approx(0.00335)
    assert [at.learning_rate for at in half.optimizer.schedule.schedule] == pytest.approx(
        [0.04, 0.004, 0.0004]
    )


MINE, OURS = BatchNorm(statistics="per_replica", decay=0.5), BatchNorm(decay=0.7)
MODEL = OneStage(neck=Fpn(conv=ConvHyperparams(batch_norm=MINE)))


@pytest.mark.parametrize(
    ("replicas", "meaning"),
    [
        (4, BatchNorm(statistics="groups", group_size=8, decay=0.5)),
        (32, BatchNorm(statistics="groups", group_size=1, decay=0.5)),
        (1, BatchNorm(decay=0.5)),
    ],
)
def test_a_replica_is_so_many_images_and_a_single_one_is_the_batch(replicas, meaning):
    changed = replicas_as_groups(MODEL, 32, replicas)
    assert changed.neck.conv.batch_norm == meaning
    assert replace(changed, neck=MODEL.neck) == MODEL


def test_batch_norms_are_found_with_their_paths_and_others_stay_as_they_are():
    norms = dict(batch_norms(MODEL))
    assert norms["model.neck.conv.batch_norm"] == MINE
    assert norms["model.backbone.conv.batch_norm"] == MODEL.backbone.conv.batch_norm
    model = replace(MODEL, neck=Fpn(conv=ConvHyperparams(batch_norm=OURS)))
    assert replicas_as_groups(model, 32, 8) is model


@pytest.mark.parametrize(
    ("override", "gone"),
    [
        ("model.head.dropout=false", "use_dropout is not set"),
        ("model.head.dropout=true", "use_dropout is not set"),
        ("data.evaluation.shuffle=true", "shuffle has no effect on evaluation"),
        ("data.evaluation={paths: [a.record]}", "shuffle has no effect on evaluation"),
    ],
)
def test_a_note_about_a_field_that_is_set_is_left_out(tmp_path, override, gone):
    text = SAMPLE.replace("use_dropout: true", "")
    train, reader, evaluation = text.partition("eval_input_reader {")
    text = train + reader + evaluation.replace("shuffle: false", "shuffle: true", 1)
    (tmp_path / "x.config").write_text(text)
    before = read_config(tmp_path / "x.config").notes
    after = read_config(tmp_path / "x.config", changes_of([override])).notes
    assert sum(gone in note for note in before) == 1
    assert {*before} - {*after} == {note for note in before if gone in note}
    assert {*after} <= {*before}
