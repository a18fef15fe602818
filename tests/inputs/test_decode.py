import cv2
import numpy as np
import pytest
from PIL import Image

from stillbox.experiment import schema
from stillbox.inputs.decode import ImageError, decode_image, read_jpeg_header
from stillbox.inputs.loader import TrainLoader
from stillbox.inputs.resize import place_image, reduction, resize_into
from tests.inputs.helpers import dataset, example, jpeg, picture, saved

PICTURE = picture(40, 60)
IMAGE = Image.fromarray(PICTURE)


def close(decoded, expected, tolerance):
    assert decoded.dtype == np.uint8
    assert np.abs(decoded.astype(int) - expected.astype(int)).max() <= tolerance


def test_a_jpeg_decodes_to_rgb_in_this_order():
    red = np.zeros((16, 16, 3), np.uint8)
    red[..., 0] = 255
    assert decode_image(saved(Image.fromarray(red), "JPEG", quality=95))[8, 8, 0] > 250


@pytest.mark.parametrize("kind", ["JPEG", "PNG"])
def test_grayscale_has_three_equal_channels(kind):
    decoded = decode_image(saved(IMAGE.convert("L"), kind))
    assert decoded.shape == (40, 60, 3)
    assert np.ptp(decoded, axis=2).max() == 0
    close(decoded[..., 0], np.asarray(IMAGE.convert("L")), 6)


def test_a_cmyk_jpeg_becomes_rgb():
    close(decode_image(saved(IMAGE.convert("CMYK"), "JPEG", quality=98, subsampling=0)), PICTURE, 8)


def test_png_is_exact_with_alpha_left_out_and_the_upper_8_of_16_bits():
    alpha = np.dstack([PICTURE, np.full((40, 60), 10, np.uint8)])
    deep = PICTURE.astype(np.uint16) * 256 + 200  # 200 would round up, but is cut off
    data = cv2.imencode(".png", deep[..., ::-1])[1].tobytes()
    for png in (saved(IMAGE, "PNG"), saved(Image.fromarray(alpha), "PNG"), data):
        assert (decode_image(png) == PICTURE).all()
    palette = IMAGE.quantize(16)
    assert (decode_image(saved(palette, "PNG")) == np.asarray(palette.convert("RGB"))).all()
    assert decode_image(saved(Image.new("RGB", (1, 1), (7, 8, 9)), "PNG")).tolist() == [[[7, 8, 9]]]


def oriented(kind):
    tag = Image.Exif()
    tag[0x0112] = 6  # the camera was turned: rotate by 90 degrees clockwise to see it upright
    return saved(IMAGE, kind, exif=tag)


@pytest.mark.parametrize("kind", ["JPEG", "PNG"])
def test_records_ignore_the_exif_tag_because_boxes_refer_to_stored_pixels(kind):
    assert decode_image(oriented(kind)).shape == (40, 60, 3)


@pytest.mark.parametrize("kind", ["JPEG", "PNG"])
def test_photographs_are_turned_upright(kind):
    upright = decode_image(oriented(kind), apply_exif=True)
    assert upright.shape == (60, 40, 3)
    # Clockwise: what was the lower left corner is the upper left one.
    assert (upright == np.rot90(decode_image(oriented(kind)), -1)).all()


def test_pillow_decodes_formats_that_opencv_does_not_support():
    data = saved(IMAGE, "PCX")
    assert cv2.imdecode(np.frombuffer(data, np.uint8), cv2.IMREAD_COLOR) is None
    assert (decode_image(data) == PICTURE).all()
    assert (decode_image(data, apply_exif=True) == PICTURE).all()


def test_pillows_16_bits_are_scaled_not_saturated(monkeypatch):
    deep = saved(Image.fromarray(PICTURE[..., 0].astype(np.uint16) * 256 + 200), "PNG")
    monkeypatch.setattr(cv2, "imdecode", lambda *_: None)
    assert (decode_image(deep) == PICTURE[..., :1]).all()


@pytest.mark.parametrize("reduction", [1, 2])
def test_12_of_16_bits_and_floats_are_not_black(reduction):
    gray = PICTURE[..., 0]
    expected = decode_image(saved(Image.fromarray(gray), "PNG"), reduction=reduction)
    deep = gray.astype(np.uint16) * 16 + 15
    for pixels, kind in ((deep, "PNG"), (deep, "TIFF"), (np.float32(gray / 255), "TIFF")):
        data = saved(Image.fromarray(pixels), kind)
        assert (decode_image(data, reduction=reduction) == expected).all()
    with pytest.raises(ImageError, match="no brightness: F from nan to nan"):
        decode_image(saved(Image.fromarray(np.full((8, 8), np.nan, np.float32)), "TIFF"))


@pytest.mark.parametrize("progressive", [False, True])
@pytest.mark.parametrize("share", [0.05, 0.3, 0.6, 0.95, 0.999])
def test_a_truncated_jpeg_is_refused_wherever_it_ends(share, progressive):
    data = saved(Image.fromarray(picture(120, 160)), "JPEG", quality=95, progressive=progressive)
    with pytest.raises(ImageError):
        decode_image(data[: int(len(data) * share)])


