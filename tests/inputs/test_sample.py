"""JPEG files that are decoded after crops and mirroring: the same pixels, less work."""

from dataclasses import replace

import cv2
import numpy as np
import pytest
from PIL import Image

from stillbox.experiment import schema
from stillbox.inputs.augment import apply_augmentations
from stillbox.inputs.decode import ImageError, decode_image, read_jpeg_header, upper_rows
from stillbox.inputs.loader import TrainLoader, sample_generator
from stillbox.inputs.sample import Sample, StoredImage, StoredSample
from tests.helpers import refused
from tests.inputs.helpers import dataset, example, picture, saved
from tests.inputs.test_loader import same

SIZE = (150, 203)
NOISE = np.random.default_rng(0).normal(0, 20, (*SIZE, 3))
ROUGH = (picture(*SIZE) + NOISE).clip(0, 255).astype(np.uint8)
SAMPLINGS = {
    name: getattr(cv2, f"IMWRITE_JPEG_SAMPLING_FACTOR_{name}")
    for name in ("411", "420", "422", "440", "444")
}


FORGED_HEADER = bytes.fromhex("ffc00011080fa00fa003011100021100031100ffda000c03010002110311003f00")


def encoded(*options):
    return cv2.imencode(".jpg", ROUGH, list(options))[1].tobytes()


FILES = {
    **{name: encoded(cv2.IMWRITE_JPEG_SAMPLING_FACTOR, kind) for name, kind in SAMPLINGS.items()},
    "gray": saved(Image.fromarray(ROUGH[..., 0]), "JPEG"),
    "progressive": encoded(cv2.IMWRITE_JPEG_PROGRESSIVE, 1),
    "restarts": encoded(cv2.IMWRITE_JPEG_RST_INTERVAL, 2),
    "CMYK": saved(Image.fromarray(ROUGH).convert("CMYK"), "JPEG"),
    "EXIF": saved(Image.fromarray(ROUGH), "JPEG", exif=b"Exif\0\0MM\0*\0\0\0\x08\0\0\0\0\0\0"),
}


@pytest.mark.parametrize("name", FILES)
def test_windows_are_those_of_the_whole_image(name, capfd):
    image, whole = StoredImage.read(FILES[name]), decode_image(FILES[name])
    assert image.size == SIZE
    for y, x, height, width in ((0, 0, *SIZE), (0, 5, 1, 9), (3, 0, 30, 203), (40, 100, 57, 3)):
        window = image.crop(y, x, height, width)
        expected = whole[y : y + height, x : x + width]
        np.testing.assert_array_equal(window.pixels(), expected)
        np.testing.assert_array_equal(window.mirror().pixels(), expected[:, ::-1])
    # libjpeg reports what it finds superfluous.
    assert capfd.readouterr().err == ""


@pytest.mark.parametrize("name", SAMPLINGS)
def test_every_number_of_rows(name):
    header, whole = read_jpeg_header(FILES[name]), decode_image(FILES[name])
    divided = 0
    for rows in range(1, SIZE[0] + 1):
        part = upper_rows(FILES[name], header, rows)
        divided += part is not FILES[name]
        np.testing.assert_array_equal(decode_image(part)[:rows], whole[:rows])
    assert divided == SIZE[0] - 8 - 32 - 1


def test_what_has_more_than_one_scan_is_decoded_whole():
    for name in ("progressive", "restarts"):
        assert not read_jpeg_header(FILES[name]).divisible
    followed = FILES["420"] + b"\0"
    assert not read_jpeg_header(followed).divisible
    assert read_jpeg_header(FILES["420"]).divisible


@pytest.mark.parametrize("cut", [0, 2, 20, 200, 600])
def test_what_is_no_whole_header_is_none(cut):
    assert read_jpeg_header(FILES["420"][:cut]) is None
    assert StoredImage.read(saved(Image.fromarray(ROUGH), "PNG")) is None


def test_a_truncated_file_is_found_also_by_a_crop_above_the_end():
    image = StoredImage.read(FILES["420"][:-500]).crop(0, 0, 10, 10)
    with pytest.raises(ImageError, match="truncated"):
        image.pixels()


