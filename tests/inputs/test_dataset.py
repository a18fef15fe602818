"""From label map ids in records to class indices in batches, with both rules.

Label maps of other records, seen before the first batch.

Real records and photographs through the whole input pipeline.
"""

from dataclasses import replace

import numpy as np
import pytest

from stillbox.errors import UserError
from stillbox.experiment import schema
from stillbox.inputs.dataset import open_dataset, reject_unrelated_label_map
from stillbox.inputs.decode import decode_image
from stillbox.inputs.loader import EvalLoader, TrainLoader
from stillbox.records.label_map import LabelMap, LabelMapItem
from stillbox.records.source import ExampleSource
from stillbox.records.tf_example import serialize_example
from stillbox.records.wire import parse_features, serialize_features
from tests.helpers import refused
from tests.inputs.helpers import MODEL, dataset, example, write
from tests.records.builders import write_records
from tests.small import SHARED, needs_shared

CONTIGUOUS = replace(MODEL, num_classes=3, class_slots="contiguous")
# The label map of the helpers: disc is 1, ring 2, star 4.
BOXES = [[0.1, 0.2, 0.5, 0.6], [0, 0, 1, 1], [0, 0.5, 0.5, 1]]


def classes(folder, model, *augmentations):
    """The class indices of a batch of one image with a star, a disc and a ring."""
    data = dataset(folder, [example(0, BOXES, [4, 1, 2])], model=model, max_boxes=3)
    loader = TrainLoader(data, augmentations=augmentations, batch_size=1, workers=0)
    evaluated = next(iter(EvalLoader(data, batch_size=1, workers=0)))
    if not augmentations:
        assert evaluated.classes.tolist() == loader.batch(0).classes.tolist()
    return loader.batch(0).classes[0].tolist()


def test_a_gap_is_a_slot_or_is_closed(tmp_path):
    assert classes(tmp_path, MODEL) == [3, 0, 1]
    assert classes(tmp_path, CONTIGUOUS) == [2, 0, 1]


@pytest.mark.parametrize(("model", "star"), [(MODEL, 3), (CONTIGUOUS, 2)])
def test_augmentations_name_classes_by_label_map_id(tmp_path, model, star):
    remap = schema.RemapLabels(original_labels=(1, 2), new_label=4)
    assert classes(tmp_path, model, remap) == [star] * 3
    # Without the star the disc and the ring are left, and a place without a box.
    drop = schema.DropLabelProbabilistically(label=4, probability=1.0)
    assert classes(tmp_path, model, drop) == [0, 1, 0]


def test_a_class_in_a_gap_is_no_class_where_gaps_are_closed(tmp_path):
    remap = schema.RemapLabels(original_labels=(1,), new_label=3)
    assert classes(tmp_path, MODEL, remap) == [3, 2, 1]
    with refused("train.augmentations.0.new_label", 3, 1, 2, 4) as caught:
        classes(tmp_path, CONTIGUOUS, remap)
    assert caught.value.where == "train.augmentations.0.new_label"
    assert caught.value.fix.endswith("labels.pbtxt")


SHAPES = ("disc", "ring", "square", "triangle", "star", "cross")


def check(scenes, label_map, *, use_display_name=False):
    source = ExampleSource([f"{scenes}/train.record-*"], label_map)
    reject_unrelated_label_map(source, label_map, use_display_name=use_display_name)


def test_the_right_label_map_and_one_of_some_classes_pass(scenes):
    check(scenes, LabelMap.from_names(SHAPES))
    check(scenes, LabelMap.from_names(SHAPES[1:2]))


def test_a_label_map_of_one_rare_class_passes(tmp_path):
    # Of 100 records, 64 are looked at first, among them not the third.
    examples = [example(n, BOXES[:1], [4 if n == 2 else 1]) for n in range(100)]
    records, label_map = write(tmp_path, examples), LabelMap((LabelMapItem(4, "star"),))
    reject_unrelated_label_map(
        ExampleSource(records.paths, label_map), label_map, use_display_name=False
    )


def test_a_label_map_without_any_of_the_classes_is_refused_with_both_sides(scenes):
    with refused("", 27) as caught:
        check(scenes, LabelMap.from_names(["cat", "dog"]))
    assert "'ring'" in str(caught.value)
    assert "'cat', 'dog'" in str(caught.value)
    assert "give the label map that was written together" in caught.value.fix


