"""Resizing inside an ONNX graph equals resizing on the host, in either runtime."""

import numpy as np
import pytest

from stillbox.errors import UserError
from stillbox.experiment import schema
from stillbox.exporting.onnx.graph import FLOAT, UINT8, Graph
from stillbox.exporting.onnx.pixels import add_preprocessing
from stillbox.inputs.resize import resize_image
from tests.exporting.onnx.runtimes import RUNTIMES, loaded
from tests.exporting.test_pixels import METHODS, RESIZERS, SIZES, picture

CORNERS = {
    f"corners, {method}": schema.ConditionalShapeResizer(
        condition="smaller", threshold=50, canvas=(80, 99), method=method
    )
    for method in ("nearest", "bicubic", "area")
}


def preprocessing(resizer, dtype, runtime, size=None):
    graph = Graph()
    kind = UINT8 if dtype == np.uint8 else FLOAT
    resized = add_preprocessing(graph, resizer, "images", size, uint8=dtype == np.uint8)
    graph.op("Identity", resized.true_size, name="true_size")
    outputs = {
        resized.pixels: (FLOAT, ("batch", *resizer.input_size, 3)),
        "true_size": (FLOAT, (2,)),
    }
    shape = ("batch", *(size or ("height", "width")), 3)
    return loaded(graph.model({"images": (kind, shape)}, outputs, ""), runtime)


@pytest.mark.parametrize("runtime", RUNTIMES)
@pytest.mark.parametrize("dtype", [np.uint8, np.float32])
@pytest.mark.parametrize("name", [*RESIZERS, *CORNERS])
def test_equals_the_resizer_of_training(name, dtype, runtime):
    resizer = {**RESIZERS, **CORNERS}[name]
    resize = preprocessing(resizer, dtype, runtime)
    for size in SIZES:
        image = picture(size, dtype)
        wanted, true_size = resize_image(image, resizer)
        pixels, shown = resize({"images": np.stack([image[::-1], image])})
        assert tuple(shown) == true_size
        # Antialiased uint8 has whole numbers, to the bit. OpenVINO divides by an approximate
        # inverse where sizes are free, and the cubic's table has steps.
        exact = "antialias" in name and dtype == np.uint8
        loose = "bicubic" in name and runtime == "openvino"
        atol = 0 if exact else 0.3 if loose else 5e-3
        np.testing.assert_allclose(pixels[1], wanted, atol=atol)


@pytest.mark.parametrize("runtime", RUNTIMES)
def test_a_fixed_size_gives_the_same(runtime):
    for name in ("bilinear_antialias", "bicubic", "keep"):
        resizer = RESIZERS[name]
        image = picture(SIZES[0], np.uint8)
        resize = preprocessing(resizer, np.uint8, runtime, image.shape[:2])
        wanted, _ = resize_image(image, resizer)
        np.testing.assert_allclose(resize({"images": image[None]})[0][0], wanted, atol=1e-3)


@pytest.mark.parametrize(
    "resizer",
    [
        *(RESIZERS[method] for method in METHODS),
        schema.ScaleJitterResizer(height=32, width=64, multiple=32),
    ],
)
def test_images_of_the_networks_size_are_neither_sampled_nor_padded(resizer):
    image = picture(resizer.input_size, np.uint8)
    np.testing.assert_array_equal(resize_image(image, resizer)[0], image)
    graph = Graph()
    add_preprocessing(graph, resizer, "images", resizer.input_size, uint8=True)
    model = graph.model({"images": (UINT8, (1, *resizer.input_size, 3))}, {}, "")
    # The others compute the size.
    pixels = {"Resize", "Gather", "MatMul", "Concat", "Pad", "Expand"}
    assert not pixels & {node.op_type for node in model.graph.node}


def test_images_larger_than_the_canvas_are_refused():
    with pytest.raises(UserError, match="do not fit the canvas: 81x90"):
        preprocessing(RESIZERS["identity"], np.uint8, "onnxruntime", (81, 90))
