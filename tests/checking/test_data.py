"""Findings of a check of records, and their statistics."""

import dataclasses
import io
import json
from dataclasses import replace

import numpy as np
import pytest
from rich.console import Console

from stillbox.checking.data import check_records
from stillbox.checking.data_stats import records_stats
from stillbox.records.label_map import LabelMap
from stillbox.records.tf_example import serialize_example
from stillbox.records.wire import parse_features, serialize_features
from tests.checking.checked_records import counts_of, sound
from tests.helpers import refused
from tests.records.builders import CAT_DOG, image_bytes, make_example, write_records
from tests.small import SHARED, needs_shared

pytestmark = pytest.mark.usefixtures("cache_folder")


@pytest.fixture
def check(tmp_path):
    def run(*examples, label_map=CAT_DOG, **options):
        path = write_records(tmp_path / "a.record", examples)
        return check_records([str(path)], label_map, **options)

    return run


def with_classes(*texts):
    count = len(texts)
    example = make_example([[0.1, 0.2, 0.5, 0.6]] * count, [1] * count)
    features = parse_features(serialize_example(example, CAT_DOG))
    features["image/object/class/text"] = [text.encode() for text in texts]
    del features["image/object/class/label"]
    return serialize_features(features)


def test_sound_data_has_no_finding(check):
    result = check(sound(0), sound(1))
    assert result.findings == ()
    assert result.sound
    assert (result.records, result.boxes, result.most_boxes) == (2, 4, 2)
    assert result.summary()[-1] == "The data is sound."


def test_a_class_outside_the_label_map_is_an_error(check, tmp_path):
    result = check(with_classes("cow", "cat"), sound(1))
    assert not result.sound
    (error,) = (f for f in result.findings if f.severity == "error")
    assert (error.what, error.count) == ("unknown class", 1)
    assert error.examples == (f"{tmp_path}/a.record: record 0 (byte 0), box 0: 'cow'",)
    assert "label map" in error.fix
    assert result.summary()[-1] == "The data is not sound: 1 error."


def test_class_texts_without_a_label_map_are_an_error(check):
    result = check(with_classes("cat"), label_map=None)
    assert counts_of(result, "error") == {
        "class texts need a label map": 1,
        "no box in any record": 1,
    }


def test_an_id_above_the_number_of_classes_is_an_error(check):
    assert counts_of(check(sound(0), num_classes=2)) == {}
    assert counts_of(check(sound(0), num_classes=1)) == {"class id above num_classes": 1}


@pytest.mark.parametrize("encoded", [b"no image", image_bytes()[:-30]])
def test_an_image_that_cannot_be_decoded_is_an_error(check, encoded):
    result = check(sound(0), make_example(encoded=encoded, image_id="b"))
    assert counts_of(result, "error") == {"unreadable image": 1}
    assert "record 1 (byte" in result.findings[0].examples[0]


def test_a_record_that_cannot_be_read_is_an_error(check, tmp_path):
    check(sound(0), sound(1), sound(2))
    path = tmp_path / "a.record"
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)
    result = check_records([str(path)], CAT_DOG)
    assert counts_of(result) == {"unreadable record": 1}
    path.write_bytes(data[:-3])
    result = check_records([str(path)], CAT_DOG)
    assert counts_of(result) == {"unreadable record": 1, "damaged file": 1}
    assert not result.sound


def test_pixel_coordinates_are_an_error(check):
    result = check(make_example([[4, 6, 20, 30]]), sound(1))
    assert counts_of(result, "error") == {"box in pixels, not in 0..1": 1}


BOXES = {
    "box inverted": [0.5, 0.2, 0.1, 0.6],
    "box reaches outside the image": [0.1, 0.2, 1.5, 0.6],
    "box lies wholly outside the image": [1.1, 0.2, 1.5, 0.6],
    "box without area": [0.1, 0.2, 0.1, 0.6],
    "box coordinate is not a number": [0.1, 0.2, np.nan, 0.6],
}


@pytest.mark.parametrize("reason", BOXES)
def test_single_bad_boxes_are_warnings(check, reason):
    result = check(make_example([BOXES[reason]], image_id="b"), sound(1))
    assert counts_of(result, "warning") == {reason: 1}
    assert result.summary()[-1] == "Nothing stops training; see the warning above."
    assert "data.bad_boxes=fix" in result.findings[0].fix


def test_an_image_id_of_thousands_of_digits_is_named_by_its_length(check):
    result = check(dataclasses.replace(sound(0), image_id="9" * 5_000))
    assert counts_of(result) == {"image id of very many characters": 1}
    (problem,) = (finding for finding in result.findings if "very many" in finding.what)
    assert "5,000 characters" in problem.examples[0]
    assert len(problem.examples[0]) < 200


def test_an_image_id_that_occurs_twice_names_both(check):
    again = dataclasses.replace(sound(2), image_id="0")
    result = check(sound(0), sound(1), again)
    assert counts_of(result) == {"image id occurs twice": 1}
    (example,) = result.findings[0].examples
    assert "record 2" in example
    assert "'0' is also" in example
    assert "record 0" in example


def test_a_claimed_size_that_is_not_the_images(check):
    result = check(make_example(height=60, width=40), sound(1))
    assert counts_of(result, "warning") == {"size is not the image's": 1}
    assert "record 40 x 60, image 60 x 40" in result.findings[0].examples[0]
    assert counts_of(check(make_example(height=0, width=0), sound(1)), "warning") == {}


