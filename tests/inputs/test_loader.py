import subprocess
import sys
import threading
import time
from collections import Counter
from itertools import islice

import numpy as np
import pytest

from stillbox.errors import UserError
from stillbox.experiment import schema
from stillbox.inputs.loader import EvalLoader, TrainLoader, permutation, sample_generator
from stillbox.inputs.resize import resize_image
from tests.helpers import refused
from tests.inputs.helpers import dataset, example

ORDER_0, ORDER_1 = [5, 3, 7, 2, 4, 1, 0, 6], [2, 7, 6, 5, 1, 3, 0, 4]


def test_an_order_has_every_record_once_and_differs_by_epoch_and_seed():
    orders = [permutation(seed, epoch, 100) for seed in (0, 1) for epoch in (0, 1)]
    assert all(sorted(order) == list(range(100)) for order in orders)
    assert len({tuple(order) for order in orders}) == 4
    assert (permutation(7, 3, 100) == permutation(7, 3, 100)).all()


def test_an_order_does_not_depend_on_the_version_of_numpy():
    # Only raw words are used, which numpy promises not to change; these were written down once.
    assert permutation(0, 0, 8).tolist() == ORDER_0
    assert permutation(-1, 5, 8).tolist() == ORDER_1


def test_records_draw_different_numbers_in_every_epoch():
    drawn = {
        tuple(sample_generator(seed, epoch, record).random(2))
        for seed in (0, 1)
        for epoch in (0, 1)
        for record in (0, 1)
    }
    assert len(drawn) == 8
    assert sample_generator(-5, 1, 2).random() == sample_generator(-5, 1, 2).random()


AUGMENTATIONS = (schema.RandomHorizontalFlip(), schema.SsdRandomCrop())
DROP = schema.Data(bad_records="drop")
BROKEN = example(1, encoded=b"no image")


def boxes_of(number):
    """0, 1, 2, 3, 0, ... boxes, each of its own size."""
    return [[0.1, 0.1, 0.4 + 0.1 * box, 0.5 + 0.01 * number] for box in range(number % 4)]


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    folder = tmp_path_factory.mktemp("records")
    sizes = [(30 + 3 * number, 50 - 2 * number) for number in range(7)]
    examples = [example(n, boxes_of(n), size=sizes[n]) for n in range(7)]
    return dataset(folder, examples, max_boxes=4)


def loader(data, **changes):
    settings = {"augmentations": AUGMENTATIONS, "batch_size": 4, "seed": 3, "workers": 0}
    return TrainLoader(data, **settings | changes)


def same(batches, others):
    batches, others = list(batches), list(others)
    assert len(batches) == len(others)
    for batch, other in zip(batches, others, strict=True):
        for name, left, right in zip(batch._fields, batch, other, strict=True):
            assert left.dtype == right.dtype, name
            assert left.tobytes() == right.tobytes(), name


def threads():
    return [t for t in threading.enumerate() if t.name.startswith("stillbox")]


# ---- what is in a batch -------------------------------------------------------------------------


def test_shapes_and_types_are_those_of_the_contract(data):
    batch = loader(data).batch(0)
    shapes = {name: (array.shape, array.dtype.name) for name, array in batch._asdict().items()}
    assert shapes == {
        "images": ((4, 24, 32, 3), "float32"),
        "boxes": ((4, 4, 4), "float32"),
        "classes": ((4, 4), "int32"),
        "weights": ((4, 4), "float32"),
        "true_sizes": ((4, 2), "int32"),
        "records": ((4,), "int32"),
        "image_weights": ((4,), "float32"),
    }


def test_rows_hold_the_resized_image_and_padded_boxes(data):
    batch = loader(data, augmentations=(), shuffle=False).batch(0)
    for row in range(4):
        sample = data.load(row)
        assert (batch.images[row] == resize_image(sample.image, data.resizer)[0]).all()
        np.testing.assert_array_equal(batch.boxes[row, :row], sample.boxes)
        assert (batch.boxes[row, row:] == 0).all()
        assert batch.weights[row].tolist() == [1] * row + [0] * (4 - row)
    assert batch.records.tolist() == [0, 1, 2, 3]
    assert batch.image_weights.tolist() == [1, 1, 1, 1]
    assert batch.true_sizes.tolist() == [[24, 32]] * 4


def test_pixels_stay_in_0_to_255(data):
    batch = loader(data).batch(0)
    assert batch.images.min() >= 0
    assert 128 < batch.images.max() <= 255