def test_a_truncated_jpeg_with_a_complete_thumbnail_inside_is_refused():
    tag = Image.Exif()
    tag[0x010E] = "x" + jpeg(picture(8, 8)).decode("latin-1")  # holds an end-of-image marker
    data = saved(IMAGE, "JPEG", exif=tag, quality=95)
    assert decode_image(data).shape == (40, 60, 3)
    with pytest.raises(ImageError, match="truncated"):
        decode_image(data[:-200])


def test_a_jpeg_with_bytes_after_its_end_is_whole():
    assert decode_image(jpeg(PICTURE) + b"\0" * 100).shape == (40, 60, 3)


@pytest.mark.parametrize("share", [0.2, 0.5, 0.8])
def test_a_truncated_png_is_refused(share):
    data = saved(IMAGE, "PNG")
    with pytest.raises(ImageError, match="truncated"):
        decode_image(data[: int(len(data) * share)])


def test_a_chunk_that_claims_more_than_the_file_reaches_no_decoder(monkeypatch):
    data = saved(IMAGE, "PNG")
    place = data.index(b"IDAT") - 4
    monkeypatch.setattr(cv2, "imdecode", None)
    with pytest.raises(ImageError, match="truncated"):
        decode_image(data[:place] + b"\x7f\xff\xff\xff" + data[place + 4 :])


@pytest.mark.parametrize("kind", ["JPEG", "PNG", "BMP", "WEBP"])
def test_a_small_file_of_a_huge_image_reaches_no_decoder(kind, monkeypatch):
    monkeypatch.setattr(cv2, "imdecode", None)
    monkeypatch.setattr("stillbox.records.image_files._MANY_PIXELS", PICTURE[..., 0].size - 1)
    monkeypatch.setattr("stillbox.records.image_files._MOST_PIXELS_A_BYTE", 0)
    data = saved(IMAGE, kind)
    with pytest.raises(ImageError, match=f"{len(data):,} bytes that claim to be a huge image"):
        decode_image(data)


def test_a_jpeg_whose_header_claims_a_huge_image_is_refused():
    data = bytearray(jpeg(PICTURE))
    place = read_jpeg_header(bytes(data)).height_at
    data[place : place + 4] = (20_000).to_bytes(2) * 2
    with pytest.raises(ImageError, match="claim to be a huge image"):
        decode_image(bytes(data))


