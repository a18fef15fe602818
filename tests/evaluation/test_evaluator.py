"""The evaluation of a set, and its program."""

import io
from dataclasses import replace

import jax
import numpy as np
import pytest
from PIL import Image

from stillbox.boxes.structures import Batch, Detections
from stillbox.cli.overrides import changes_of
from stillbox.evaluation.coco import from_coco_json
from stillbox.evaluation.evaluator import evaluate
from stillbox.evaluation.ground_truth import read_truths, truth_of
from stillbox.evaluation.program import predict_program
from stillbox.experiment import schema
from stillbox.experiment.resolve import resolve
from stillbox.experiment.updating import apply_changes
from stillbox.inputs.dataset import open_dataset
from stillbox.inputs.loader import EvalLoader
from stillbox.models.build import build_detector
from stillbox.models.detector import detect_function
from stillbox.models.variables import split_detector
from stillbox.records.example import Example
from stillbox.records.image_files import stored_size
from stillbox.records.label_map import ClassSlots
from stillbox.records.scenes import write_scenes
from tests.evaluation.builders import by_id
from tests.helpers import refused

NAMES = {1: "cat", 2: "dog"}
MOST = 3


def image_bytes(height, width):
    buffer = io.BytesIO()
    Image.new("RGB", (width, height), (90, 120, 150)).save(buffer, format="PNG")
    return buffer.getvalue()


def example(name, boxes=(), class_ids=(), *, size=(100, 200), **fields):
    values = {
        "image_id": name,
        "encoded": image_bytes(*size),
        "height": size[0],
        "width": size[1],
        "boxes": np.array(boxes, np.float32).reshape(-1, 4),
        "class_ids": np.array(class_ids, np.int32),
    }
    return Example(**(values | fields))


class Source:
    """Examples in memory."""

    def __init__(self, examples):
        self.examples = examples

    def __len__(self):
        return len(self.examples)

    def example(self, index):
        return self.examples[index]


def batches(records, size, left_out=()):
    """Batches of the loader; the last one is padded with rows of record -1."""
    for start in range(0, len(records), size):
        rows = records[start : start + size]
        rows = [*rows, *[-1] * (size - len(rows))]
        yield Batch(
            images=np.zeros((size, 8, 8, 3), np.float32),
            boxes=np.zeros((size, 4, 4), np.float32),
            classes=np.zeros((size, 4), np.int32),
            weights=np.zeros((size, 4), np.float32),
            true_sizes=np.full((size, 2), 8, np.int32),
            records=np.array(rows, np.int32),
            image_weights=np.float32([row >= 0 and row not in left_out for row in rows]),
        )


def perfect(source, most=MOST):
    """A detector that returns the truth, and nonsense for rows of padding."""

    def detect(batch):
        size = len(batch.records)
        boxes, scores = np.zeros((size, most, 4), np.float32), np.zeros((size, most), np.float32)
        classes, count = np.zeros((size, most), np.int32), np.full(size, most, np.int32)
        for row, record in enumerate(batch.records):
            if record >= 0:
                example = source.example(int(record))
                n = len(example.boxes)
                boxes[row, :n], scores[row, :n], count[row] = example.boxes, 0.9, n
                classes[row, :n] = example.class_ids - 1
        return Detections(boxes, scores, classes, count, np.zeros_like(classes))

    return detect


@pytest.fixture
def source():
    return Source(
        [
            example("a", [[0.1, 0.1, 0.5, 0.5]], [1]),
            example("b"),
            example("c", [[0.2, 0.2, 0.9, 0.4], [0, 0, 0.3, 1]], [2, 1], size=(60, 40)),
            example("d", [[0.5, 0.5, 1, 1]], [2]),
            example("e", [[0, 0, 1, 1]], [1]),
        ]
    )


def scored(
    source, loaded=(0, 1, 2, 3, 4), size=2, names=NAMES, detect=None, left_out=(), **options
):
    """The evaluation of records in batches of one size, by default with a perfect detector."""
    options = {"slots": by_id(2)} | options
    detect = detect or perfect(source)
    loader = batches(list(loaded), size, left_out)
    return evaluate(detect, loader, source, names, **options)


@pytest.mark.parametrize("batch_size", [1, 2, 5, 8])
def test_every_image_counts_once_whatever_the_batch(source, batch_size):
    said = []
    progress = lambda done, total: said.append((done, total))  # noqa: E731
    result = scored(source, size=batch_size, progress=progress)
    assert result.scores.summary["AP"] == pytest.approx(1.0)
    assert (result.scores.coco.images, result.scores.coco.truths) == (5, 5)
    # The detections of rows of padding are left out.
    assert result.scores.coco.detections == 5
    assert [truth.image_id for truth in result.truths] == ["a", "b", "c", "d", "e"]
    assert [image_result.image_id for image_result in result.results] == ["a", "b", "c", "d", "e"]
    assert said[-1] == (5, 5)
    assert result.timings.images == 5
    assert result.timings.images_per_second > 0
    assert result.timings.scoring > 0


