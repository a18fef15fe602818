import json

import numpy as np
from rich.console import Console

from stillbox.checking.data_stats import records_stats
from stillbox.records.tf_example import serialize_example
from tests.records.builders import CAT_DOG, image_bytes, make_example, write_records


def stats(tmp_path, examples, label_map=CAT_DOG):
    return records_stats([str(write_records(tmp_path / "a.record", examples))], label_map)


def test_counts(tmp_path):
    result = stats(
        tmp_path,
        [
            make_example(
                [[0, 0, 0.5, 0.5]] * 3,
                [1, 1, 2],
                is_crowd=np.array([True, False, False]),
                difficult=np.array([True, True, False]),
                truncated=np.array([True, True, True]),
                weights=np.array([0, 1, 0.5], np.float32),
            ),
            make_example([[0, 0, 1, 1]], [1]),
            make_example([], [], encoded=image_bytes(30, 30, "PNG", "L")),
        ],
    )
    assert (result.records, result.unusable, result.images_without_boxes) == (3, 0, 1)
    assert (result.boxes, result.crowds, result.difficult, result.truncated) == (4, 1, 2, 3)
    assert result.zero_weight == 1
    assert [(c.id, c.name, c.boxes, c.images) for c in result.classes] == [
        (1, "cat", 3, 2),
        (2, "dog", 1, 1),
    ]
    assert result.boxes_per_image == {"0": 1, "1": 1, "2 to 4": 1}
    assert result.most_boxes == 3
    assert result.boxes_99th_percentile == 3
    assert result.image_sizes == {"60 x 40": 2, "30 x 30": 1}
    assert result.image_formats == {"JPEG RGB": 2, "PNG L": 1}
    assert result.encoded_bytes == 2 * len(image_bytes()) + len(image_bytes(30, 30, "PNG", "L"))


def test_sizes_are_cocos_and_the_segment_counts_where_there_is_one(tmp_path):
    # In 200 x 200 pixels: .1 -> 20 px, 400 < 1024; .3 -> 60 px, 3600 < 9216; .9 -> 180 px, 32400.
    boxes = [[0, 0, side, side] for side in (0.1, 0.3, 0.9, 0.9)]
    area = np.array([np.nan, np.nan, np.nan, 500], np.float32)
    example = make_example(boxes, [1] * 4, encoded=image_bytes(200, 200), area=area)
    assert stats(tmp_path, [example]).box_sizes == {"small": 2, "medium": 1, "large": 1}


def test_borders_of_the_sizes(tmp_path):
    # 32 of 64 px: 1024 is medium; 96 of 96 px: 9216 is large
    for size, side, expected in ((64, 0.5, "medium"), (96, 1.0, "large")):
        example = make_example([[0, 0, side, side]], encoded=image_bytes(size, size))
        assert stats(tmp_path, [example]).box_sizes[expected] == 1


def test_unusable_records_are_counted_and_left_out(tmp_path):
    result = stats(tmp_path, [b"no example", make_example(encoded=b"no image"), make_example()])
    assert (result.records, result.unusable, result.boxes) == (3, 2, 1)


def test_without_a_label_map_classes_go_by_their_ids(tmp_path):
    result = stats(tmp_path, [serialize_example(make_example(class_ids=[7]))], None)
    assert [(c.id, c.name, c.boxes) for c in result.classes] == [(7, "class 7", 1)]


def test_records_without_any_box(tmp_path):
    result = stats(tmp_path, [make_example([], [])])
    assert (result.boxes, result.most_boxes, result.boxes_per_image) == (0, 0, {"0": 1})


def test_many_boxes(tmp_path):
    result = stats(tmp_path, [make_example([[0, 0, 1, 1]] * 250, [1] * 250)])
    assert result.boxes_per_image["200 or more"] == 1


def test_tables_and_json(tmp_path):
    examples = [make_example(encoded=image_bytes(10 + n, 20)) for n in range(7)]
    result = stats(tmp_path, examples)
    console = Console(width=120)
    with console.capture() as shown:
        for table in result.tables():
            console.print(table)
    for words in ("records", "cat", "small", "20 x 10", "2 other sizes", "JPEG RGB"):
        assert words in shown.get()
    assert json.loads(json.dumps(result.to_dict()))["boxes"] == 7


def test_progress_is_reported_for_every_record(tmp_path):
    path = write_records(tmp_path / "a.record", [make_example(), make_example()])
    seen = []
    records_stats([str(path)], CAT_DOG, on_record=lambda done, total: seen.append((done, total)))
    assert seen == [(1, 2), (2, 2)]
