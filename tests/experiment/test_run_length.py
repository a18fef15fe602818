"""Schedules that follow the run, and runs of another length or batch.

Settings per replica as groups of images.
"""

from dataclasses import replace

import pytest

from stillbox.experiment import rules, schema
from stillbox.experiment.pipeline_config import read_pipeline_config
from stillbox.experiment.recipes import recipe_names
from stillbox.experiment.resolve import read_config, resolve
from stillbox.experiment.run_length import (
    batch_norms,
    replicas_as_groups,
    resolve_schedule,
    with_batch,
    with_steps,
)
from stillbox.experiment.schema import BatchNorm, ConvHyperparams, Fpn, OneStage
from stillbox.experiment.yaml_config import from_yaml
from tests.experiment.sample import SAMPLE

PATH = "train.optimizer.schedule"


def experiment(schedule, steps=1000, batch_size=32):
    optimizer = schema.Momentum(schedule=schedule)
    train = schema.Training(steps=steps, batch_size=batch_size, optimizer=optimizer)
    return schema.Experiment(train=train)


def settled(schedule, steps=1000):
    changed, warnings = resolve_schedule(experiment(schedule, steps))
    cosine = changed.train.optimizer.schedule
    return cosine.total_steps, cosine.warmup_steps, warnings


def test_an_open_cosine_ends_with_training():
    assert settled(schema.CosineSchedule()) == (1000, 50, ())
    assert settled(schema.CosineSchedule(warmup_steps=300)) == (1000, 300, ())
    assert settled(schema.CosineSchedule(), steps=1) == (1, 0, ())


def test_a_cosine_with_an_end_of_its_own_keeps_it():
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
    (broken,) = (one for one in rules.find_missing(open_) if one.path.startswith(PATH))
    assert "training has no end" in broken.what


def test_the_steps_of_a_recipe_move_the_end_of_its_cosine():
    moved = resolve("demo_scenes", ["train.steps=400"]).experiment.train.optimizer.schedule
    assert (moved.total_steps, moved.warmup_steps) == (400, 50)
    fixed = resolve("demo_scenes", ["train.steps=400", f"{PATH}.total_steps=850"]).experiment
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


def test_another_length_stretches_the_last_steps_without_an_augmentation():
    some = schema.RandomHorizontalFlip(), schema.Mosaic(skip_last_steps=30), schema.MixUp()
    train = schema.Training(steps=200, augmentations=some)
    short = with_steps(schema.Experiment(train=train), 50).train.augmentations
    assert short == (some[0], schema.Mosaic(skip_last_steps=8), some[2])
    open_ended = schema.Experiment(train=schema.Training(augmentations=some))
    assert with_steps(open_ended, 50).train.augmentations == some


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


def test_a_model_without_per_replica_is_unchanged():
    model = replace(MODEL, neck=Fpn(conv=ConvHyperparams(batch_norm=OURS)))
    assert replicas_as_groups(model, 32, 8) is model


def test_all_batch_norms_are_found_with_their_paths():
    found = dict(batch_norms(MODEL))
    assert found["model.neck.conv.batch_norm"] == MINE
    assert found["model.backbone.conv.batch_norm"] == MODEL.backbone.conv.batch_norm