def test_boxes_are_re_expressed_in_the_padded_frame(tmp_path):
    resizer = schema.KeepAspectRatioResizer(min_dimension=20, max_dimension=30)
    model = schema.OneStage(num_classes=4, resizer=resizer)
    padded = dataset(tmp_path, [example(0, [[0.0, 0.5, 1.0, 1.0]], size=(60, 40))], model=model)
    batch = EvalLoader(padded, batch_size=1, workers=0).batch(0)
    # 60 x 40 becomes 30 x 20 on a canvas of 30 x 30: x shrinks by 20 / 30, y by nothing.
    assert batch.true_sizes.tolist() == [[30, 20]]
    np.testing.assert_allclose(batch.boxes[0, 0], [0, 1 / 3, 1, 2 / 3], rtol=1e-6)
    assert (batch.images[0, :, 20:] == 0).all()


def test_boxes_beyond_the_limit_are_cut_off_and_counted(tmp_path):
    many = [[0.1 * n, 0.1, 0.1 * n + 0.1, 0.5] for n in range(8)]
    full = dataset(tmp_path, [example(0, many), example(1, many[:2])], max_boxes=5)
    cut = loader(full, augmentations=(), shuffle=False, batch_size=2)
    batch = cut.batch(0)
    np.testing.assert_allclose(batch.boxes[0], np.float32(many[:5]))  # the first ones stay
    stats = cut.stats
    assert (stats.images, stats.boxes, stats.truncated_boxes, stats.most_boxes) == (2, 10, 3, 8)
    assert stats.truncated_images == 1
    assert stats.truncated_share == 0.3
    assert "3 boxes (30.00%) in 1 image cut off beyond max_boxes=5" in stats.summary()


# ---- a canvas that images must fit into ---------------------------------------------------------

CANVAS = schema.OneStage(num_classes=4, resizer=schema.IdentityResizer(canvas=(40, 60)))


def test_an_image_is_padded_to_the_canvas_and_the_padding_is_masked(tmp_path):
    data = dataset(tmp_path, [example(0, [[0, 0.5, 1, 1]], size=(30, 40))], model=CANVAS)
    batch = EvalLoader(data, batch_size=1, workers=0).batch(0)
    assert batch.images.shape == (1, 40, 60, 3)
    assert batch.true_sizes.tolist() == [[30, 40]]
    assert (batch.images[0, 30:] == 0).all()
    assert (batch.images[0, :30, :40] == data.image(0)).all()
    # 30 of 40 rows, 40 of 60 columns.
    np.testing.assert_allclose(batch.boxes[0, 0], [0, 1 / 3, 0.75, 2 / 3], rtol=1e-6)


def test_an_image_larger_than_the_canvas_stops_with_its_record_or_is_left_out(tmp_path):
    examples = [example(0), example(1, size=(41, 60))]
    evaluation = EvalLoader(dataset(tmp_path, examples, model=CANVAS), batch_size=1, workers=0)
    evaluation.batch(0)
    with refused("data.record: record 1 (byte 2167)", "41x60") as caught:
        evaluation.batch(1)
    assert "data.record: record 1" in caught.value.where
    assert caught.value.fix.startswith("enlarge model.resizer.canvas")
    assert "data.bad_records=drop" in caught.value.fix
    data = dataset(tmp_path, examples, model=CANVAS, data=DROP)
    batch = EvalLoader(data, batch_size=2, workers=0).batch(0)
    assert batch.image_weights.tolist() == [1, 0]
    assert (batch.images[1] == 0).all()
    assert batch.weights[1].max() == 0
    assert {p.reason: p.count for p in data.source.problems} == {"image does not fit the canvas": 1}


def test_an_augmentation_may_make_an_image_too_large(tmp_path):
    data = dataset(tmp_path, [example(0)], model=CANVAS)
    twice = schema.RandomImageScale(min_ratio=2.0, max_ratio=2.0)
    loader(data, augmentations=(), batch_size=1).batch(0)
    with refused("data.record: record 0 (byte 0)", "80x120"):
        loader(data, augmentations=(twice,), batch_size=1).batch(0)


def test_operations_on_colours_reach_the_batch_unrounded(data):
    whole = loader(data, augmentations=()).batch(0)
    changed = loader(data, augmentations=(schema.AdjustGamma(gamma=0.9),)).batch(0)
    assert changed.images.dtype == np.float32
    assert (changed.images != whole.images).any()
    assert (changed.images % 1 > 0.01).any()
    # The cached or decoded image is not what was changed.
    again = loader(data, augmentations=()).batch(0)
    assert (again.images == whole.images).all()


# ---- order and randomness -----------------------------------------------------------------------


