"""Augmentations that combine records, and that end before training does, in the loader."""

from dataclasses import replace

import numpy as np
import pytest

from stillbox.errors import UserError
from stillbox.experiment import schema
from stillbox.inputs.loader import TrainLoader, sample_generator
from tests.inputs.helpers import dataset, example
from tests.inputs.test_loader import same

MIXED = (
    schema.LargeScaleJitter(output_size=40),
    schema.Mosaic(height=24, width=32),
    schema.RandomAffine(output_size=(24, 32)),
    schema.MixUp(height=24, width=32, probability=0.7),
)
BROKEN = example(1, encoded=b"no image")
DROP = schema.Data(bad_records="drop")


def boxes_of(number):
    return [[0.1, 0.1, 0.3 + 0.1 * box, 0.5] for box in range(number % 4)]


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    folder = tmp_path_factory.mktemp("records")
    examples = [example(n, boxes_of(n), size=(30 + n, 50)) for n in range(7)]
    return dataset(folder, examples, max_boxes=16)


def loader(data, augmentations=MIXED, **changes):
    settings = {"batch_size": 4, "seed": 3, "workers": 0}
    return TrainLoader(data, augmentations=augmentations, **settings | changes)


# ---- other records ------------------------------------------------------------------------------


@pytest.mark.parametrize("workers", [1, 4])
def test_combined_images_do_not_depend_on_the_number_of_threads(data, workers):
    same(loader(data, workers=workers).iterate(0, 5), loader(data).iterate(0, 5))


def test_combined_images_are_the_same_after_resuming_in_the_middle_of_an_epoch(data):
    whole = list(loader(data).iterate(0, 6))
    # Step 3 begins with image 12 of 7 records: in the middle of the second epoch.
    same(loader(data).iterate(3, 6), whole[3:])


def test_processes_combine_the_records_of_the_whole_set(data):
    whole = loader(data).iterate(0, 4)
    halves = [loader(data, process_index=p, process_count=2) for p in (0, 1)]
    parts = zip(*(half.iterate(0, 4) for half in halves), strict=True)
    same([type(a)(*map(np.concatenate, zip(a, b, strict=True))) for a, b in parts], whole)


def test_a_cache_of_images_changes_nothing(data, tmp_path):
    examples = [data.source.example(n) for n in range(7)]
    kept = dataset(tmp_path, examples, data=schema.Data(cache_images=True), max_boxes=16)
    same(loader(kept).iterate(0, 4), loader(data).iterate(0, 4))


def test_every_record_is_drawn_and_each_as_often(data):
    rng = sample_generator(0, 0, 0)
    heights = np.bincount([data.draw(rng).size[0] - 30 for _ in range(700)], minlength=7)
    assert len(heights) == 7
    assert (abs(heights - 100) < 45).all()  # nearly 5 standard deviations


def test_records_without_boxes_are_passed_over_where_boxes_are_wanted(data):
    rng = sample_generator(0, 0, 0)
    assert all(len(data.draw(rng, with_boxes=True).boxes) for _ in range(50))


def test_records_that_cannot_be_used_are_passed_over(tmp_path):
    some = dataset(tmp_path, [example(0, size=(31, 50)), BROKEN], data=DROP)
    rng = sample_generator(0, 0, 0)
    assert {some.draw(rng).size for _ in range(30)} == {(31, 50)}
    assert [problem.count for problem in some.source.problems] == [1]


def test_none_is_returned_where_no_record_can_be_used(tmp_path):
    none = dataset(tmp_path, [BROKEN], data=DROP)
    assert none.draw(sample_generator(0, 0, 0)) is None


def test_a_damaged_partner_is_named_not_the_record_that_it_is_combined_with(tmp_path):
    some = dataset(tmp_path, [example(0), BROKEN])
    with pytest.raises(UserError, match="image cannot be decoded") as caught:
        loader(some, MIXED[1:2], batch_size=1, shuffle=False).batch(0)
    assert "record 1" in caught.value.where


def test_the_boxes_of_four_images_count_against_the_limit(tmp_path):
    some = dataset(tmp_path, [example(0, [[0.1, 0.1, 0.9, 0.9]] * 3)], max_boxes=4)
    full = loader(some, [schema.Mosaic(height=24, width=32)], batch_size=1)
    batch = full.batch(0)
    # All classes are the same; the fourth box is the first of the second picture.
    assert (batch.weights == 1).all()
    assert full.stats.most_boxes == 12
    assert full.stats.truncated_boxes == 8


# ---- the last steps -----------------------------------------------------------------------------


@pytest.mark.parametrize("augmentation", MIXED, ids=lambda one: one.kind)
@pytest.mark.parametrize("start", [0, 3, 5, 6])
def test_the_last_steps_leave_the_augmentation_out(data, augmentation, start):
    ending = [replace(augmentation, skip_last_steps=3)]
    cut = list(loader(data, ending, train_steps=8).iterate(start, 8))
    before = list(loader(data, [augmentation]).iterate(start, 5))
    plain = list(loader(data, ()).iterate(max(start, 5), 8))
    same(cut, before + plain)


def test_each_augmentation_has_its_own_end(data):
    flip = schema.RandomHorizontalFlip(probability=1.0)
    ending = [schema.Mosaic(height=24, width=32, skip_last_steps=2), flip]
    cut = list(loader(data, ending, train_steps=4).iterate(0, 4))
    same(cut[2:], loader(data, [flip]).iterate(2, 4))


def test_the_last_epoch_is_an_end_too(tmp_path):
    twice = dataset(tmp_path, [example(n, size=(30 + n, 50)) for n in range(7)], num_epochs=2)
    ending = [replace(MIXED[1], skip_last_steps=2)]
    # 14 images are 4 steps.
    cut = list(loader(twice, ending, train_steps=100).iterate())
    same(cut, [*loader(twice, MIXED[1:2]).iterate(0, 2), *loader(twice, ()).iterate(2)])


def test_a_run_without_an_end_keeps_all(data):
    same(
        loader(data, [replace(MIXED[1], skip_last_steps=2)]).iterate(0, 3),
        loader(data, MIXED[1:2]).iterate(0, 3),
    )
