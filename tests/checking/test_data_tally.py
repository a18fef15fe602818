"""Faults that show only in pixels, beside other records, or in the whole set."""

import io
import json

import numpy as np
import pytest
from PIL import Image

from stillbox.checking.data import check_records
from stillbox.cli.main import main
from stillbox.records.label_map import LabelMap
from stillbox.records.tf_example import serialize_example
from stillbox.records.wire import parse_features, serialize_features
from tests.checking.checked_records import counts_of, own_image, sound
from tests.records.builders import CAT_DOG, make_example, write_records
from tests.small import SHARED, needs_shared

pytestmark = pytest.mark.usefixtures("cache_folder")

# The images have 40 x 60 pixels.
PIXEL = np.array([1 / 40, 1 / 60, 1 / 40, 1 / 60])


@pytest.fixture
def check(tmp_path):
    """The result for one file, or for several by their names."""

    def run(*examples, label_map=CAT_DOG, files=None, **options):
        files = files or {"a.record": examples}
        paths = [str(write_records(tmp_path / name, some)) for name, some in files.items()]
        return check_records(paths, label_map, **options)

    return run


def boxed(number, *boxes):
    """An example of cats."""
    return make_example(boxes, [1] * len(boxes), image_id=str(number), encoded=own_image(number))


def warned(result):
    return counts_of(result, "error") | counts_of(result, "warning")


def test_a_box_below_one_pixel_is_a_warning_with_its_size(check):
    small = [*[10, 20] * PIXEL[:2], *[10.5, 20.25] * PIXEL[:2]]
    result = check(boxed(0, small), sound(1), sound(2))
    assert warned(result) == {"box below one pixel": 1}
    assert result.findings[0].examples[0].endswith("record 0 (byte 0): 0.25 x 0.5 pixels")
    assert not result.sound


def test_a_box_of_one_pixel_or_long_and_thin_is_none(check):
    thin = [0, 0.1, 0.5 / 40, 0.9]
    # The last one fills a corner, as the first pixel does.
    corners = (np.array([10, 20, 11, 21]) * PIXEL, thin, [1 - 1 / 40, 1 - 1 / 60, 1, 1])
    assert warned(check(boxed(0, *corners), sound(1))) == {}


def test_one_box_within_the_first_pixel_is_one_below_a_pixel(check):
    result = check(boxed(0, 0.5 * PIXEL * [0, 0, 1, 1]), sound(1), sound(2))
    assert warned(result) == {"box below one pixel": 1}


@pytest.mark.parametrize("size", [(40, 60), (400, 30)])
def test_fractions_that_were_divided_by_the_size_are_an_error_of_the_set(check, size):
    # A box over the whole image fills the first pixel; the rest are parts of it.
    boxes = np.array([[0, 0, 1, 1], [0.2, 0.3, 0.5, 0.6], [0.5, 0.5, 0.9, 0.6]]) / np.tile(size, 2)
    image = own_image(0, height=size[0], width=size[1])
    lost = [
        make_example(
            [box], height=size[0], width=size[1], encoded=image + b"%d" % n, image_id=str(n)
        )
        for n, box in enumerate(boxes)
    ]
    result = check(*lost)
    assert warned(result) == {"boxes divided by the image size twice": 3}
    assert "were fractions before" in result.findings[0].fix
    assert result.summary()[-1] == "The data is not sound: 3 errors."
    # With two good boxes of five it is still the set; with five of eight it is not.
    assert counts_of(check(*lost, sound(5)), "error") == {
        "boxes divided by the image size twice": 3
    }
    assert counts_of(check(*lost, sound(5), sound(6, [1] * 3)), "error") == {}


def test_sizes_of_another_unit_than_the_corners_are_an_error_of_the_set(check):
    # Corners in pixels, sizes in fractions: .3 of a pixel anywhere in the image.
    lost = [boxed(n, [0.1 * n, 0.2, 0.1 * n + 0.3 / 40, 0.2 + 0.3 / 60]) for n in range(1, 5)]
    result = check(*lost, sound(9))
    assert warned(result) == {"most boxes are below one pixel": 4}
    assert result.findings[0].severity == "error"


WHOLE = [0, 0, 1, 0.995]


def test_boxes_of_the_whole_image_are_a_note_or_a_warning_by_their_share(check):
    few = check(boxed(0, WHOLE), sound(1, [1] * 5), sound(2, [2] * 5))
    assert counts_of(few) == {"box of the whole image": 1}
    assert few.findings[0].severity == "note"
    assert few.sound
    # 1 of 5 is more than a tenth.
    many = check(boxed(0, WHOLE), sound(1), sound(2))
    assert warned(many) == {"many boxes are of the whole image": 1}
    assert warned(check(boxed(0, [0, 0, 1, 0.97]), sound(1))) == {}


def test_the_same_box_again_is_a_warning_unless_the_class_differs(check):
    box, other = [0.1, 0.2, 0.5, 0.6], [0.3, 0.2, 0.5, 0.6]
    result = check(boxed(0, box, box, other, box), sound(1))
    assert warned(result) == {"same box twice": 1}
    assert result.findings[0].examples[0].endswith("class id 1, 3 times")
    assert warned(check(make_example([box, box], [1, 2]), sound(1))) == {}
    # In two images it is no repetition.
    assert warned(check(boxed(0, box), boxed(1, box))) == {}


def test_a_class_with_one_box_is_a_warning_where_classes_have_many(check):
    many = [sound(n, [1] * 5) for n in range(5)]
    result = check(*many, sound(9, [2]))
    assert warned(result) == {"class with one box": 1}
    assert result.findings[0].examples == ("id 2: dog",)
    # 6 boxes of 2 classes: each is rare.
    assert warned(check(many[0], sound(9, [2]))) == {}
    # In a sample any class can be.
    assert warned(check(*many, sound(9, [2]), sample=5)) == {}


