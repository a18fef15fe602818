"""StableHLO: every input and both signatures, through the artefact alone; resizing in programs."""

import jax
import numpy as np
import pytest
from jax import export

import stillbox
from stillbox.experiment import schema
from stillbox.exporting.export import export_model
from stillbox.exporting.manifest import Manifest
from stillbox.exporting.pixels import resize_images
from stillbox.exporting.settings import ExportSettings
from stillbox.exporting.stablehlo import FILE, load
from stillbox.exporting.tflite.conversion import resize_images as resize_for_tflite
from stillbox.inputs.resize import resize_image
from tests.exporting.programs import OUTPUTS, assert_verified
from tests.helpers import refused
from tests.small import EVERY_DETECTION


def exported(model, images, folder, **settings):
    settings = ExportSettings(format="stablehlo", platforms=("cpu",), **settings)
    return export_model(model, folder, settings, images)


@pytest.fixture(scope="module")
def free(model, images, tmp_path_factory):
    """An artefact of the Object Detection API's signature that takes images of any size."""
    return exported(model, images, tmp_path_factory.mktemp("export") / "free", any_size=True)


@pytest.fixture(scope="module")
def tpu(model, images, tmp_path_factory):
    """An artefact of the TPU page's signature, for any number of images of one size."""
    folder = tmp_path_factory.mktemp("export") / "tpu"
    return exported(model, images, folder, signature="tpu", batch_size=0, image_size=(48, 80))


def test_the_artefact_equals_its_checkpoint(free, images):
    assert_verified(free, images)


def test_a_predictor_runs_it_like_its_checkpoint(free, checkpoint, images, blank):
    predictor = stillbox.load(free.folder)
    assert predictor.class_names == checkpoint.class_names
    for image in (*images, blank):
        got, wanted = (
            runner.predict(image, **EVERY_DETECTION) for runner in (predictor, checkpoint)
        )
        np.testing.assert_allclose(got.scores, wanted.scores, atol=1e-5)
        np.testing.assert_allclose(got.boxes, wanted.boxes, atol=1e-2)
        assert got.names == wanted.names


def test_outputs_of_the_object_detection_api(free, images):
    run = load(free.folder, free.manifest)
    outputs = run(images[0][None])
    assert sorted(outputs) == sorted(OUTPUTS["detection_api"])
    assert {array.dtype for array in outputs.values()} == {np.dtype(np.float32)}
    count = int(outputs["num_detections"][0])
    assert outputs["detection_boxes"][0, :count].max() <= 1
    assert outputs["detection_classes"][0, :count].min() >= 1
    # A detection has the scores of the anchor that it names.
    anchor = int(outputs["detection_anchor_indices"][0, 0])
    scores = outputs["raw_detection_scores"][0, anchor]
    np.testing.assert_array_equal(outputs["detection_multiclass_scores"][0, 0], scores)
    class_id = int(outputs["detection_classes"][0, 0])
    assert scores[class_id] == outputs["detection_scores"][0, 0]


def test_outputs_of_the_tpu_page(tpu, images):
    run = load(tpu.folder, tpu.manifest)
    pair = np.stack([np.full((48, 80, 3), value, np.uint8) for value in (0, 200)])
    outputs = run(pair)
    assert sorted(outputs) == sorted(OUTPUTS["tpu"])
    assert outputs["num_detections"].dtype == outputs["detection_classes"].dtype == np.int32
    # Original size, network input, scale, offset: 48 x 80 is resized to 64 x 64.
    np.testing.assert_allclose(
        outputs["image_info"][1], [[48, 80], [64, 64], [64 / 48, 64 / 80], [0, 0]], rtol=1e-6
    )
    count = int(outputs["num_detections"][0])
    assert 2 < outputs["detection_boxes"][0, :count].max() <= 64


