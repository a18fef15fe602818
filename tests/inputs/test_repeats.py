"""Repeat factors: which samples an epoch draws more than once."""

from collections import Counter
from dataclasses import replace
from itertools import islice

import numpy as np
import pytest

from stillbox.experiment import schema
from stillbox.inputs.loader import TrainLoader, open_train_loader
from stillbox.inputs.repeats import repeated
from tests.inputs.helpers import MODEL, dataset, example, write

BOX = (0.1, 0.2, 0.5, 0.6)
FLIP = (schema.RandomHorizontalFlip(),)


def examples():
    """Ten images with a disc; the fourth has a ring too."""
    return [example(n, [BOX] * 2, [1, 2 if n == 3 else 1]) for n in range(10)]


@pytest.fixture
def data(tmp_path):
    return dataset(tmp_path, examples(), repeat_threshold=0.4)


def loader(data, **options):
    settings = {"augmentations": FLIP, "seed": 3, "batch_size": 5, "workers": 0}
    return TrainLoader(data, **settings | options)


def records(batches):
    return np.concatenate([batch.records for batch in batches])


def same(batches, others):
    pairs = zip(batches, others, strict=True)
    return all(a.tobytes() == b.tobytes() for pair in pairs for a, b in zip(*pair, strict=True))


def test_a_factor_is_the_root_of_the_threshold_over_the_share(data):
    # Rings are in a tenth of the images: sqrt(0.4 / 0.1) = 2. Discs are in all of them.
    assert data.factors.tolist() == [4096 * (2 if n == 3 else 1) for n in range(10)]


def test_without_a_rare_class_every_sample_comes_once_an_epoch(tmp_path):
    common = dataset(tmp_path, examples(), repeat_threshold=0.1)
    for epoch in range(3):
        drawn = records(loader(common).iterate(2 * epoch, 2 * epoch + 2))
        assert sorted(drawn) == list(range(10))


def test_an_epoch_keeps_its_length_and_draws_in_proportion(data):
    epochs = 300
    drawn = records(loader(data).iterate(0, 2 * epochs)).reshape(epochs, 10)
    counts = np.array([np.bincount(epoch, minlength=10) for epoch in drawn])
    # 10 draws for 9 + 2 parts: 2 * 10 / 11 = 1.82 for the image with a ring, 0.91 for others.
    assert set(np.unique(counts[:, 3])) == {1, 2}
    assert set(np.unique(np.delete(counts, 3, axis=1))) == {0, 1}
    np.testing.assert_allclose(counts.mean(0), [20 / 11 if n == 3 else 10 / 11 for n in range(10)],
                               atol=0.06)  # fmt: skip
    # The images that make room differ by epoch.
    assert len({tuple(epoch) for epoch in counts}) > 5


def test_copies_are_augmented_apart(data):
    flips = Counter()
    for batch in loader(data, batch_size=10).iterate(0, 40):
        rows = np.flatnonzero(batch.records == 3)
        if len(rows) == 2:
            flips[len({batch.boxes[row].tobytes() for row in rows})] += 1
    assert flips[1] and flips[2]


def test_other_images_are_drawn_in_the_same_proportion(data, tmp_path):
    rng = np.random.default_rng(0)
    drawn = [int((data.draw(rng).class_ids == 2).any()) for _ in range(1100)]
    # 2 of 11 parts, and four standard deviations of sqrt(1100 * 2 / 11 * 9 / 11).
    assert abs(sum(drawn) - 200) < 52
    plain = dataset(tmp_path, examples())
    assert [plain._index_at(share) for share in (0.0, 0.39, 0.999)] == [0, 3, 9]
    # The fourth has two parts of eleven.
    shares = [part / 11 + 0.01 for part in range(11)]
    assert [data._index_at(share) for share in shares] == [0, 1, 2, 3, 3, 4, 5, 6, 7, 8, 9]


def test_a_resumed_run_any_threads_and_any_processes_see_the_same(data, tmp_path):
    whole = list(islice(loader(data).iterate(), 7))
    assert same(whole[3:], loader(data, workers=3).iterate(3, 7))
    experiment = schema.Experiment(
        data=schema.Data(train=replace(write(tmp_path, examples()), repeat_threshold=0.4), seed=3),
        model=MODEL,
        train=schema.Training(batch_size=6, augmentations=FLIP),
    )
    alone = list(open_train_loader(experiment, workers=0).iterate(0, 4))
    parts = [
        open_train_loader(experiment, workers=0, process_index=n, process_count=2).iterate(0, 4)
        for n in range(2)
    ]
    joined = (
        [np.concatenate(rows) for rows in zip(*pair, strict=True)]
        for pair in zip(*parts, strict=True)
    )
    assert same(alone, joined)
    beside = replace(experiment, data=replace(experiment.data, processes=1))
    assert same(alone, open_train_loader(beside, workers=1).iterate(0, 4))


def test_the_tiles_that_show_a_rare_class_are_repeated(tmp_path):
    tiled = schema.Data(tiles=schema.Tiles(side=32, overlap=0), bad_records="drop")
    # Each image has 2 by 2 tiles. The ring lies in the last tile of the first image alone.
    corners = [[(0, 0, 0.4, 0.4), (0.6, 0.6, 1, 1)], [(0, 0, 0.4, 0.4)]]
    images = [
        example(n, boxes, [1, 2][: len(boxes)], size=(64, 64)) for n, boxes in enumerate(corners)
    ]
    images.append(example(2, encoded=b"no image", claimed=(64, 64)))
    data = dataset(tmp_path, images, data=tiled, repeat_threshold=0.5)
    # Of 9 tiles, 1 has the ring, sqrt(9 * 0.5 / 1), and 2 or 3 have a disc, sqrt(4.5 / n).
    units = data.factors / 4096
    assert len(units) == len(data)
    assert units[3] == pytest.approx(np.sqrt(len(data) * 0.5), abs=1e-3)
    assert units[0] > 1 and (units[[1, 2, 5, 6, 7]] == 1).all()


def test_crowds_that_are_no_targets_make_no_image_rare(tmp_path):
    crowd = [*examples()[:9], example(9, [BOX], [4], crowds=(0,))]
    trained = dataset(tmp_path, crowd, repeat_threshold=0.4)
    ignored = dataset(tmp_path, crowd, repeat_threshold=0.4, crowds="ignore")
    assert (trained.factors[9], ignored.factors[9]) == (2 * 4096, 4096)


@pytest.mark.parametrize("mix", [False, True])
def test_large_factors_are_exact(mix):
    factors = np.array([4096] * 999_999 + [4096 * 1000])
    words = np.random.default_rng(0).integers(0, 2**63, 1_000_001).astype(np.uint64)
    draws = repeated(np.arange(1_000_000), factors, words, mix=mix)
    assert len(draws.samples) == 1_000_000
    # 1000 of 1,000,999 parts.
    copies = draws.copies[draws.samples == 999_999]
    assert len(copies) in (999, 1000)
    assert sorted(copies) == list(range(len(copies)))