def test_an_image_in_two_sets_is_a_warning_that_names_both(check, tmp_path):
    shared = sound(0)
    files = {
        "train.record-00000-of-00002": [sound(1), shared],
        "train.record-00001-of-00002": [sound(2)],
        "val.record": [sound(0, image_id="c")],
    }
    result = check(files=files)
    assert warned(result) == {"image in two sets": 1}
    (example,) = result.findings[0].examples
    assert example.startswith(f"{tmp_path}/val.record: record 0 (byte 0): as ")
    assert f"as {tmp_path}/train.record-00000-of-00002: record 1" in example
    assert result.sets == ("train", "val")
    assert "in 2 sets (train, val)" in result.summary()[1]


def test_an_image_twice_in_the_shards_of_a_set_is_a_warning(check):
    files = {
        "train-00000-of-00002.tfrecord": [sound(0)],
        "train-00001-of-00002.tfrecord": [sound(0, image_id="1"), sound(0, [1], image_id="2")],
    }
    result = check(files=files)
    assert warned(result) == {"image twice in a set": 2}
    same, other = result.findings[0].examples
    assert same.endswith("record 0 (byte 0)")
    assert other.endswith("record 0 (byte 0), with other boxes")
    assert result.sets == ("train",)


def test_files_of_one_name_in_two_folders_are_two_sets(check, tmp_path):
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
    files = {"a/data.record": [sound(0)], "b/data.record": [sound(0, image_id="1")]}
    assert warned(check(files=files)) == {"image in two sets": 1}


def ramp(brightest):
    """A gray PNG image from black to a value."""
    pixels = np.tile(np.linspace(0, brightest, 60, dtype=np.uint8), (40, 1))
    buffer = io.BytesIO()
    Image.fromarray(pixels).save(buffer, "PNG")
    return buffer.getvalue()


def test_images_that_show_next_to_nothing_are_warnings(check):
    # 12 bits of 16 that were cut to the upper 8: 16 values.
    dark, black = (ramp(brightest) for brightest in (15, 0))
    result = check(sound(0, encoded=dark), sound(1, encoded=black), sound(2))
    assert warned(result) == {"image that uses few of the 256 values": 1, "image of one colour": 1}
    assert {f.examples[0].rpartition(": ")[2] for f in result.findings} == {
        "16 of 256",
        "1 of 256",
    }


def test_the_sentence_says_what_was_looked_at(check):
    result = check(sound(0), sound(1), make_example([], [], image_id="2", encoded=own_image(2)))
    assert result.summary()[1:] == [
        "Looked at: 3 images, decoded whole; each box in pixels of its image; 2 classes; boxes and "
        "images that occur twice, in 1 set (a).",
        "The data is sound.",
    ]
    stored = json.loads(json.dumps(result.to_dict()))
    assert stored["sound"] is True
    assert [stored[severity] for severity in ("errors", "warnings", "notes")] == [0, 0, 1]
    assert (stored["images"], stored["classes"], stored["sets"]) == (3, 2, ["a"])


def test_warnings_leave_the_exit_code_at_0_and_the_data_not_sound(tmp_path, capsys):
    box = [0.1, 0.2, 0.5, 0.6]
    path = write_records(tmp_path / "a.record", [boxed(0, box, box)])
    assert main(["data", "check", str(path)]) == 0
    assert "Nothing stops training; see the warning above." in capsys.readouterr().out
    assert main(["data", "check", str(path), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["sound"] is False
    write_records(path, [boxed(0, box / np.float64(60 * 40))])
    assert main(["data", "check", str(path)]) == 1


def labelled(*labels, texts=()):
    example = sound(sum(labels), [1] * len(labels))
    features = parse_features(serialize_example(example, CAT_DOG))
    features["image/object/class/label"] = np.array(labels)
    features["image/object/class/text"] = [text.encode() for text in texts]
    return serialize_features(features)


LABELS = {
    "all of the classes, one too low": ([0, 1], "labels begin at 0"),
    "one class": ([0, 0], "labels begin at 0"),
    "the greatest id occurs": ([0, 1, 2], "class id 0"),
}


@pytest.mark.parametrize("case", LABELS)
def test_labels_that_begin_at_0_are_told_by_the_whole_set(check, case):
    labels, reason = LABELS[case]
    label_map = LabelMap.from_names(["cat"]) if case == "one class" else CAT_DOG
    result = check(*(labelled(label, label) for label in set(labels)), label_map=label_map)
    assert counts_of(result, "error").pop(reason) == 2
    error = next(f for f in result.findings if f.what == reason)
    assert "begin at 1: write" in error.fix
    assert error.outcome == "box dropped"


def test_labels_from_0_are_no_fault_beside_right_texts(check):
    result = check(labelled(0, 0, texts=["cat", "cat"]))
    assert warned(result) == {}


def test_a_text_that_is_empty_is_an_unknown_class_and_no_label(check):
    features = parse_features(labelled(1, texts=[""]))
    del features["image/object/class/label"]
    assert "unknown class" in counts_of(check(serialize_features(features)), "error")


@needs_shared
def test_a_real_set_with_labels_from_0_is_told_with_the_remedy():
    folder = SHARED / "cases" / "data" / "t_label0_notext"
    label_map = LabelMap.from_file(folder / "label_map.pbtxt")
    result = check_records([str(folder / "train.record")], label_map)
    assert counts_of(result, "error") == {"labels begin at 0": 3}
