"""From a folder to an experiment: what is picked, what is said, and what wins."""

import shutil
from pathlib import Path

import cv2
import numpy as np
import pytest

from stillbox.checking import fitting, planning, planning_weights
from stillbox.checking.candidates import NANO, SMALL, SSD
from stillbox.checking.dataset_stats import read_dataset_stats
from stillbox.checking.fitting import choose_batch, choose_epochs
from stillbox.checking.memory_verdict import Machine
from stillbox.checking.planning import plan_resumed, plan_run
from stillbox.checking.planning_records import refuse_other_source, write_source
from stillbox.checking.planning_weights import (
    first_weights,
    gentle_rates,
    network_of_model,
    recipes_for_weights,
    refuse_other_model,
)
from stillbox.checkpoints.model_directory import ModelDirectory
from stillbox.cli.overrides import changes_of
from stillbox.errors import UserError
from stillbox.experiment import rules
from stillbox.experiment.known_weights import known_weights
from stillbox.experiment.resolve import read_config
from stillbox.experiment.rules.missing import CHECKPOINT
from stillbox.experiment.schema import CopyPaste, Records
from stillbox.experiment.yaml_config import to_yaml
from stillbox.inputs.tiles import ImageTiles
from stillbox.models.build import abstract_detector
from stillbox.records.label_map import LabelMap
from stillbox.records.source import ExampleSource
from stillbox.records.tf_example import serialize_example
from stillbox.references import worded
from tests.checking.box_statistics import stats
from tests.helpers import refused
from tests.records.builders import make_example, write_records
from tests.small import SMALL as SMALL_MODEL
from tests.small import small_experiment

GIB = 2**30
CPU = Machine("a CPU", "cpu", 24 * GIB, 24 * GIB)
GPU = Machine("a GPU", "gpu", 100 * GIB, 100 * GIB)


FREE = "train.fine_tune.checkpoint="


@pytest.mark.parametrize(
    ("weights", "picked"),
    [
        ("nanodet_g_416_coco", NANO),
        ("efficientnet_lite0", SMALL),
        ("mobilenet_v2_1.0_coco_tfjs", SMALL),
        ("ssdlite_mobilenet_v2_coco_tfjs", "ssdlite_mobilenet_v2_coco"),
        ("faster_rcnn_resnet101_coco", "faster_rcnn_resnet101_coco"),
        ("torchvision_resnet34", "ssd_resnet34"),
    ],
)
def test_the_recipe_is_one_that_takes_the_weights(weights, picked):
    assert recipes_for_weights({"train.steps": 3, CHECKPOINT: weights}, print)[0] == picked


@pytest.mark.parametrize("weights", [{}, {CHECKPOINT: ""}])
def test_without_weights_every_recipe_is_possible(weights):
    assert recipes_for_weights(weights, print) is None


def test_weights_that_no_recipe_takes_are_refused_with_what_does():
    with refused("train.fine_tune.checkpoint", "ssd_inception_v2_coco") as error:
        recipes_for_weights({CHECKPOINT: "ssd_inception_v2_coco"}, print)
    assert "pipeline.config" in str(error.value)


def test_a_recipe_that_does_not_take_known_weights_is_refused_with_what_does(monkeypatch):
    monkeypatch.setattr(planning_weights, "find_weights", Path)
    monkeypatch.setattr(planning_weights, "_loaded_share", lambda experiment, path: 0.0)
    name = {CHECKPOINT: "nanodet_g_416_coco"}
    with refused(CHECKPOINT, SMALL, NANO):
        refuse_other_model(read_config(SMALL).experiment, name)
    refuse_other_model(read_config(NANO).experiment, name)
    # Weights with a backbone of their own bring it.
    brought = {CHECKPOINT: "mobilenet_v2_1.0_coco_tfjs"}
    refuse_other_model(read_config(SMALL).experiment, brought)


