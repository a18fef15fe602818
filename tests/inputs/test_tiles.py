"""Tiles as samples: what they show, their order, and what is decoded for them."""

from dataclasses import replace
from itertools import islice

import numpy as np
import pytest
from PIL import Image

from stillbox.experiment import schema
from stillbox.experiment.values import field_marks
from stillbox.inputs import dataset as datasets
from stillbox.inputs.decode import ImageError, decode_image
from stillbox.inputs.loader import EvalLoader, TrainLoader, open_train_loader
from stillbox.inputs.memory import RecentImages
from stillbox.inputs.sample import Sample, StoredSample
from stillbox.inputs.tiles import tile_of
from stillbox.records.tile_grid import LEAST_TILE, MOST_OVERLAP
from stillbox.records.tiling import TileOptions, tile_example
from tests.helpers import refused
from tests.inputs.helpers import dataset, example, jpeg, picture, saved, write

TILES = schema.Tiles(side=40, overlap=0.25)
DATA = schema.Data(tiles=TILES)
SIZES = [(100, 130), (40, 30), (64, 40), (90, 41)]


def boxes(number):
    rng = np.random.default_rng(number)
    corners = rng.uniform(0, 0.9, (12, 2)).astype(np.float32)
    sides = rng.uniform(0.02, 0.4, (12, 2)).astype(np.float32)
    return np.concatenate([corners, np.minimum(corners + sides, 1)], axis=1)


def examples(form="PNG"):
    pictures = [picture(*size, seed=number) for number, size in enumerate(SIZES)]
    files = [
        jpeg(image) if form == "JPEG" else saved(Image.fromarray(image), form) for image in pictures
    ]
    return [
        example(number, boxes(number), size=SIZES[number], encoded=file, crowds=(3,))
        for number, file in enumerate(files)
    ]


def same(first, second):
    return all(np.array_equal(*pair) for pair in zip(first, second, strict=True))


def test_the_ranges_of_the_schema_are_what_the_grid_takes():
    ranges = field_marks(schema.Tiles, schema.Range)
    assert (ranges["side"].low, ranges["overlap"].high) == (LEAST_TILE, MOST_OVERLAP)


def test_samples_are_the_tiles_that_data_tile_writes(tmp_path):
    data = dataset(tmp_path, examples(), data=DATA)
    options = TileOptions(tile=40, overlap=0.25)
    written = [tile for record in examples() for tile in tile_example(record, options)]
    # Tiles begin every 30 pixels at most: 1 + (100 - 40) / 30 = 3 rows, 1 + (130 - 40) / 30 = 4
    # columns. 64 - 40 and 41 - 40 need one more, 90 - 40 two.
    assert len(data) == len(written) == 3 * 4 + 1 + 2 + 3 * 2
    for index, tile in enumerate(written):
        sample = data.load(index)
        assert np.array_equal(sample.boxes, tile.boxes)
        assert np.array_equal(sample.class_ids, tile.class_ids)
        assert np.array_equal(sample.image, decode_image(tile.encoded))
    assert len(data.source) == 4
    assert [data.record_of(index) for index in (0, 11, 12, 13, 15, 20)] == [0, 0, 1, 2, 3, 3]


def test_the_whole_image_is_the_last_sample_of_an_image_that_is_cut(tmp_path):
    tiles = replace(TILES, whole_image=True)
    data = dataset(tmp_path, examples(), data=schema.Data(tiles=tiles))
    assert [data.load(index).size for index in (12, 13)] == [(100, 130), (40, 30)]
    assert len(data) == 13 + 1 + 3 + 7


def test_crowds_are_treated_before_images_are_cut(tmp_path):
    kept, dropped = (
        dataset(tmp_path, examples(), data=DATA, crowds=crowds) for crowds in ("ignore", "drop")
    )
    for index in range(len(kept)):
        sample = kept.load(index)
        assert np.array_equal(sample.boxes[sample.weights > 0], dropped.load(index).boxes)


@pytest.mark.parametrize("changes", [{"cache_images": True}, {"reduced_decoding": True}])
def test_no_pixel_depends_on_what_is_kept(tmp_path, changes):
    data = [
        dataset(tmp_path, examples("JPEG"), data=replace(DATA, **more)) for more in ({}, changes)
    ]
    for index in range(len(data[0])):
        first, second = (each.open(index) for each in data)
        assert isinstance(second, StoredSample) == ("reduced_decoding" in changes)
        assert np.array_equal(first.decoded().image, second.decoded().image)
        assert np.array_equal(first.boxes, second.boxes)