def labelled_from_zero(path, labels):
    """Records of a box each with these labels and no text."""
    payloads = []
    for number, label in enumerate(labels):
        features = parse_features(serialize_example(example(number, BOXES[:1], [1])))
        features["image/object/class/label"] = np.array([label])
        payloads.append(serialize_features(features))
    return ExampleSource([str(write_records(path / "zero.record", payloads))], SHAPE_MAP)


SHAPE_MAP = LabelMap.from_names(SHAPES)


@pytest.mark.parametrize("order", [1, -1])
def test_labels_that_begin_at_0_are_refused_with_the_remedy(tmp_path, order):
    # Of 100 records, 64 are looked at first, among them not the third.
    source = labelled_from_zero(tmp_path, [1, 0, 5, *[0] * 97][::order])
    said = r"labels begin at 0: the greatest of 100 boxes is 5, .* end at 6"
    with pytest.raises(UserError, match=said) as caught:
        reject_unrelated_label_map(source, SHAPE_MAP, use_display_name=False)
    assert "one higher" in caught.value.fix


@pytest.mark.parametrize("greatest", [4, 6])
def test_a_label_of_0_is_no_count_from_0_unless_the_greatest_id_says_so(tmp_path, greatest):
    source = labelled_from_zero(tmp_path, [0, 1, greatest])
    reject_unrelated_label_map(source, SHAPE_MAP, use_display_name=False)


def test_display_names_that_would_match_are_the_remedy(scenes):
    items = (LabelMapItem(index, f"/m/{index}", shape) for index, shape in enumerate(SHAPES, 1))
    coded = LabelMap(tuple(items))
    with pytest.raises(UserError) as caught:
        check(scenes, coded)
    assert caught.value.fix == "set use_display_name to true"


DROP = schema.Data(bad_records="drop")
BROKEN = example(1, encoded=b"\xff\xd8\xff\xe0 no jpeg")


def test_a_record_becomes_pixels_boxes_and_class_ids(tmp_path):
    record = example(0, [[0.1, 0.2, 0.5, 0.6], [0, 0, 1, 1]], [1, 4])
    data = dataset(tmp_path, [record])
    sample = data.load(0)
    assert len(data) == 1
    assert (sample.image == decode_image(record.encoded)).all()
    np.testing.assert_array_equal(sample.boxes, record.boxes)
    assert sample.class_ids.tolist() == [1, 4]
    assert sample.class_ids.dtype == np.int32
    assert sample.weights.tolist() == [1, 1]


def test_class_names_are_the_label_maps(tmp_path):
    assert dataset(tmp_path, [example()]).class_names == {1: "disc", 2: "ring", 4: "star"}


def test_crowds_count_as_ordinary_boxes_or_are_ignored_or_dropped(tmp_path):
    crowd = example(0, [[0, 0, 0.5, 0.5], [0, 0, 1, 1]], crowds=[1])
    assert dataset(tmp_path, [crowd]).load(0).weights.tolist() == [1, 1]
    ignoring = dataset(tmp_path, [crowd], crowds="ignore")
    assert ignoring.load(0).weights.tolist() == [1, 0]
    dropping = dataset(tmp_path, [crowd], crowds="drop").load(0)
    assert dropping.boxes.tolist() == [[0, 0, 0.5, 0.5]]
    assert (dropping.class_ids.tolist(), dropping.weights.tolist()) == ([1], [1])


def test_without_a_label_map_nothing_is_opened(tmp_path):
    records = schema.Records(paths=("a.record",))
    with refused("a.record"):
        open_dataset(schema.Data(), records, MODEL)


def test_a_label_map_beyond_the_model_is_refused_with_the_number_to_set(tmp_path):
    with pytest.raises(UserError, match=r"id 4.*3 classes[\s\S]*model\.num_classes=4"):
        open_dataset(schema.Data(), write(tmp_path, [example()]), schema.OneStage(num_classes=3))