def test_a_detector_that_knows_all_classes_is_trained_at_a_tenth_of_the_rate():
    experiment, weights = read_config(NANO).experiment, {CHECKPOINT: "nanodet_g_416_coco"}
    names = [item.name for item in LabelMap.from_file("coco").items]
    changes = gentle_rates(experiment, weights, names, print)
    rate = experiment.train.optimizer.schedule.learning_rate
    assert changes["train.optimizer.schedule.learning_rate"] == pytest.approx(rate / 10)
    assert not gentle_rates(experiment, weights, names[:79], print)
    assert not gentle_rates(experiment, weights, [*names[1:], names[0]], print)
    assert not gentle_rates(experiment, {CHECKPOINT: "efficientnet_lite0"}, names, print)
    assert not gentle_rates(read_config(SSD).experiment, weights, names, print)


@pytest.mark.parametrize("recipe", [SMALL, SSD])
def test_the_recipe_of_a_file_is_found_by_its_arrays(recipe, tmp_path):
    path = tmp_path / "weights.npz"
    experiment = read_config(recipe, {"model.num_classes": 3}).experiment
    _, params, stats = abstract_detector(experiment.model, "float32")
    backbone = {name: a for name, a in (params | stats).items() if name.startswith("backbone")}
    np.savez(path, **{name: np.zeros(a.shape, np.float32) for name, a in backbone.items()})
    assert recipes_for_weights({CHECKPOINT: str(path)}, print) == (recipe,)


def test_a_file_that_no_recipe_takes_is_refused(tmp_path):
    np.savez(tmp_path / "weights.npz", **{"backbone.strange.kernel": np.zeros((3, 3, 3, 8))})
    with refused("weights.npz", "no recipe takes these weights"):
        recipes_for_weights({CHECKPOINT: str(tmp_path / "weights.npz")}, print)


def test_a_trained_model_is_gone_on_with_as_it_is(trained):
    overrides = {CHECKPOINT: str(trained)}
    recipe, changes = network_of_model(overrides)
    stored = ModelDirectory.open(trained).read_experiment()
    assert recipe == stored.name
    model = read_config(recipe, changes | {"model.num_classes": 3}).experiment.model
    assert (model.resizer, model.backbone) == (stored.model.resizer, stored.model.backbone)
    assert network_of_model({CHECKPOINT: "efficientnet_lite0"}) is None


@pytest.mark.parametrize(
    ("there", "backbone"),
    [
        (("efficientnet_lite0",), None),
        (("efficientnet_lite0", "mobilenet_v2_1.0_coco_tfjs"), "mobilenet_v2"),
    ],
)
def test_weights_of_a_detector_are_ahead_of_a_classifiers(there, backbone, monkeypatch):
    monkeypatch.setattr(
        planning_weights, "find_weights", lambda name: Path(name) if name in there else None
    )
    changes = first_weights(read_config(SMALL).experiment, print)
    assert changes.get("model.backbone.kind") == backbone
    other = read_config(SMALL, {"model.backbone.kind": "mobilenet_v1"}).experiment
    assert "model.backbone.kind" not in first_weights(other, print)


@pytest.fixture
def plan(scenes, tmp_path, no_installed_weights, monkeypatch):
    """The function from arguments of `plan_run` to its answer and what was said."""
    monkeypatch.setattr(planning, "measured_speed", lambda machine: 90e9)

    def run(config=None, data=scenes, **options):
        said = []
        folder = tmp_path / "run"
        planned = plan_run(config, data, folder, machine=CPU, say=said.append, **options)
        return planned.experiment, "\n".join(said)

    return run