def test_a_second_header_that_decoders_do_not_read_is_not_read():
    # Decoders pass over the marker 0x01 alone; by its length it would reach into the segment after
    # it, which has a header of 4,000 x 4,000 pixels.
    content = bytes(65_500) + FORGED_HEADER
    segment = b"\xff\xe0" + (len(content) + 2).to_bytes(2) + content
    data = b"\xff\xd8\xff\x01" + segment + FILES["444"][2:]
    assert decode_image(data).shape == (*SIZE, 3)
    image = StoredImage.read(data)
    assert image.size == SIZE
    with pytest.raises(ImageError, match="smaller than its header says"):
        image.crop(2000, 2000, 100, 100).pixels()


def test_crops_and_mirroring_in_any_order():
    image, whole = StoredImage.read(FILES["444"]), decode_image(FILES["444"])
    image, whole = image.mirror().crop(10, 20, 100, 150), whole[:, ::-1][10:110, 20:170]
    image, whole = image.crop(5, 6, 70, 80), whole[5:75, 6:86]
    image, whole = image.mirror().crop(1, 2, 60, 50), whole[:, ::-1][1:61, 2:52]
    np.testing.assert_array_equal(image.pixels(), whole)


@pytest.mark.parametrize(
    "augmentations",
    [
        (schema.RandomHorizontalFlip(probability=1), schema.SsdRandomCrop()),
        (schema.SsdRandomCropFixedAspectRatio(), schema.RandomHorizontalFlip()),
        (schema.RandomCropImage(), schema.RandomRotation90(probability=1), schema.SsdRandomCrop()),
        (schema.RandomAdjustContrast(), schema.RandomHorizontalFlip(probability=1)),
    ],
)
def test_augmentations_make_the_same_sample(augmentations):
    boxes = np.float32([[0.1, 0.2, 0.6, 0.9], [0.5, 0.1, 0.9, 0.3]])
    rest = boxes, np.int32([1, 2]), np.float32([1, 1])
    stored = StoredSample(np.empty((0, 0, 3), np.uint8), *rest, StoredImage.read(FILES["420"]))
    for seed in range(5):
        left, other = (
            apply_augmentations(augmentations, sample, np.random.default_rng(seed))
            for sample in (stored, Sample(decode_image(FILES["420"]), *rest))
        )
        assert left.size == other.size
        left = left.decoded()
        for name in ("image", "boxes", "class_ids", "weights"):
            np.testing.assert_array_equal(getattr(left, name), getattr(other, name))


@pytest.mark.parametrize("factor", [2, 4, 8])
@pytest.mark.parametrize("by", ["OpenCV", "Pillow"])
def test_reduced_decoding_averages_squares(factor, by, monkeypatch):
    # Subsampling of colours would change the means.
    data = saved(Image.fromarray(picture(160, 240)), "JPEG", quality=100, subsampling=0)
    means = decode_image(data).reshape(160 // factor, factor, 240 // factor, factor, 3).mean((1, 3))
    if by == "Pillow":
        monkeypatch.setattr(cv2, "imdecode", lambda *_: None)
    # Rounding, and the highest frequencies, which the transform leaves out.
    difference = abs(decode_image(data, reduction=factor) - means)
    assert difference.mean() < 0.5
    assert difference.max() < 4


@pytest.mark.parametrize("by", ["OpenCV", "Pillow"])
def test_reduced_sizes_are_rounded_up(by, monkeypatch):
    if by == "Pillow":
        monkeypatch.setattr(cv2, "imdecode", lambda *_: None)
    for name in ("420", "progressive", "CMYK"):
        shapes = [decode_image(FILES[name], reduction=factor).shape for factor in (2, 4, 8)]
        assert shapes == [(75, 102, 3), (38, 51, 3), (19, 26, 3)]


# ---- Augmentations that combine records, and that end before training does, in the loader --------


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
    assert dataset(tmp_path, [BROKEN], data=DROP).draw(rng) is None


def test_a_damaged_partner_is_named_not_the_record_that_it_is_combined_with(tmp_path):
    some = dataset(tmp_path, [example(0), BROKEN])
    with refused("data.record: record 1 (byte 2167)") as caught:
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


@pytest.mark.parametrize("augmentation", MIXED, ids=lambda augmentation: augmentation.kind)
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
    endless = loader(data, [replace(MIXED[1], skip_last_steps=2)])
    same(endless.iterate(0, 3), loader(data, MIXED[1:2]).iterate(0, 3))