def test_detections_come_back_in_pixels_and_label_map_ids(source):
    result = scored(source)
    # Image c has 60 rows and 40 columns: ymin .2 * 60, xmin .2 * 40, ymax .9 * 60, xmax .4 * 40.
    np.testing.assert_allclose(result.results[2].boxes[0], [12, 8, 54, 16], rtol=1e-6)
    assert result.results[2].class_ids.tolist() == [2, 1]
    assert result.results[1].boxes.shape == (0, 4)


def test_class_indices_stand_for_the_ids_of_their_slots(source):
    # The detector returns 1 and 0 for image c; with these slots they are 90 and 44.
    source.examples[2] = replace(source.examples[2], class_ids=np.array([90, 44], np.int32))
    other_example = replace(source.examples[2], class_ids=np.array([2, 1], np.int32))
    detect, names = perfect(Source([None, None, other_example])), {44: "bottle", 90: "toothbrush"}
    slots = ClassSlots((44, 90))
    result = scored(source, [2], 1, names, detect, slots=slots, records=[2])
    assert result.results[0].class_ids.tolist() == [90, 44]
    assert result.scores.summary["AP"] == pytest.approx(1.0)


def test_a_part_of_the_records_can_be_scored(source):
    result = scored(source, [0, 1], 4, records=range(2))
    assert result.records == (0, 1)
    assert result.warnings == ("no ground truth of dog: left out of the means",)


@pytest.mark.parametrize(
    ("records", "message"),
    [
        ([0, 1, 2, 3], r"1 not at all \(first \[4\]\)"),
        ([0, 1, 2, 3, 4, 3], r"1 record more than once \(first \[3\]\)"),
    ],
)
def test_a_lost_or_repeated_image_is_an_error(source, records, message):
    with pytest.raises(RuntimeError, match=message):
        scored(source, records)


def test_records_left_out_by_the_policy_are_counted_and_not_scored(source):
    source.examples[1] = None
    result = scored(source, [0, 2, 3, 4], left_out=[3])
    assert (result.records, result.left_out) == ((0, 2, 4), 2)
    assert result.scores.summary["AP"] == pytest.approx(1.0)


def test_a_wrong_label_map_costs_no_time_on_the_device(source):
    def never(batch):
        raise AssertionError("the detector ran")

    with refused(None, 2):
        scored(source, names={1: "cat"}, detect=never)
    with refused(None, 1):
        scored(source, detect=never, slots=by_id(1))


def test_images_that_share_an_id_all_count(source):
    source.examples = [example("same", [[0, 0, 1, 1]], [1]), example("same")]
    result = scored(source, [0, 1])
    assert [t.image_id for t in result.truths] == ["same (record 0)", "same (record 1)"]


def test_the_size_of_the_image_has_precedence_over_the_records():
    wrong = example("a", [[0, 0, 0.5, 0.5]], [1], size=(100, 200), height=1000, width=1000)
    assert stored_size(wrong) == (100, 200)
    assert truth_of(wrong).boxes.tolist() == [[0, 0, 50, 100]]
    assert stored_size(example("a", encoded=b"no image", height=7, width=9)) == (7, 9)


def test_crowds_and_areas_reach_the_truth_and_may_be_absent():
    full = example(
        "a", [[0, 0, 0.5, 0.5]], [1], is_crowd=np.array([True]), area=np.array([12.0], np.float32)
    )
    assert (truth_of(full).is_crowd.tolist(), truth_of(full).areas().tolist()) == ([True], [12.0])
    bare = read_truths(Source([example("a", [[0, 0, 0.5, 0.5]], [1])]), [0])[0]
    # 50 by 100 pixels.
    assert (bare.is_crowd.tolist(), bare.areas().tolist()) == ([False], [5000.0])


@pytest.mark.parametrize("max_examples", [0, 5])
def test_real_records_go_through_the_real_loader(tmp_path, max_examples):
    write_scenes(tmp_path, train=1, val=11, seed=4)
    records = schema.Records(
        paths=(str(tmp_path / "val.record-*"),),
        label_map=str(tmp_path / "label_map.pbtxt"),
        # Fewer boxes than the fullest scene has: scoring must not lose the others.
        max_boxes=1,
    )
    dataset = open_dataset(schema.Data(), records, schema.OneStage(num_classes=6))
    loader = EvalLoader(dataset, batch_size=4, max_examples=max_examples)
    options = {"slots": dataset.slots, "records": loader.records}
    detector = perfect(dataset.source, most=8)
    result = evaluate(detector, loader, dataset.source, dataset.class_names, **options)
    truths, _ = from_coco_json(tmp_path / "annotations" / "val.json")
    wanted = truths[: max_examples or 11]
    assert result.scores.summary["AP"] == pytest.approx(1.0)
    assert result.scores.coco.truths == sum(len(truth.boxes) for truth in wanted) > len(wanted)
    assert [truth.image_id for truth in result.truths] == [truth.image_id for truth in wanted]
    for ours, written in zip(result.truths, wanted, strict=True):
        np.testing.assert_allclose(ours.boxes, written.boxes, atol=1e-3)
        np.testing.assert_array_equal(ours.area, written.area)