@pytest.mark.parametrize(
    ("images", "machine", "size", "reason"),
    [
        (400, CPU, 8, "no faster on a CPU"),
        (10, CPU, 8, "batch norm needs"),
        (400, Machine("3 processes", "cpu", 24 * GIB, 24 * GIB, 3, 3), 6, "no faster on a CPU"),
        (400, GPU, 32, "at least 8 steps an epoch"),
        (9000, GPU, 64, "at least 8 steps an epoch"),
        (9000, Machine("a small GPU", "gpu", GIB // 8, 8 * GIB), 16, "32 may need more memory"),
        (9000, Machine("8 GPUs", "gpu", 100 * GIB, 100 * GIB, 8), 64, "at least 8 steps"),
        (10, Machine("64 GPUs", "gpu", 100 * GIB, 100 * GIB, 64), 64, "batch norm needs"),
    ],
)
def test_batches_suit_the_data_and_the_memory(images, machine, size, reason):
    small = read_config("demo_scenes", changes_of(SMALL_MODEL)).experiment
    choice = choose_batch(small, stats(images=images), machine)
    assert (int(choice.value), reason in choice.reason) == (size, True), choice


def test_stats_are_those_of_the_records_and_no_run_is_too_short(scenes):
    assert choose_epochs(stats(), 16).value == "80"
    assert choose_epochs(stats(images=118_000), 64).value == "12"
    assert choose_epochs(stats(images=10), 8).value == "240"
    records = Records(paths=(f"{scenes}/train.record-*",), label_map=f"{scenes}/label_map.pbtxt")
    measured = read_dataset_stats(records)
    assert (measured.images, measured.classes, measured.boxes) == (10, 6, 27)
    small, median = measured.sizes.quantiles(0.1, 0.5)
    assert 0 < small <= median < 1
    assert measured.max_boxes >= 20


def test_an_experiment_is_picked_for_finished_records(plan, scenes):
    experiment, said = plan()
    train = experiment.train
    assert experiment.data.train.repeat_threshold == 0
    assert experiment.data.train.paths == (f"{scenes}/train.record-00000-of-00001",)
    assert experiment.data.evaluation.paths == (f"{scenes}/val.record-00000-of-00001",)
    assert (experiment.model.num_classes, train.batch_size) == (6, 8)
    assert train.steps == 300
    assert train.optimizer == read_config(SMALL).experiment.train.optimizer
    assert train.evaluate_every == train.checkpoint_every == 30
    assert not rules.find_missing(experiment)
    for part in ("holds records", "10 training images", f"recipe {SMALL}", "batch 8", "epochs: "):
        assert part in said
    assert "stillbox weights get nanodet_g_416_coco" in said
    assert train.optimizer.schedule.learning_rate == pytest.approx(0.001)


@pytest.mark.parametrize(
    ("recipe", "given", "said", "scope"),
    [
        (None, "", "random ones, as given", ""),
        (SMALL, "mine.npz", "mine.npz, as given", ""),
        (None, "ssd_mobilenet_v1_coco", "ssd_mobilenet_v1_coco, as given", "detection"),
    ],
)
def test_weights_that_are_given_are_those_that_are_said(plan, recipe, given, said, scope):
    experiment, lines = plan(recipe, overrides=changes_of([f"train.fine_tune.checkpoint={given}"]))
    assert experiment.train.fine_tune.checkpoint == given
    assert f"weights to start from: {said}" in lines
    assert "warning: random weights" not in lines
    assert not scope or experiment.train.fine_tune.scope == scope


@pytest.mark.parametrize("given", ["", "train.augmentations=[{kind: random_vertical_flip}]"])
def test_few_images_get_pasted_objects_if_no_augmentations_are_given(plan, given):
    experiment, said = plan(overrides=changes_of([given] if given else []))
    kinds = [type(each) for each in experiment.train.augmentations]
    assert (kinds[0] is CopyPaste) == (not given)
    assert ("copy_paste" in said) == (not given)
    usual = read_config(SMALL).experiment.train.augmentations
    assert given or experiment.train.augmentations[1:] == usual
    # An image that others are pasted into has their boxes as well.
    assert given or experiment.data.train.max_boxes > experiment.data.evaluation.max_boxes


def test_many_images_are_augmented_as_the_recipe_says(plan, monkeypatch):
    monkeypatch.setattr(fitting, "_FEW_IMAGES", 9)
    assert plan()[0].train.augmentations == read_config(SMALL).experiment.train.augmentations


def test_weights_and_batch_fit_the_model_that_overrides_change(plan, monkeypatch):
    sizes = []
    monkeypatch.setattr(
        fitting,
        "fits_for_certain",
        lambda experiment, machine: sizes.append(experiment.model.network_size),
    )
    monkeypatch.setattr(planning_weights, "find_weights", Path)
    assert plan("retinanet")[0].train.fine_tune.checkpoint
    sizes.clear()
    small = "model.resizer={kind: fixed_shape, height: 64, width: 64}"
    changes = ["model.backbone.depth=101", small]
    assert not plan("retinanet", overrides=changes_of(changes))[0].train.fine_tune.checkpoint
    assert set(sizes) == {(64, 64)}


def test_steps_that_are_set_limit_the_candidates(plan):
    experiment, said = plan(overrides=changes_of(["train.steps=7"]))
    assert experiment.train.steps == 7
    assert "7 steps" in said


@pytest.fixture
def rare_stars(tmp_path):
    """The folder of records of 40 images with three discs and a ring, and one with a star."""
    folder = tmp_path / "rare"
    folder.mkdir()
    (folder / "labels.pbtxt").write_text(
        "".join(f"item {{ id: {n} name: '{name}' }}\n" for n, name in STARS.items())
    )
    boxes = [(0.1, 0.2, 0.5, 0.6)]
    images = [make_example(4 * boxes, [1, 1, 1, 2])] * 40 + [make_example(boxes, [3])]
    label_map = LabelMap.from_file(folder / "labels.pbtxt")
    write_records(folder / "train.record", [serialize_example(i, label_map) for i in images])
    return folder


STARS = {1: "disc", 2: "ring", 3: "star"}


def test_images_of_a_rare_class_are_repeated(plan, rare_stars):
    experiment, said = plan(data=rare_stars)
    # The median class is in 40 of 41 images: the factor of the image with a star is sqrt(40 / 1).
    assert experiment.data.train.repeat_threshold == pytest.approx(40 / 41, rel=1e-3)
    assert "star is rare: 1 box" in said
    assert "a factor of 6.3" in said


def test_a_threshold_of_the_command_line_wins(plan, rare_stars):
    experiment, said = plan(data=rare_stars, overrides={"data.train.repeat_threshold": 0.0})
    assert experiment.data.train.repeat_threshold == 0
    assert "rare" not in said.replace(str(rare_stars), "")


def test_what_is_said_on_the_command_line_wins(plan):
    overrides = ["train.batch_size=4", "train.evaluate_every=7"]
    experiment, said = plan(overrides=changes_of(overrides), epochs=2)
    train = experiment.train
    assert (train.batch_size, train.steps, train.evaluate_every) == (4, 5, 7)
    assert train.optimizer.schedule.learning_rate == pytest.approx(
        0.0005
    )  # half of the recipe's, as the batch
    assert "batch 8" not in said


def test_the_batch_and_length_of_a_recipe_are_fitted(plan, scenes):
    experiment, said = plan("demo_scenes")
    assert (experiment.train.batch_size, experiment.train.steps) == (8, 300)
    assert experiment.train.optimizer.schedule.total_steps == 300
    assert experiment.data.train.paths == (f"{scenes}/train.record-00000-of-00001",)
    assert "recipe " not in said
    assert "batch 8: " in said
    assert "epochs: 300 steps" in said
    experiment, _ = plan("demo_scenes", overrides=changes_of(["train.batch_size=4"]), steps=30)
    assert (experiment.train.batch_size, experiment.train.steps) == (4, 30)


def test_a_config_file_keeps_all_but_its_data(plan, scenes, tmp_path):
    file = tmp_path / "own.yaml"
    file.write_text(to_yaml(read_config("demo_scenes").experiment))
    experiment, said = plan(file)
    assert (experiment.train.batch_size, experiment.train.steps) == (32, 850)
    assert experiment.data.train.paths == (f"{scenes}/train.record-00000-of-00001",)
    assert "batch" not in said


@pytest.mark.parametrize("config", [None, "file"])
def test_images_that_are_mixed_have_room_for_the_boxes_of_all(plan, tmp_path, config):
    if config:
        config = tmp_path / "own.yaml"
        config.write_text(to_yaml(read_config("demo_scenes").experiment))
    mixed = "train.augmentations=[mosaic, mixup]"
    alone, room = (
        plan(config, overrides=changes_of(words))[0].data
        for words in (["train.augmentations=[]"], [mixed])
    )
    assert room.train.max_boxes == 5 * alone.train.max_boxes
    assert room.evaluation.max_boxes == alone.evaluation.max_boxes
    given, _ = plan(config, overrides=changes_of([mixed, "data.train.max_boxes=30"]))
    assert given.data.train.max_boxes == 30


@pytest.mark.parametrize("config", [None, "file"])
def test_limits_have_room_for_the_fullest_image(plan, tmp_path, config):
    label_map = LabelMap.from_names(["owl"])
    (tmp_path / "data").mkdir()
    (tmp_path / "data/label_map.pbtxt").write_text(label_map.to_text())
    crowd = make_example([(0.1, 0.2, 0.5, 0.6)] * 131, [1] * 131)
    write_records(tmp_path / "data/train.record", [serialize_example(crowd, label_map)])
    if config:
        config = tmp_path / "own.yaml"
        config.write_text(to_yaml(read_config("demo_scenes").experiment))
    experiment, said = plan(config, data=tmp_path / "data")
    nms = experiment.model.nms
    assert (nms.max_total, nms.max_per_class) == (140, 140)
    assert "max_total=140" in said
    kept, _ = plan(
        config,
        data=tmp_path / "data",
        overrides=changes_of(["model.postprocessing.nms={max_total: 50, max_per_class: 50}"]),
    )
    assert kept.model.max_detections == 50


def test_tiles_are_the_images_of_a_planned_run(plan):
    whole, _ = plan()
    tiles = "data.tiles={side: 60, overlap: 0}"
    experiment, said = plan("demo_scenes", overrides=changes_of([tiles]))
    source = ExampleSource(experiment.data.train.paths)
    samples = len(ImageTiles.measure(source, experiment.data.tiles))
    assert (experiment.train.batch_size, experiment.train.steps) == (8, 80 * samples // 8)
    assert "80 epochs" in said
    assert experiment.data.train.max_boxes <= whole.data.train.max_boxes


def test_photographs_are_converted_once(plan, tmp_path):
    photos = tmp_path / "photos"
    for part in ("images", "labels"):
        (photos / part).mkdir(parents=True)
    for number in range(10):
        pixels = np.random.default_rng(number).integers(0, 255, (48, 64, 3), np.uint8)
        cv2.imwrite(str(photos / f"images/{number}.png"), pixels)
        (photos / f"labels/{number}.txt").write_text("0 0.5 0.5 0.4 0.4\n")
    (photos / "data.yaml").write_text("train: images\nnames: [owl]\n")
    experiment, said = plan(data=photos)
    assert experiment.model.num_classes == 1
    assert "photos is" in said
    assert "converted from" in said
    assert (tmp_path / "run/data/label_map.pbtxt").is_file()
    again, said = plan(data=photos / "data.yaml")
    assert again == experiment
    assert "used again" in said


def test_a_run_that_exists_keeps_its_experiment(plan, scenes, tmp_path):
    (tmp_path / "run/checkpoints/3").mkdir(parents=True)
    kept = small_experiment(scenes, "name=kept")
    (tmp_path / "run/experiment.yaml").write_text(to_yaml(kept))
    experiment, said = plan()
    assert experiment == kept
    assert f"that of the run in {tmp_path / 'run'}" in said
    assert plan_resumed(tmp_path / "run").experiment == kept


def test_a_run_on_other_data_is_refused(plan, tmp_path):
    data = tmp_path / "data"
    data.mkdir()
    (data / "a.jpg").write_bytes(b"123")
    write_source(data, tmp_path / "run")
    shutil.copytree(data, tmp_path / "copy")
    refuse_other_source(tmp_path / "copy", tmp_path / "run")
    (data / "b.jpg").write_bytes(b"45")
    with refused("data", 5) as caught:
        refuse_other_source(data, tmp_path / "run")
    # As where a class was added: the weights of the run are a start for the new one.
    assert f"a new model_dir=; `weights={tmp_path}/run` there begins" in worded(caught.value.fix)
    (data / "b.jpg").unlink()
    (data / "a.jpg").rename(data / "c.jpg")
    with pytest.raises(UserError, match="other names or sizes"):
        refuse_other_source(data, tmp_path / "run")


def test_a_run_of_another_recipe_is_refused(plan, scenes, tmp_path):
    (tmp_path / "run/checkpoints/3").mkdir(parents=True)
    kept = read_config("demo_scenes").experiment
    (tmp_path / "run/experiment.yaml").write_text(to_yaml(kept))
    assert plan("demo_scenes")[0].name == "demo_scenes"
    with pytest.raises(UserError, match=r"name: 'demo_scenes' -> 'retinanet'"):
        plan("retinanet")


def test_the_settings_of_a_recipe_s_weights_are_no_other_model(plan, tmp_path):
    (tmp_path / "run/checkpoints/3").mkdir(parents=True)
    weights = known_weights()["torchvision_resnet50"].changes()
    kept = read_config("retinanet", weights).experiment
    (tmp_path / "run/experiment.yaml").write_text(to_yaml(kept))
    assert plan("retinanet")[0].model == kept.model
    with pytest.raises(UserError, match=r"pool_padding: .symmetric. -> .same."):
        plan("retinanet", overrides=changes_of(["model.backbone.pool_padding=same"]))


def test_a_run_of_somebody_else_sets_nothing_of_the_machine(plan, scenes, tmp_path):
    (tmp_path / "run/checkpoints/3").mkdir(parents=True)
    kept = small_experiment(scenes, "train.loggers=[wandb]", "data.workers=1024")
    (tmp_path / "run/experiment.yaml").write_text(to_yaml(kept))
    experiment, _ = plan()
    assert (experiment.train.loggers, experiment.data.workers) == (("tensorboard",), None)
    experiment, _ = plan(overrides=changes_of(["data.workers=3"]))
    assert experiment.data.workers == 3


def test_records_of_a_run_are_not_written_through_a_link(plan, tmp_path):
    (tmp_path / "home").mkdir()
    (tmp_path / "run").mkdir()
    (tmp_path / "run/data").symlink_to(tmp_path / "home")
    with pytest.raises(UserError, match="nothing is written there"):
        plan(data=tmp_path / "photos")
    assert not any((tmp_path / "home").iterdir())


def test_records_without_a_label_map_get_one_of_their_texts(plan, scenes, tmp_path):
    for file in scenes.glob("*.record-*"):
        (tmp_path / file.name).write_bytes(file.read_bytes())
    experiment, said = plan(data=tmp_path)
    made = LabelMap.from_file(experiment.data.train.label_map)
    assert made == LabelMap.from_file(scenes / "label_map.pbtxt")
    assert "of the records' own texts" in said


def test_records_without_texts_say_how_a_label_map_is_written(plan, tmp_path):
    write_records(tmp_path / "train.record", [serialize_example(make_example())])
    with refused(tmp_path, "dog"):
        plan(data=tmp_path)


@pytest.mark.parametrize(
    ("config", "overrides", "said"),
    [
        ("demo_scene", [], "did you mean 'demo_scenes'"),
        ("demo_scenes", ["train.batchsize=4"], "did you mean 'batch_size'"),
        (None, ["train.batchsize=4"], "did you mean 'batch_size'"),
    ],
)
def test_misspelt_words_are_noticed_before_a_folder_is_read(plan, config, overrides, said):
    with pytest.raises(UserError, match=said):
        plan(config, data="nowhere", overrides=changes_of(overrides))


def test_records_that_are_not_of_training_are_refused(plan, tmp_path):
    (tmp_path / "train.record").write_bytes(b"")
    (tmp_path / "label_map.pbtxt").write_text("item { id: 1 name: 'a' }")
    (tmp_path / "train.record").rename(tmp_path / "val.record")
    with pytest.raises(UserError, match="no file of the folder is named as records of training"):
        plan(data=tmp_path)


@pytest.mark.parametrize(
    ("name", "recipe"),
    [
        ("torchvision_resnet34", "ssd_resnet34"),
        ("ssd_mobilenet_v1_0.75_depth_coco", "ssd_mobilenet_v1_300x300"),
        ("ssdlite_mobilenet_v2_coco", "ssdlite_mobilenet_v2_coco"),
    ],
)
def test_a_folder_and_weights_by_name_have_a_recipe(plan, name, recipe):
    experiment, said = plan(overrides=known_weights()[name].changes())
    assert experiment.name == recipe
    assert f"recipe {recipe}: the weights {name} are for it" in said
    assert experiment.train.fine_tune.checkpoint == name