def test_damage_inside_a_png_is_refused():
    data = bytearray(saved(IMAGE, "PNG"))
    data[len(data) // 2 : len(data) // 2 + 20] = bytes(20)
    with pytest.raises(ImageError):
        decode_image(bytes(data))


def test_no_bytes_and_no_image_have_a_reason():
    with pytest.raises(ImageError, match="no bytes"):
        decode_image(b"")
    with pytest.raises(ImageError) as caught:
        decode_image(b"<html>not found</html>")
    assert caught.value.reason.startswith("22 bytes that are no known image format (JPEG, PNG, ")
    assert isinstance(caught.value, ValueError)


def test_refused_files_leave_no_line_of_opencv_on_stderr(capfd):
    with pytest.raises(ImageError):
        decode_image(saved(IMAGE, "PNG")[:100])
    assert capfd.readouterr().err == ""


# ---- `data.pixels` and `data.reduced_decoding`: what changes, and by how much --------------------


JITTER = schema.ScaleJitterResizer(
    height=40, width=48, min_scale=0.5, max_scale=2, pad_value=(123.7, 9.5, 200.2)
)
RESIZERS = {
    "fixed": schema.FixedShapeResizer(height=37, width=53),
    "jitter": JITTER,
    "padded": schema.KeepAspectRatioResizer(min_dimension=30, max_dimension=50),
    "cubic": schema.FixedShapeResizer(height=37, width=53, method="bicubic"),
    "antialias": schema.FixedShapeResizer(height=37, width=53, method="bilinear_antialias"),
    "corners": schema.ConditionalShapeResizer(canvas=(60, 60), threshold=50),
    "same": schema.IdentityResizer(canvas=(100, 130)),
}


def batches(folder, resizer, *, size=(90, 120), augmentations=(), options=({},)):
    model = schema.OneStage(num_classes=4, resizer=resizer)
    rough = np.random.default_rng(0).normal(0, 15, (*size, 3))
    files = [jpeg((picture(*size, seed=n) + rough).clip(0, 255).astype(np.uint8)) for n in range(4)]
    examples = [example(n, encoded=data, size=size) for n, data in enumerate(files)]
    data = dataset(folder, examples, model=model)
    return [
        TrainLoader(data, batch_size=4, workers=0, augmentations=augmentations, **each).batch(0)
        for each in options
    ]


@pytest.mark.parametrize("name", RESIZERS)
def test_uint8_is_the_rounded_batch_at_a_quarter_of_the_bytes(tmp_path, name):
    floats, rounded = batches(tmp_path, RESIZERS[name], options=({}, {"pixels": "uint8"}))
    assert rounded.images.dtype == np.uint8
    assert 4 * rounded.images.nbytes == floats.images.nbytes
    # Half a level, and what float32 cannot tell from a half.
    assert abs(rounded.images - floats.images.clip(0, 255)).max() <= 0.5 + 1e-3
    for left, other in zip(floats[1:], rounded[1:], strict=True):
        assert left.tobytes() == other.tobytes()


def test_colours_out_of_range_are_clipped(tmp_path):
    brighter = (schema.RandomAdjustBrightness(max_delta=0.9, clip=False),)
    floats, rounded = batches(
        tmp_path, RESIZERS["fixed"], augmentations=brighter, options=({}, {"pixels": "uint8"})
    )
    assert floats.images.max() > 255
    assert floats.images.min() < 0
    np.testing.assert_array_equal(rounded.images, np.rint(floats.images).clip(0, 255))


@pytest.mark.parametrize(
    ("size", "resized", "factor"),
    [
        ((600, 600), (300, 300), 2),
        ((599, 900), (300, 300), 1),
        ((1300, 1199), (300, 300), 2),
        ((1200, 9999), (300, 300), 4),
        ((9999, 9999), (300, 300), 8),
        ((10, 10), (20, 5), 1),
    ],
)
def test_reduced_images_are_never_enlarged(size, resized, factor):
    assert reduction(size, resized) == factor


FLIP = (schema.RandomHorizontalFlip(probability=1), schema.SsdRandomCrop())
JITTERS = schema.ScaleJitterResizer(height=32, width=48, min_scale=0.8, max_scale=2)


def ramps(height, width):
    """Red grows to the right, green to the bottom, blue with both."""
    y, x = (np.linspace(20, 235, side) for side in (height, width))
    return np.stack(np.broadcast_arrays(x, y[:, None], (x + y[:, None]) / 2), -1).astype(np.uint8)


@pytest.mark.parametrize("method", ["bilinear", "bilinear_antialias", "jitter"])
@pytest.mark.parametrize("augmentations", [(), FLIP])
@pytest.mark.parametrize("pixels", ["float32", "uint8"])
def test_reduced_images_lie_where_whole_ones_do(tmp_path, method, augmentations, pixels):
    resizer = JITTERS
    if method != "jitter":
        resizer = schema.FixedShapeResizer(height=37, width=53, method=method)
    model = schema.OneStage(num_classes=4, resizer=resizer)
    data = jpeg(ramps(403, 601), 100)
    examples = [example(n, encoded=data, size=(403, 601)) for n in range(6)]
    exact, reduced = (
        TrainLoader(
            dataset(tmp_path, examples, model=model),
            batch_size=6,
            workers=0,
            augmentations=augmentations,
            pixels=pixels,
            reduced_decoding=each,
        ).batch(0)
        for each in (False, True)
    )
    # The mean of a ramp over a square is its value in the middle. Single pixels differ by rounding,
    # and the mean of all by what they are shifted: a pixel of the image is 0.36 levels at least.
    rows, columns = exact.true_sizes.min(0) - 2
    inner = np.s_[:, 2:rows, 2:columns]
    difference = reduced.images[inner].astype(np.float64) - exact.images[inner]
    assert abs(difference.mean((1, 2))).max() < 0.3
    assert difference.any()
    for left, other in zip(exact[1:], reduced[1:], strict=True):
        assert left.tobytes() == other.tobytes()


@pytest.mark.parametrize(
    ("resizer", "augmentations"),
    [
        (schema.FixedShapeResizer(height=20, width=20, method="area"), ()),
        (schema.FixedShapeResizer(height=20, width=20), (schema.RandomVerticalFlip(),)),
        (schema.FixedShapeResizer(height=60, width=60), ()),
    ],
)
def test_where_nothing_is_reduced_nothing_changes(tmp_path, resizer, augmentations):
    options = ({}, {"reduced_decoding": True})
    exact, same = batches(tmp_path, resizer, augmentations=augmentations, options=options)
    for left, other in zip(exact, same, strict=True):
        assert left.tobytes() == other.tobytes()


def test_rounding_is_that_of_exact_interpolation():
    rng = np.random.default_rng(1)
    for size, resizer in (((97, 131), RESIZERS["fixed"]), ((50, 60), JITTER)):
        image = rng.integers(0, 256, (*size, 3), np.uint8)
        placement = place_image(size, resizer, np.random.default_rng(5))
        floats = np.empty((*resizer.input_size, 3), np.float32)
        rounded = np.empty(floats.shape, np.uint8)
        resize_into(image, resizer, floats, placement)
        resize_into(image, resizer, rounded, placement)
        assert (rounded != np.rint(floats)).mean() < 1e-3
        assert cv2.norm(rounded.astype(np.float32), floats, cv2.NORM_INF) <= 0.5 + 1e-3