# Two convolutions of 24 x 24 pixels are of tiles of 4, one of 12 x 12 is of tiles of 2.
_RESNET = (
    "model.resizer={height: 96, width: 96}",
    "model.backbone={kind: resnet, depth: 10}",
    "model.neck={kind: ssd_layers, taps: [group_2, group_3], extra_depths: [16]}",
    "model.anchors={num_layers: 3, scales: [0.1, 0.3, 0.6]}",
)
_TOWERS = (
    "model.resizer={height: 160, width: 160}",
    "model.backbone={kind: resnet, depth: 10}",
    "model.neck={kind: retinanet_fpn, min_level: 2, max_level: 3, depth: 64}",
    "model.head={kind: weight_shared, depth: 64, layers_before: 1}",
    "model.anchors={kind: multiscale, min_level: 2, max_level: 3}",
)


def _experiment(*overrides):
    return apply_changes(resolve("demo_scenes").experiment, changes_of(overrides), {})


def _batch(count, side=96):
    rng = np.random.default_rng(1)
    images = rng.uniform(0, 255, (count, side, side, 3)).astype(np.float32)
    return images, np.array([[side, side], [side, side // 2], [50, side]], np.int32)[:count]


@pytest.fixture(scope="module")
def resnet():
    experiment = _experiment(*_RESNET)
    return experiment, *split_detector(build_detector(experiment.model))


@pytest.fixture(scope="module")
def together(resnet):
    """The program for three images."""
    return predict_program(resnet[0], batch_size=3)


def test_detections_are_those_of_the_detector(resnet, together):
    _, graph, params, stats = resnet
    images, sizes = _batch(3)
    detections = together.bind(params, stats)(images, sizes)
    expected = jax.jit(detect_function(graph))(params, stats, images, sizes)
    assert expected.count.min() > 0
    np.testing.assert_array_equal(detections.count, expected.count)
    np.testing.assert_array_equal(detections.classes, expected.classes)
    np.testing.assert_allclose(detections.scores, expected.scores, atol=1e-5)
    np.testing.assert_allclose(detections.boxes, expected.boxes, atol=1e-5)


def test_detections_do_not_depend_on_the_other_images_of_a_batch(resnet, together):
    experiment, _, params, stats = resnet
    images, sizes = _batch(3)
    expected = together.bind(params, stats)(images, sizes)
    single = predict_program(experiment)
    alone = single.bind(params, stats)
    for row in range(3):
        detections = alone(images[row : row + 1], sizes[row : row + 1])
        for alone_output, other in zip(detections, expected, strict=True):
            np.testing.assert_array_equal(alone_output[0], other[row])
    shared = together.bind_weights(single.prepare(params, stats))
    for alone_output, other in zip(shared(images, sizes), expected, strict=True):
        np.testing.assert_array_equal(alone_output, other)


def test_kernels_are_prepared_for_a_single_cpu(resnet):
    experiment = resnet[0]

    def kernels(*overrides):
        changed = apply_changes(experiment, changes_of(overrides), {})
        prepared = predict_program(changed)._preparation.out_info
        return {key: [array.shape for array in arrays] for key, arrays in prepared.items()}

    # By the layer, the number of its map, and the tile.
    assert kernels() == {
        ("backbone.group_1.block_1.conv_1", 0, 4): [(6, 64, 64)] * 6,
        ("backbone.group_1.block_1.conv_2", 0, 4): [(6, 64, 64)] * 6,
        ("backbone.group_2.block_1.conv_2", 0, 2): [(4, 128, 128)] * 4,
    }
    assert kernels("devices.cpu_convolutions=exact") == {}


@pytest.mark.parametrize("recipe", ["demo_scenes", "ssdlite_mobilenet_v2_coco"])
def test_no_kernel_is_looked_for_where_none_has_a_fitting_shape(recipe):
    program = predict_program(resolve(recipe).experiment)
    assert not program.prepares_kernels
    assert replace(program, prepares_kernels=True)._preparation.out_info == {}


def test_a_kernel_of_several_maps_is_prepared_once():
    # Two of the backbone, one for each of two maps of the pyramid, one for each of two towers.
    kernels = predict_program(_experiment(*_TOWERS))._preparation.out_info
    assert [arrays[0].shape for arrays in kernels.values()].count((6, 64, 64)) == 6
