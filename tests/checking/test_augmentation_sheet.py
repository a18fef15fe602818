import cv2
import numpy as np

from stillbox.checking.augmentation_sheet import epochs_sheet, operations_sheet
from stillbox.experiment import schema
from stillbox.inputs.augment.autoaugment import OPERATIONS
from stillbox.inputs.dataset import open_dataset
from stillbox.inputs.loader import TrainLoader
from tests.helpers import refused
from tests.inputs.helpers import MODEL, dataset, example, write

CELL, GAP = 360, 8


def tiles(sheet, columns, cell=CELL):
    """Cuts a sheet of one row into its pictures, without the captions."""
    assert sheet.shape[1] == columns * (cell + GAP) + GAP
    lefts = [GAP + number * (cell + GAP) for number in range(columns)]
    # 40 x 60 pixels enlarged to fill a cell, below a caption.
    height = cell * 40 // 60
    return [sheet[-GAP - height + 2 : -GAP - 2, left + 2 : left + cell - 2] for left in lefts]


def test_each_epoch_shows_the_images_of_training(tmp_path):
    records = dataset(
        tmp_path,
        [example(number, boxes=()) for number in range(3)],
        model=schema.OneStage(num_classes=4, resizer=schema.FixedShapeResizer(height=40, width=60)),
    )
    steps = [schema.RandomAdjustBrightness(max_delta=0.4)]
    loader = TrainLoader(
        records, augmentations=steps, batch_size=1, seed=7, shuffle=False, workers=0
    )
    sheet = epochs_sheet(records, steps, seed=7, images=1, epochs=3)
    stored, *seen = tiles(sheet, 4)
    assert abs(stored.mean() - records.image(0).mean()) < 3
    brightness = [np.asarray(loader.batch(3 * epoch).images).mean() for epoch in range(3)]
    assert np.ptp(brightness) > 20
    np.testing.assert_allclose([picture.mean() for picture in seen], brightness, atol=3)


def test_combined_records_are_those_of_training(tmp_path):
    records = dataset(
        tmp_path,
        [example(number, boxes=()) for number in range(3)],
        model=schema.OneStage(num_classes=4, resizer=schema.FixedShapeResizer(height=40, width=60)),
    )
    steps = [schema.Mosaic(height=40, width=60)]
    loader = TrainLoader(
        records, augmentations=steps, batch_size=1, seed=7, shuffle=False, workers=0
    )
    _, *seen = tiles(epochs_sheet(records, steps, seed=7, images=1, epochs=2), 3)
    for epoch, shown in enumerate(seen):
        picture = np.asarray(loader.batch(3 * epoch).images[0])
        small = cv2.resize(shown, (60, 40), interpolation=cv2.INTER_AREA)
        assert np.abs(small - picture).mean() < 8
        assert np.abs(small[::-1] - picture).mean() > 20


def test_boxes_are_drawn_at_their_augmented_places(tmp_path):
    records = dataset(tmp_path, [example(0, boxes=[(0.2, 0.0, 0.8, 0.2)])])
    flip = [schema.RandomHorizontalFlip(probability=1.0)]
    stored, seen = tiles(epochs_sheet(records, flip, seed=0, images=1, epochs=1), 2)
    plain = dataset(tmp_path, [example(0, boxes=())])
    without = tiles(epochs_sheet(plain, flip, seed=0, images=1, epochs=1), 2)
    for picture, bare, side in ((stored, without[0], 0), (seen, without[1], 1)):
        drawn = np.abs(picture.astype(int) - bare).sum(axis=(0, 2)) > 100
        left, right = drawn[: CELL // 2].sum(), drawn[CELL // 2 :].sum()
        assert (right > left) == bool(side)


def test_images_are_spread_over_the_records(tmp_path):
    records = dataset(tmp_path, [example(number) for number in range(5)])
    asked = []
    load = records.load
    records.load = lambda record: asked.append(record) or load(record)
    epochs_sheet(records, (), seed=0, images=3, epochs=1)
    assert asked == [0, 2, 4]
    asked.clear()
    epochs_sheet(records, (), seed=0, images=9, epochs=1)
    assert asked == [0, 1, 2, 3, 4]


def test_every_operation_has_its_picture(tmp_path):
    records = dataset(tmp_path, [example(number) for number in range(2)])
    sheet = operations_sheet(records, seed=0, images=2, level=8, contrast="original")
    # 26 pictures in 9 columns are 3 rows for each image.
    assert len(OPERATIONS) == 25
    assert sheet.shape[1] == 9 * 308 + GAP
    rows = np.flatnonzero(np.diff((sheet != 255).any(axis=(1, 2)).astype(int)) == 1)
    assert len(rows) >= 6
    about_mean = operations_sheet(records, seed=0, images=2, level=8, contrast="mean")
    weaker = operations_sheet(records, seed=0, images=2, level=2, contrast="original")
    assert not np.array_equal(sheet, about_mean)
    assert not np.array_equal(sheet, weaker)


def test_records_without_an_image_are_left_out_or_refused(tmp_path):
    broken = example(0, encoded=b"no image")
    records = write(tmp_path, [broken, example(1)])
    lenient = open_dataset(schema.Data(bad_records="drop"), records, MODEL)
    assert epochs_sheet(lenient, (), seed=0, images=2, epochs=1).shape[0] < 2 * CELL
    with refused("data.train.paths"):
        epochs_sheet(lenient, (), seed=0, images=1, epochs=1)
