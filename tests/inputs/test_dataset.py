from dataclasses import replace

import numpy as np
import pytest

from stillbox.errors import UserError
from stillbox.experiment import schema
from stillbox.inputs.dataset import open_dataset
from stillbox.inputs.decode import decode_image
from tests.inputs.helpers import MODEL, dataset, example, write

DROP = schema.Data(bad_records="drop")
BROKEN = example(1, encoded=b"\xff\xd8\xff\xe0 no jpeg")


def test_a_record_becomes_pixels_boxes_and_class_ids(tmp_path):
    one = example(0, [[0.1, 0.2, 0.5, 0.6], [0, 0, 1, 1]], [1, 4])
    data = dataset(tmp_path, [one])
    sample = data.load(0)
    assert len(data) == 1
    assert (sample.image == decode_image(one.encoded)).all()
    np.testing.assert_array_equal(sample.boxes, one.boxes)
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
    with pytest.raises(UserError, match=r"no label map[\s\S]*fix"):
        open_dataset(schema.Data(), records, MODEL)


def test_a_label_map_beyond_the_model_is_refused_with_the_number_to_set(tmp_path):
    with pytest.raises(UserError, match=r"id 4.*3 classes[\s\S]*model\.num_classes=4"):
        open_dataset(schema.Data(), write(tmp_path, [example()]), schema.OneStage(num_classes=3))


def test_contiguous_slots_want_as_many_classes_as_the_label_map_has(tmp_path):
    # Ids 1, 2 and 4: three classes, or four with a gap.
    records = write(tmp_path, [example()])
    contiguous = schema.OneStage(num_classes=3, class_slots="contiguous")
    assert open_dataset(schema.Data(), records, contiguous).slots.ids == (1, 2, 4)
    by_id = schema.OneStage(num_classes=4)
    assert open_dataset(schema.Data(), records, by_id).slots.ids == (1, 2, 3, 4)
    with pytest.raises(UserError, match=r"3 classes, the model 4[\s\S]*num_classes=3"):
        open_dataset(schema.Data(), records, replace(by_id, class_slots="contiguous"))


def test_a_bad_image_stops_and_names_its_record(tmp_path):
    data = dataset(tmp_path, [example(), BROKEN])
    with pytest.raises(UserError, match=r"data\.record.*record 1[\s\S]*cannot be decoded"):
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
    with pytest.raises(UserError, match=r"record 2.*no usable image"):
        data.image(2)