def test_an_image_is_decoded_once_for_tiles_that_follow_each_other(tmp_path, monkeypatch):
    decoded = []

    def decode(file, kind):
        decoded.append(file)
        return decode_image(file, kind=kind)

    monkeypatch.setattr(datasets, "decode_image", decode)
    loader = EvalLoader(dataset(tmp_path, examples(), data=DATA), batch_size=4, workers=3)
    batches = list(loader)
    assert len(decoded) == 4
    rows = np.concatenate([batch.records for batch in batches])
    assert rows.tolist() == [*range(21), -1, -1, -1]


def test_examples_of_an_evaluation_are_images(tmp_path):
    loader = EvalLoader(dataset(tmp_path, examples(), data=DATA), batch_size=4, max_examples=2)
    assert (loader.records, len(loader)) == (range(2), 4)


def test_recent_images_stay_below_their_limit():
    kept, read = RecentImages(limit=3 * 30 * 40 * 3), []

    def sample(record):
        read.append(record)
        return Sample(np.zeros((30, 40, 3), np.uint8), *EMPTY)

    for record in (0, 1, 2, 0, 3, 0, 1):
        assert kept.get(record, sample).size == (30, 40)
    assert read == [0, 1, 2, 3, 1]


EMPTY = (np.zeros((0, 4), np.float32), np.zeros(0, np.int32), np.zeros(0, np.float32))


@pytest.fixture
def loader(tmp_path):
    """The function from arguments to a loader of the tiles of `examples`."""

    def make(**options):
        data = dataset(tmp_path, examples(), data=DATA)
        steps = (schema.RandomHorizontalFlip(), schema.SsdRandomCrop())
        return TrainLoader(data, augmentations=steps, seed=3, batch_size=7, **options)

    return make


def test_every_tile_comes_once_an_epoch_whatever_threads_make_it(loader):
    batches = list(loader(workers=0).iterate(0, 6))
    for epoch in (batches[:3], batches[3:]):
        rows = np.concatenate([batch.records for batch in epoch])
        assert sorted(rows) == list(range(21))
    for workers in (1, 3):
        for first, second in zip(batches, loader(workers=workers).iterate(0, 6), strict=True):
            assert same(first, second)


def test_a_resumed_run_sees_the_same_tiles(loader):
    batches = list(islice(loader(workers=2).iterate(), 5))
    for first, second in zip(batches[2:], loader(workers=1).iterate(2, 5), strict=True):
        assert same(first, second)


def test_processes_of_a_job_and_of_inputs_share_the_tiles(tmp_path):
    records = write(tmp_path, examples())
    model = schema.OneStage(num_classes=4, resizer=schema.FixedShapeResizer(height=24, width=32))
    experiment = schema.Experiment(
        data=replace(DATA, train=records), model=model, train=schema.Training(batch_size=6)
    )
    whole = open_train_loader(experiment, workers=0).batch(1)
    parts = [
        open_train_loader(experiment, workers=0, process_index=index, process_count=2).batch(1)
        for index in range(2)
    ]
    assert same(whole, [np.concatenate(pair) for pair in zip(*parts, strict=True)])
    apart = replace(experiment, data=replace(experiment.data, processes=1))
    made = open_train_loader(apart, workers=1)
    assert same(whole, next(iter(made.iterate(1, 2))))


def test_a_record_that_cannot_be_used_is_one_sample(tmp_path):
    broken = [example(0, encoded=b"no image", claimed=(400, 400)), *examples()]
    broken[0] = replace(broken[0], height=0, width=0)
    data = dataset(tmp_path, broken, data=replace(DATA, bad_records="drop"))
    assert len(data) == 22
    assert data.load(0) is None
    with refused(data.source.location(0)):
        dataset(tmp_path, broken, data=DATA).load(0)


def test_an_image_that_is_smaller_than_its_header_says_is_bad(tmp_path):
    sample = dataset(tmp_path, examples()).load(0)
    assert tile_of(sample, (60, 90, 100, 130)).size == (40, 40)
    with pytest.raises(ImageError):
        tile_of(sample, (70, 90, 110, 130))


def test_a_tile_is_named_by_its_corner(tmp_path):
    data = dataset(tmp_path, examples(), data=DATA)
    assert data.describe(5).endswith("(image image-0), the tile at row 30, column 30")