def test_every_epoch_has_every_record_once(data):
    plain = loader(data, augmentations=())
    records = np.concatenate([plain.batch(step).records for step in range(7)])
    epochs = records.reshape(4, 7)  # 28 samples of 7 records; batches of 4 run across the ends
    assert all(sorted(epoch) == list(range(7)) for epoch in epochs.tolist())
    assert len({tuple(epoch) for epoch in epochs.tolist()}) == 4
    plain = loader(data, shuffle=False)
    assert [r for step in range(2) for r in plain.batch(step).records] == [0, 1, 2, 3, 4, 5, 6, 0]


def test_a_batch_is_a_function_of_its_number(data):
    again = loader(data)
    later = again.batch(5)
    again.batch(0)
    same([later], [again.batch(5)])
    same([later], [loader(data).batch(5)])


def test_a_record_is_augmented_differently_in_every_epoch(data):
    shapes = loader(data, batch_size=7, shuffle=False)
    first, second = shapes.batch(0), shapes.batch(1)
    assert (first.records == second.records).all()
    assert (first.images != second.images).any()


def test_another_seed_is_another_order_and_other_augmentations(data):
    assert (loader(data, seed=4).batch(0).records != loader(data).batch(0).records).any()
    unshuffled = [loader(data, seed=seed, shuffle=False).batch(0).images for seed in (0, 1)]
    assert (unshuffled[0] != unshuffled[1]).any()


@pytest.mark.parametrize("workers", [1, 4])
@pytest.mark.parametrize("prefetch", [0, 1, 3])
def test_threads_change_nothing(data, workers, prefetch):
    threaded = loader(data, workers=workers, prefetch=prefetch)
    same(threaded.iterate(0, 6), loader(data).iterate(0, 6))


@pytest.mark.parametrize("workers", [0, 2])
def test_a_resumed_run_continues_where_the_first_one_stopped(data, workers):
    whole = list(loader(data, workers=workers).iterate(0, 8))
    same(loader(data, workers=workers).iterate(3, 8), whole[3:])


def test_two_processes_share_the_batches_of_one(data):
    whole = loader(data).iterate(0, 4)
    halves = [loader(data, process_index=p, process_count=2) for p in (0, 1)]
    parts = zip(*(half.iterate(0, 4) for half in halves), strict=True)
    joined = [type(a)(*map(np.concatenate, zip(a, b, strict=True))) for a, b in parts]
    same(joined, whole)


def test_a_batch_that_processes_cannot_share_is_refused(data):
    with refused("batch_size", 4, 3):
        loader(data, process_count=3)


def test_training_ends_after_its_last_epoch_with_a_padded_batch(tmp_path):
    examples = [example(n) for n in range(3)]
    twice = loader(dataset(tmp_path, examples, num_epochs=2), workers=2)
    batches = list(twice.iterate())
    assert twice.steps == len(batches) == 2  # 6 samples in batches of 4
    records = np.concatenate([b.records for b in batches])
    assert Counter(records.tolist()) == {0: 2, 1: 2, 2: 2, -1: 2}
    last = batches[-1]
    assert last.image_weights.tolist() == [1, 1, 0, 0]
    assert last.records.tolist()[2:] == [-1, -1]
    assert (last.images[2:] == 0).all()
    assert (last.weights[2:] == 0).all()
    assert (last.true_sizes[2:] == [24, 32]).all()  # nothing divides by 0
    assert len(list(twice.iterate(1, 10))) == 1


def test_without_a_limit_epochs_go_on(data):
    endless = loader(data)
    assert endless.steps is None
    assert len(list(islice(endless.iterate(100), 3))) == 3


@pytest.mark.parametrize("workers", [0, 2])
def test_the_first_batch_is_made_once_and_given_for_every_step(data, workers):
    repeating = loader(data, workers=workers, repeat_first_batch=True)
    batches = list(repeating.iterate(0, 5))
    same(batches, 5 * [loader(data).batch(0)])
    assert repeating.stats.images == 4  # one batch was decoded and augmented, not five
    # A resumed run measures the same batch.
    same(loader(data, repeat_first_batch=True).iterate(3, 5), batches[3:])
    same([repeating.batch(7)], batches[:1])


def test_epochs_end_a_run_on_one_batch_when_they_would_end_any_other(tmp_path):
    data = dataset(tmp_path, [example(n) for n in range(3)], num_epochs=2)
    repeating = loader(data, batch_size=2, repeat_first_batch=True)
    assert repeating.steps == len(list(repeating.iterate())) == 3
    assert not threads()


# ---- evaluation ---------------------------------------------------------------------------------