@pytest.mark.parametrize(
    "settings",
    [
        {"input_type": "float_image_tensor", "signature": "tpu", "normalized_coordinates": True},
        {"input_type": "raw_image_tensor", "batch_size": 2, "max_detections": 7},
    ],
)
def test_other_inputs_equal_the_checkpoint(model, images, tmp_path, settings):
    result = exported(model, images, tmp_path / "out", **settings)
    assert result.verification.detections > 10
    if "max_detections" in settings:
        assert len(stillbox.load(result.folder).predict(images[0], **EVERY_DETECTION)) == 7


def test_an_unreadable_file_is_named(free, tmp_path):
    (tmp_path / FILE).write_bytes(b"nothing")
    with refused("model.stablehlo") as caught:
        load(tmp_path, Manifest.read(free.folder))
    assert ">=" in caught.value.fix


METHODS = ("bilinear", "nearest", "bicubic", "area", "bilinear_antialias", "bilinear_half_pixel")
RESIZERS = {
    **{method: schema.FixedShapeResizer(height=30, width=44, method=method) for method in METHODS},
    "keep": schema.KeepAspectRatioResizer(min_dimension=40, max_dimension=56, pad_value=(1, 2, 3)),
    "keep, antialiased": schema.KeepAspectRatioResizer(
        min_dimension=40, max_dimension=56, method="bilinear_antialias"
    ),
    "jitter": schema.ScaleJitterResizer(height=40, width=48, multiple=32, min_scale=0.5),
    "greater": schema.ConditionalShapeResizer(condition="greater", threshold=50, canvas=(64, 64)),
    "smaller": schema.ConditionalShapeResizer(condition="smaller", threshold=50, canvas=(80, 99)),
    "identity": schema.IdentityResizer(canvas=(80, 90)),
    "multiple": schema.PadToMultipleResizer(multiple=32, canvas=(96, 96)),
}
SIZES = [(61, 83), (20, 33), (64, 40)]


def picture(size, dtype):
    pixels = np.random.default_rng(size[0]).integers(0, 256, (*size, 3), np.uint8)
    return pixels.astype(dtype)


@pytest.mark.parametrize("dtype", [np.uint8, np.float32])
@pytest.mark.parametrize("name", RESIZERS)
def test_equals_the_resizer_of_training(name, dtype):
    resizer = RESIZERS[name]
    resize = jax.jit(lambda images: resize_images(images, resizer))
    for size in SIZES:
        image = picture(size, dtype)
        if name == "keep, antialiased" and dtype == np.float32:
            image = np.rint(image)
        wanted, true_size = resize_image(image, resizer)
        got, shown = resize(image[None])
        assert tuple(shown) == true_size
        # Weights of float32 in another order; antialiased uint8 has whole numbers, to the bit.
        exact = "antialias" in name and dtype == np.uint8
        np.testing.assert_allclose(got[0], wanted, atol=0 if exact else 2e-3)


def test_one_program_serves_images_of_every_size():
    resizer = RESIZERS["keep"]
    shape = export.symbolic_shape("b, h, w, 3", constraints=["b >= 1", "h >= 1", "w >= 1"])
    exported = export.export(jax.jit(lambda images: resize_images(images, resizer)))(
        jax.ShapeDtypeStruct(shape, np.uint8)
    )
    for size in SIZES:
        image = picture(size, np.uint8)
        wanted, true_size = resize_image(image, resizer)
        got, shown = exported.call(np.stack([image, image]))
        assert tuple(shown) == true_size
        np.testing.assert_allclose(got[1], wanted, atol=2e-3)


@pytest.mark.parametrize("dtype", [np.uint8, np.float32])
@pytest.mark.parametrize("name", RESIZERS)
def test_tflite_equals_the_resizer_of_training(name, dtype):
    resizer = RESIZERS[name]
    # Pillow has other weights for floats than for the images of training.
    whole = "antialias" in name
    resize = jax.jit(lambda images: resize_for_tflite(images, resizer))
    for size in SIZES:
        image = picture(size, dtype)
        wanted, _ = resize_image(image.astype(np.uint8) if whole else image, resizer)
        got = resize(image[None])[0]
        # Weights of float32 in another order.
        np.testing.assert_allclose(got, wanted, atol=0 if whole else 2e-3)
