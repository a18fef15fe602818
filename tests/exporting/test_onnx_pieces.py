"""Suppression and resizing inside an ONNX graph equal the package's."""

import jax
import numpy as np
import pytest

from stillbox.errors import UserError
from stillbox.experiment import schema
from stillbox.exporting.onnx import nms as nms_nodes
from stillbox.exporting.onnx.arithmetic import TYPES
from stillbox.exporting.onnx.graph import BATCH, FLOAT, UINT8, Graph, Tensor, identity
from stillbox.exporting.onnx.network import add_program
from stillbox.exporting.onnx.pixels import add_preprocessing
from stillbox.inputs.resize import resize_image
from stillbox.models.jaxpr import trace
from stillbox.models.postprocessing import suppress
from stillbox.references import Parameter
from tests.exporting.programs import RUNTIMES, loaded
from tests.exporting.test_stablehlo import METHODS, RESIZERS, SIZES, picture
from tests.helpers import refused

pytest.importorskip("onnx")

ANCHORS, CLASSES, IMAGES = 700, 4, 2
INPUT_SIZE = 300, 300
TRUE_SIZE = np.array([300, 200], np.int32)
SETTINGS = {
    "plain": {},
    "clip first": {"clip_first": True},
    "at the threshold": {"drop_at_threshold": True, "iou_threshold": 0.5},
    "few of a class": {"max_per_class": 3},
    "few candidates": {"max_candidates_per_class": 20},
    "class agnostic": {"class_agnostic": True},
    "combined": {"combined": True},
    "not clipped": {"clip": False, "change_coordinate_frame": False},
    "margin": {"clip_to": "input", "clip_margin": 1.0},
    "more places than boxes": {"max_total": 3000, "score_threshold": 0.5},
    "nothing": {"score_threshold": 2.0},
}


def described(**settings):
    return schema.Nms(**{"score_threshold": 0.1, "max_total": 30, **settings})


def suppression(nms, boxes, runtime="onnxruntime"):
    """An ONNX model of `suppress`."""
    graph = Graph()
    shapes = [(BATCH, *boxes.shape[1:]), (BATCH, ANCHORS, CLASSES), (BATCH, 2)]
    types = [np.float32, np.float32, np.int32]
    traced = trace(
        lambda *arrays: suppress(*arrays, nms, INPUT_SIZE)[:5],
        *map(jax.ShapeDtypeStruct, shapes, types),
    )
    names = ("boxes", "scores", "sizes")
    values = [Tensor(name, identity(len(shape))) for name, shape in zip(names, shapes, strict=True)]
    outputs_added = add_program(graph, traced, values)

    def infos(names, shapes, types):
        rows = zip(names, shapes, types, strict=True)
        return {
            name: (TYPES[np.dtype(dtype).name], ("batch", *shape[1:]))
            for name, shape, dtype in rows
        }

    outputs = [aval.shape for aval in traced.out_avals], [aval.dtype for aval in traced.out_avals]
    return loaded(
        graph.model(infos(names, shapes, types), infos(outputs_added, *outputs), ""), runtime
    )


def inputs(*, coarse=False):
    """Boxes and scores; coarse ones are often equal to each other."""
    rng = np.random.default_rng(3)
    centres = rng.uniform(-0.1, 1.1, (IMAGES, ANCHORS, 2))
    sizes = rng.uniform(0.02, 0.4, (IMAGES, ANCHORS, 2))
    boxes = np.concatenate([centres - sizes / 2, centres + sizes / 2], axis=-1)
    scores = rng.random((IMAGES, ANCHORS, CLASSES)) ** 3
    if coarse:
        boxes, scores = np.round(boxes * 16) / 16, np.round(scores * 20) / 20
    return boxes.astype(np.float32), scores.astype(np.float32)


def compare(nms, runtime, boxes, scores):
    sizes = np.tile(TRUE_SIZE, (IMAGES, 1))
    got = suppression(nms, boxes, runtime)({"boxes": boxes, "scores": scores, "sizes": sizes})
    wanted = jax.jit(lambda *arrays: suppress(*arrays, nms, INPUT_SIZE))(boxes, scores, sizes)
    fields = ("boxes", "scores", "classes", "count", "anchors")
    for array, field in zip(got, fields, strict=True):
        np.testing.assert_allclose(array, getattr(wanted, field), atol=1e-6, err_msg=field)
    return wanted


@pytest.mark.parametrize("name", SETTINGS)
def test_equals_the_detectors_own(name):
    boxes, scores = inputs(coarse=True)
    wanted = compare(described(**SETTINGS[name]), "onnxruntime", boxes, scores)
    assert (np.asarray(wanted.count) >= 5).all() or name == "nothing"


@pytest.mark.parametrize("name", ["plain", "few candidates", "class agnostic", "nothing"])
def test_in_openvino_where_scores_differ(name):
    compare(described(**SETTINGS[name]), "openvino", *inputs())


@pytest.mark.parametrize("runtime", RUNTIMES)
def test_all_anchors_are_searched_if_the_best_do_not_suffice(runtime, monkeypatch):
    # The best 30 anchors of the second image have the same box.
    monkeypatch.setattr(nms_nodes, "_FIRST", 1)
    boxes, scores = inputs()
    boxes[1, :200], scores[1, :200, 0] = boxes[1, 0], 1 - np.arange(200) / 1000
    wanted = compare(described(), runtime, boxes, scores)
    np.testing.assert_array_equal(wanted.count, 30)


@pytest.mark.parametrize("runtime", RUNTIMES)
@pytest.mark.parametrize("first", [1, 1000])
def test_classes_have_boxes_of_their_own(first, runtime, monkeypatch):
    monkeypatch.setattr(nms_nodes, "_FIRST", first)
    boxes, scores = inputs()
    # Boxes of class c are a hundredth of the input lower for each class before.
    shifts = np.arange(CLASSES, dtype=np.float32)[:, None] * np.float32([0.01, 0, 0.01, 0])
    wanted = compare(described(max_per_class=8), runtime, boxes[:, :, None] + shifts, scores)
    assert len(set(np.asarray(wanted.classes[0]).tolist())) == CLASSES


def test_soft_suppression_is_refused():
    with pytest.raises(UserError, match="fade") as caught:
        suppression(described(soft_sigma=0.5), inputs()[0])
    assert "soft_sigma" in str(caught.value)


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
    with refused(Parameter("image_size"), "81x90"):
        preprocessing(RESIZERS["identity"], np.uint8, "onnxruntime", (81, 90))