def test_unusual_images_are_warnings(check):
    result = check(
        make_example(encoded=image_bytes(orientation=6), image_id="a"),
        make_example(encoded=image_bytes(mode="CMYK"), image_id="b"),
        make_example(encoded=image_bytes(kind="BMP"), image_id="c"),
        sound(1),
    )
    assert counts_of(result) == {"EXIF orientation": 1, "CMYK image": 1, "neither JPEG nor PNG": 1}
    assert not result.sound
    assert result.summary()[-1] == "Nothing stops training; see the 3 warnings above."


def test_background_images_are_notes_unless_no_image_has_a_box(check):
    result = check(make_example([], [], image_id="b"), sound(1, [1]))
    assert counts_of(result, "note") == {"image without a box": 1, "class without a box": 1}
    assert result.sound
    assert "no box in any record" in counts_of(check(make_example([], [])), "error")


def test_no_records_are_refused(tmp_path):
    with refused("*.record"):
        check_records([f"{tmp_path}/*.record"])


def test_errors_come_first_and_the_order_does_not_depend_on_threads(check):
    examples = [with_classes("cow"), with_classes("dog"), make_example([], [])] * 10
    results = [check(*examples, workers=workers) for workers in (1, 4)]
    assert results[0] == results[1]
    severities = [finding.severity for finding in results[0].findings]
    assert severities == sorted(severities, key=["error", "warning", "note"].index)
    assert "record 0" in results[0].findings[0].examples[0]


def test_text_and_json(check):
    result = check(with_classes("cow"), sound(1))
    console = Console(width=120)
    with console.capture() as shown:
        console.print(result.render())
    lines = shown.get().splitlines()
    assert lines[0] == "  error 1 x unknown class (box dropped)"
    assert lines[1].strip().endswith("a.record: record 0 (byte 0), box 0: 'cow'")
    assert lines[2].startswith("    fix: give the label map")
    assert lines[-1] == "1 error, 0 warnings, 1 note"
    stored = json.loads(json.dumps(result.to_dict()))
    assert stored["sound"] is False
    assert stored["findings"][0]["reason"] == "unknown class"


@pytest.mark.parametrize("name", ["a" * 60, "b" * 90, "of/many/" + "folders/" * 12 + "c"])
def test_names_in_the_summary_stay_whole_on_a_narrow_terminal(check, name):
    result = replace(check(sound(0)), sets=(name, "val"))
    console = Console(file=io.StringIO(), width=40)
    console.print(result.render_summary(), crop=False)
    lines = console.file.getvalue().splitlines()
    assert any(name in line for line in lines)
    assert " ".join(lines) == " ".join(result.summary())
    assert all(len(line) <= 40 or " " not in line for line in lines)


@pytest.mark.parametrize("run", [check_records, records_stats])
def test_progress_is_reported_for_every_record(tmp_path, run):
    path, seen = write_records(tmp_path / "a.record", [sound(0), sound(1)]), []
    run([str(path)], CAT_DOG, on_record=lambda done, total: seen.append((done, total)))
    assert seen == [(1, 2), (2, 2)]


@needs_shared
@pytest.mark.parametrize(
    ("records", "label_map", "notes"),
    [
        ("tfrecords/pets_examples.record", "pet_label_map", {"class without a box": 27}),
        ("tfrecords/raccoon_test.record", "object-detection", {}),
        ("raccoon/data/test.record", "object-detection", {}),
    ],
)
def test_real_records_are_sound(records, label_map, notes):
    classes = LabelMap.from_file(SHARED / "configs" / "label_maps" / f"{label_map}.pbtxt")
    result = check_records([str(SHARED / "data" / records)], classes)
    assert counts_of(result) == notes


@needs_shared
def test_real_records_with_the_wrong_label_map_are_not():
    classes = LabelMap.from_file(SHARED / "configs" / "label_maps" / "face_label_map.pbtxt")
    result = check_records([str(SHARED / "data" / "tfrecords" / "raccoon_test.record")], classes)
    assert counts_of(result, "error") == {"unknown class": 44, "no box in any record": 1}


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


def test_sizes_are_cocos_by_segment_area_where_there_is_one(tmp_path):
    # In 200 x 200 pixels: .1 -> 20 px, 400 < 1024; .3 -> 60 px, 3600 < 9216; .9 -> 180 px, 32400.
    boxes = [[0, 0, side, side] for side in (0.1, 0.3, 0.9, 0.9)]
    area = np.array([np.nan, np.nan, np.nan, 500], np.float32)
    example = make_example(boxes, [1] * 4, encoded=image_bytes(200, 200), area=area)
    assert stats(tmp_path, [example]).box_sizes == {"small": 2, "medium": 1, "large": 1}
    # 32 of 64 px: 1024 is medium; 96 of 96 px: 9216 is large
    for size, side, expected in ((64, 0.5, "medium"), (96, 1.0, "large")):
        example = make_example([[0, 0, side, side]], encoded=image_bytes(size, size))
        assert stats(tmp_path, [example]).box_sizes[expected] == 1


def test_unusable_records_and_classes_without_a_name_are_counted(tmp_path):
    result = stats(tmp_path, [b"no example", make_example(encoded=b"no image"), make_example()])
    assert (result.records, result.unusable, result.boxes) == (3, 2, 1)
    result = stats(tmp_path, [serialize_example(make_example(class_ids=[7]))], None)
    assert [(c.id, c.name, c.boxes) for c in result.classes] == [(7, "class 7", 1)]
    result = stats(tmp_path, [make_example([], [])])
    assert (result.boxes, result.most_boxes, result.boxes_per_image) == (0, 0, {"0": 1})
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