@pytest.mark.parametrize("workers", [0, 3])
def test_evaluation_sees_every_image_once_and_fills_up_the_last_batch(data, workers):
    evaluation = EvalLoader(data, batch_size=4, workers=workers)
    batches = list(evaluation)
    assert len(evaluation) == len(batches) == 2
    assert np.concatenate([b.records for b in batches]).tolist() == [0, 1, 2, 3, 4, 5, 6, -1]
    assert batches[1].image_weights.tolist() == [1, 1, 1, 0]
    assert evaluation.records == range(7)
    same(evaluation, batches)  # a second pass is the same


def test_evaluation_of_the_first_images_only(data):
    evaluation = EvalLoader(data, batch_size=4, max_examples=5, workers=0)
    assert [b.records.tolist() for b in evaluation] == [[0, 1, 2, 3], [4, -1, -1, -1]]
    assert evaluation.records == range(5)
    assert len(EvalLoader(data, batch_size=4, max_examples=99).records) == 7


def test_two_processes_evaluate_as_many_batches_each(data):
    halves = [EvalLoader(data, batch_size=4, process_index=p, process_count=2) for p in (0, 1)]
    assert [len(half) for half in halves] == [2, 2]
    records = [[b.records.tolist() for b in half] for half in halves]
    assert records == [[[0, 1], [4, 5]], [[2, 3], [6, -1]]]


# ---- what is bad --------------------------------------------------------------------------------


@pytest.mark.parametrize("workers", [0, 2])
def test_a_bad_image_stops_the_loop_with_its_place_and_ends_the_threads(tmp_path, workers):
    bad = dataset(tmp_path, [example(0), BROKEN])
    with pytest.raises(UserError, match=r"data\.record.*record 1"):
        list(loader(bad, workers=workers).iterate(0, 4))
    assert not threads()


@pytest.mark.parametrize("workers", [0, 2])
def test_a_bug_names_the_record_too(data, monkeypatch, workers):
    def fail(record):
        raise ZeroDivisionError

    monkeypatch.setattr(data, "open", fail)
    with pytest.raises(ZeroDivisionError) as caught:
        next(loader(data, workers=workers).iterate())
    assert "data.record" in caught.value.__notes__[0]
    assert not threads()


def test_a_dropped_image_leaves_a_row_of_weight_0(tmp_path):
    gap = loader(dataset(tmp_path, [example(0), BROKEN], data=DROP), batch_size=2, shuffle=False)
    batch = gap.batch(0)
    assert batch.image_weights.tolist() == [1, 0]
    assert batch.weights[1].sum() == 0
    assert (batch.images[1] == 0).all()
    # The boxes can be read, so that the image can be told from a row that only fills up.
    assert batch.records.tolist() == [0, 1]
    assert gap.stats.left_out == 1
    assert "1 unusable record left out" in gap.stats.summary()


def test_a_dropped_record_leaves_a_row_that_only_fills_up(tmp_path):
    unreadable = example(1)
    object.__setattr__(unreadable, "encoded", b"")
    data = dataset(tmp_path, [example(0), unreadable], data=DROP)
    gap = loader(data, batch_size=2, shuffle=False)
    batch = gap.batch(0)
    assert batch.records.tolist() == [0, -1]
    assert batch.image_weights.tolist() == [1, 0]
    assert gap.stats.left_out == 1


# ---- threads ------------------------------------------------------------------------------------


def test_leaving_the_loop_and_ctrl_c_end_the_threads(data):
    batches = loader(data, workers=3).iterate()
    next(batches)
    assert len(threads()) == 3
    batches.close()
    assert not threads()
    with pytest.raises(KeyboardInterrupt):
        for _ in loader(data, workers=3).iterate():
            raise KeyboardInterrupt
    assert not threads()


def test_no_more_batches_than_prefetch_are_made_ahead(data, monkeypatch):
    loaded, load = [], data.open
    monkeypatch.setattr(data, "open", lambda record: loaded.append(record) or load(record))
    batches = loader(data, workers=2, prefetch=2).iterate()
    next(batches)
    time.sleep(0.2)  # everything that was ordered is done by now
    assert len(loaded) == 3 * 4  # the batch in hand and two more
    batches.close()


def test_a_program_may_end_in_the_middle_of_a_loop(tmp_path, data):
    program = f"""
from stillbox.experiment import schema
from stillbox.inputs.dataset import open_dataset
from stillbox.inputs.loader import DevicePrefetcher, TrainLoader
records = schema.Records(paths=("{data.source.files[0].path}",), label_map="{data.label_map.where}")
data = open_dataset(schema.Data(), records, schema.OneStage(num_classes=4))
batches = DevicePrefetcher(TrainLoader(data, batch_size=4, workers=2).iterate(), lambda b: b)
print(next(batches).images.shape)
"""
    command = [sys.executable, "-c", program]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stdout == "(4, 300, 300, 3)\n"
    assert done.stderr == ""
