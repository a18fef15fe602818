"""Images of more than 8 bits, of floats, and almost of one colour."""

import io
import pickle
from dataclasses import replace
from functools import partial

import cv2
import numpy as np
import pytest
from PIL import Image

from stillbox.predicting.images import read_image
from stillbox.records.conversion import ConversionOptions, convert
from stillbox.records.folder import convert_folder
from stillbox.records.image_files import inspect_image, prepare_image
from stillbox.records.pixels import FEW_VALUES, Brightest, few_values, in_eight_bits
from stillbox.records.problems import BadRecordError, ConversionLog
from stillbox.records.source import ExampleSource
from stillbox.records.tiling import TileOptions, tile_example
from tests.records.builders import CAT_DOG, image_bytes, make_example
from tests.records.test_conversion import item_of
from tests.small import SHARED, needs_shared

RAMP = np.tile(np.arange(0, 256, 4, dtype=np.uint8), (40, 1))
"""`[40, 64]`, 0 to 252."""


def saved(pixels, kind="PNG"):
    file = io.BytesIO()
    Image.fromarray(pixels).save(file, kind)
    return file.getvalue()


def deep(bits, kind="PNG", pixels=RAMP):
    """Integers of `bits` bits: the upper 8 are `pixels`, the others are set."""
    whole = (pixels.astype(np.int64) + 1) * 2 ** (bits - 8) - 1
    return saved(whole.astype(np.int32 if bits > 16 else np.uint16), kind)


def gray(encoded):
    return np.asarray(Image.open(io.BytesIO(encoded)).convert("RGB"))[..., 1]


@pytest.mark.parametrize("most", [1, 255, 65535])
def test_floats_are_scaled_by_the_brightest(most):
    values = np.where(RAMP == 252, most, RAMP / 255 * most).astype(np.float32)
    data = saved(values, "TIFF")
    image = prepare_image(data, (0, 0))
    assert ("image of floats", f"0 to {most}", "scaled to 8 bits") in image.notes
    scaled = gray(image.encoded)
    # A float may lie below its integer.
    assert np.abs(scaled - values / most * 255).max() <= 1
    for whole in (data, Image.fromarray(values)):
        np.testing.assert_array_equal(read_image(whole)[0][..., 0], scaled)


@pytest.mark.parametrize("wrong", [np.nan, np.inf, -1.0, 65536.0, "integer"])
def test_what_is_no_brightness_is_refused_by_its_range(wrong):
    pixels = RAMP.astype(np.int32 if wrong == "integer" else np.float32)
    pixels[3, 3] = -5 if wrong == "integer" else wrong
    data = saved(pixels, "TIFF")
    with pytest.raises(BadRecordError, match=r"no brightness: [FI] from .* to .*; save the image"):
        prepare_image(data, (0, 0))
    for image in (data, Image.fromarray(pixels)):
        with pytest.raises(ValueError, match="pixels that are no brightness"):
            read_image(image)


def colours(bits, kind):
    """Colours of `bits` bits in 16: the upper 8 of them are the ramp."""
    whole = (RAMP.astype(np.uint16) << (bits - 8))[..., None].repeat(3, axis=2)
    return cv2.imencode(kind, whole)[1].tobytes()


@pytest.mark.parametrize("kind", [".png", ".tiff"])
def test_colours_of_16_bits_are_kept_if_the_upper_8_show_something(kind):
    image = prepare_image(colours(16, kind), (0, 0))
    np.testing.assert_array_equal(gray(image.encoded), RAMP)
    assert image.notes[0][0] == "image with 16 bits per channel"
    # 252 * 16 in 16 bits: 0 to 15 in the upper 8.
    with pytest.raises(BadRecordError, match=r"16 bits per channel: the upper 8 hold 16 of 256"):
        prepare_image(colours(12, kind), (0, 0))


def test_floats_of_colours_name_the_remedy():
    data = cv2.imencode(".tiff", np.zeros((8, 8, 3), np.float32))[1].tobytes()
    with pytest.raises(BadRecordError, match="Pillow does not read; save it with 8 bits"):
        inspect_image(data)


def yolo_folder(root, images):
    """A folder with a box in each image, named `set/name`."""
    for name, data in images.items():
        image = root / "images" / name
        label = (root / "labels" / name).with_suffix(".txt")
        for path in (image, label):
            path.parent.mkdir(parents=True, exist_ok=True)
        image.write_bytes(data)
        label.write_text("0 0.5 0.5 0.5 0.5\n")
    (root / "data.yaml").write_text("train: images/train\nval: images/val\nnames: [bolt]\n")
    return root


def stored_pixels(paths):
    source = ExampleSource([paths])
    return {
        example.filename: gray(example.encoded)
        for example in map(source.example, range(len(source)))
    }