def test_contiguous_slots_need_as_many_classes_as_the_label_map_has(tmp_path):
    # Ids 1, 2 and 4: three classes, or four with a gap.
    records = write(tmp_path, [example()])
    contiguous = schema.OneStage(num_classes=3, class_slots="contiguous")
    assert open_dataset(schema.Data(), records, contiguous).slots.ids == (1, 2, 4)
    by_id = schema.OneStage(num_classes=4)
    assert open_dataset(schema.Data(), records, by_id).slots.ids == (1, 2, 3, 4)
    with refused("labels.pbtxt", 4, "num_classes=3"):
        open_dataset(schema.Data(), records, replace(by_id, class_slots="contiguous"))


def test_a_bad_image_stops_and_names_its_record(tmp_path):
    data = dataset(tmp_path, [example(), BROKEN])
    with refused("data.record: record 1 (byte 2167)"):
        data.load(1)


def test_a_bad_image_is_left_out_and_counted_once(tmp_path):
    data = dataset(tmp_path, [example(), BROKEN], data=DROP)
    assert data.load(1) is None
    assert data.load(1) is None
    assert data.load(0) is not None
    assert {p.reason: p.count for p in data.source.problems} == {"image cannot be decoded": 1}


def test_the_real_size_wins_over_the_claimed_one_and_is_noted_once(tmp_path):
    data = dataset(tmp_path, [example(size=(40, 60), claimed=(60, 40)), example(1)])
    assert data.load(0).image.shape == (40, 60, 3)
    data.load(0)
    data.load(1)
    [problem] = data.source.problems
    assert problem.count == 1
    assert "60x40 (height x width) claimed, 40x60 found" in problem.examples[0]


def test_image_and_description_of_a_record(tmp_path):
    data = dataset(tmp_path, [example(0), example(7), BROKEN], data=DROP)
    assert (data.image(1) == decode_image(example(7).encoded)).all()
    assert "record 1" in data.describe(1)
    assert "image-7" in data.describe(1)
    with refused("data.record: record 2 (byte 4296)"):
        data.image(2)


AUGMENTATIONS = (schema.RandomHorizontalFlip(), schema.SsdRandomCrop())


@pytest.fixture(scope="module")
def raccoons():
    records = schema.Records(
        paths=(str(SHARED / "data/raccoon/data/test.record"),),
        label_map=str(SHARED / "data/raccoon/label_map.pbtxt"),
    )
    model = schema.OneStage(num_classes=1, resizer=schema.FixedShapeResizer(height=96, width=96))
    return open_dataset(schema.Data(), records, model)


@pytest.mark.proof
@needs_shared
def test_real_records_are_evaluated_completely(raccoons):
    loader = EvalLoader(raccoons, batch_size=16)
    batches = list(loader)
    records = np.concatenate([batch.records for batch in batches])
    assert records[records >= 0].tolist() == list(range(len(raccoons)))
    weights = np.concatenate([batch.weights for batch in batches])
    boxes = np.concatenate([batch.boxes for batch in batches])[weights > 0]
    assert len(boxes) == sum(len(raccoons.source.example(i).boxes) for i in range(len(raccoons)))
    assert (boxes[:, 2:] > boxes[:, :2]).all()
    assert boxes.min() >= 0
    assert boxes.max() <= 1


@pytest.mark.proof
@needs_shared
def test_real_records_give_the_same_batches_with_any_number_of_threads(raccoons):
    options = {"augmentations": AUGMENTATIONS, "batch_size": 16}
    runs = [TrainLoader(raccoons, workers=n, **options).iterate(0, 4) for n in (0, 4)]
    for batch, other in zip(*runs, strict=True):
        assert [left.tobytes() for left in batch] == [right.tobytes() for right in other]
        inside = batch.boxes[batch.weights > 0]
        assert inside.min() >= 0
        assert inside.max() <= 1
        assert (inside[:, 2:] > inside[:, :2]).all()


@pytest.mark.proof
@needs_shared
@pytest.mark.parametrize("folder", ["bccd", "tiny_coco", "raccoon"])
def test_every_photograph_decodes(folder, capfd):
    paths = sorted((SHARED / "data" / folder).rglob("*.jpg"))
    assert len(paths) >= 100
    for path in paths:
        image = decode_image(path.read_bytes())
        assert image.dtype == np.uint8
        assert image.ndim == 3
        assert image.shape[2] == 3
    assert capfd.readouterr().err == ""