def test_all_images_of_a_folder_are_scaled_alike(tmp_path):
    dark = RAMP // 8
    images = {"train/a.png": deep(12, pixels=dark), "val/b.png": deep(12)}
    converted = convert_folder(yolo_folder(tmp_path / "in", images), tmp_path / "out")
    np.testing.assert_array_equal(stored_pixels(converted.train)["a.png"], dark)
    np.testing.assert_array_equal(stored_pixels(converted.validation)["b.png"], RAMP)
    # By itself it has 31 << 4 | 15 at most, 511, and so 10 bits: the upper 8 are 4 times as bright.
    alone = gray(prepare_image(images["train/a.png"], (0, 0)).encoded)
    np.testing.assert_array_equal(alone, 4 * dark + 3)


def test_a_dark_image_among_others_of_16_bits_stays_dark(tmp_path):
    dark = RAMP // 8
    images = {"train/a.png": deep(16, pixels=dark), "val/b.png": deep(16)}
    converted = convert_folder(yolo_folder(tmp_path / "in", images), tmp_path / "out")
    np.testing.assert_array_equal(stored_pixels(converted.train)["a.png"], dark)
    source = ExampleSource([converted.validation])
    assert source.example(0).encoded == images["val/b.png"]


def test_a_set_is_measured_before_its_engine_runs(tmp_path):
    seen = []

    def engine(function, items):
        if isinstance(function, partial):  # of the job; the other measures
            seen.append(pickle.loads(pickle.dumps(function)).args[0].brightest)
        return map(function, items)

    def converted(name, brightest=None):
        item = replace(item_of(tmp_path, [[1, 1, 9, 9]], 0, 0), path=tmp_path / name)
        item.path.write_bytes(deep(12))
        log, options = ConversionLog("fail", "fail"), ConversionOptions(overwrite=True)
        more = {"engine": engine, "brightest": brightest}
        convert([item], CAT_DOG, tmp_path / "out", "a", options=options, log=log, **more)

    converted("a.png")
    converted("a.png", Brightest(integer=7))
    # By its name a file that cannot be deep, and is not opened.
    converted("a.jpg")
    # 253 * 16 - 1.
    assert seen == [(4047, 0), (7, 0), (0, 0)]


def test_tiles_are_scaled_like_their_image():
    data = deep(12, pixels=np.repeat(RAMP, 2, axis=1))
    example = make_example(encoded=data, height=40, width=128, filename="a.png")
    tiles = tile_example(example, TileOptions(tile=64, overlap=0.0))
    # The first has the darker half, which needs 11 bits alone: 12 are taken, as for the whole.
    scaled = np.concatenate([gray(tile.encoded) for tile in tiles], axis=1)
    np.testing.assert_array_equal(scaled, np.repeat(RAMP, 2, axis=1))


@pytest.mark.parametrize(
    ("low", "high", "count"), [(0, 0, 1), (0, 15, 16), (100, 131, 32), (100, 132, 0), (0, 255, 0)]
)
@pytest.mark.parametrize("mode", ["L", "RGB", "RGBA", "P", "LA"])
def test_few_values_are_counted(low, high, count, mode):
    pixels = np.full((40, 60), low, np.uint8)
    pixels[17, 23] = high  # one pixel decides, which no sample shows
    image = Image.fromarray(pixels).convert(mode)
    if mode.endswith("A"):
        image.putalpha(Image.fromarray(RAMP[:, :60]))
    assert few_values(image) == count
    file = io.BytesIO()
    image.save(file, "PNG")
    for quick in (False, True):
        assert inspect_image(file.getvalue(), quick=quick).few_values == count
    assert inspect_image(file.getvalue(), whole=False).few_values == 0
    notes = [note for note in prepare_image(file.getvalue(), (0, 0)).notes if note[0] == FEW_VALUES]
    assert notes == ([(FEW_VALUES, f"{count} of 256", "kept")] if count else [])


def test_flat_colours_and_other_images_use_many_values():
    drawn = np.zeros((40, 60, 3), np.uint8)
    drawn[10:20, 10:20] = (200, 0, 0)
    assert few_values(Image.fromarray(drawn)) == 0
    assert few_values(Image.new("RGB", (9, 9), (200, 10, 0))) == 1
    assert few_values(Image.fromarray(drawn).convert("CMYK")) == 0
    for data in (image_bytes(), image_bytes(kind="PNG", mode="1")):
        assert inspect_image(data).few_values == inspect_image(data, quick=True).few_values == 0


def test_images_of_8_bits_are_returned_as_they_are():
    image = Image.fromarray(RAMP)
    assert in_eight_bits(image, Brightest(4095, 1.0)) is image


@needs_shared
@pytest.mark.parametrize("name", ["tiff_float01", "i_png_12bit"])
def test_folders_of_deep_images_are_not_black(tmp_path, name):
    folder = SHARED / "cases/data" / name
    if not folder.is_dir():
        pytest.skip("the cases are absent")
    converted = convert_folder(folder, tmp_path / "out")
    for pixels in stored_pixels(converted.train).values():
        assert np.ptp(pixels) > 200
