"""Small data sets re-made after public reports: each is read as it was meant, or stops."""

import json
import shutil

import numpy as np
import pytest

from stillbox.errors import UserError
from stillbox.records.folder import convert_folder
from stillbox.records.folder_content import FolderOptions
from tests.helpers import refused
from tests.records.test_folder import examples
from tests.small import SHARED, needs_shared

pytestmark = needs_shared
CASES = SHARED / "cases" / "data"
HEIGHT, WIDTH = 240, 320


def box_of(number):
    """ymin, xmin, ymax, xmax of the red rectangle of image `p<number>`."""
    return (30 + 5 * number, 20 + 10 * number, 130 + 5 * number, 120 + 10 * number)


def small(number):
    """The second box of some sets."""
    return (150 + 5 * number, 200, 210 + 5 * number, 260)


def corners(number):
    return (150 + number, 200 + number, 210 + number, 260 + number)


def single_box(number):
    return [box_of(number)]


def both(number):
    return [box_of(number), small(number)]


ALL = range(6)
# Images that are read, their boxes, and a word of the report.
READ = {
    "c_nfd": (ALL, single_box, "differs in form"),
    "c_rle_only": (ALL, single_box, "without a bbox"),
    "coco_normalised": (ALL, single_box, "boxes are fractions"),
    "coco_segmentation_only": (ALL, single_box, "without a bbox"),
    "coco_string_image_ids": (ALL, single_box, ""),
    "csv_semicolon": (ALL, single_box, "filename, width, height, class"),
    "d_coco_entry_per_box": (ALL, both, "annotated in several places"),
    "d_cvat_two_tasks": (ALL, both, "annotated in several places"),
    "i_png_12bit": (ALL, single_box, "12 bits"),
    "l_choices": (ALL, single_box, ""),
    "l_two_labels": (ALL, single_box, "several labels"),
    "m_ignore_label": (ALL, single_box, "to be ignored"),
    "m_rotation": (ALL, single_box, ""),
    "m_truncated": ((0, 3, 4, 5), single_box, "cannot be read"),
    "tiff_float01": (ALL, single_box, "floats"),
    "v_missing_some": ((0, 1, 2), single_box, "3 x image without annotation"),
    "v_normalised": (ALL, single_box, "boxes are fractions"),
    "v_two_suffixes": (ALL, single_box, ""),
    "voc_broken_heads": ((0, 1, 3, 4, 5), single_box, "the file is empty"),
    "x_names_yes_on": (ALL, single_box, ""),
    "x_via_coco": (ALL, single_box, ""),
    "x_yolo_pixel_centre": (ALL, single_box, "boxes are pixels"),
    "y_duplicates": (ALL, single_box, "the same box again"),
    "y_pose2": (ALL, lambda n: [corners(n)], "keypoints"),
    "y_ppm": (ALL, single_box, "PPM"),
    "y_val_float_class": (ALL, single_box, ""),
    "yolo_commas": (ALL, single_box, ""),
    "yolo_conf": (ALL, single_box, "column 6 is a confidence"),
    "yolo_float_class": (ALL, single_box, ""),
    "yolo_names_bool": (ALL, single_box, ""),
    "yolo_track_conf_id": (ALL, single_box, "a confidence and a track"),
    "yolo_windows_yaml": (ALL, single_box, ""),
}
STOPS = {
    "f_plain_export.zip": "this is an archive[\\s\\S]*unpack it",
    "f_via_json": "VIA annotations",
    "w_coco_valid_truncated": r"valid/_annotations\.coco\.json:1: .* a split is lost",
    "w_yaml_tab": r"data\.yaml:5:1: ",
    "yolo_pixels": "pixels:corners or box_numbers=pixels:corner_size",
}
OTHERS = {"dense_yolo", "ev", "ls_same_names", "t_label0_notext"}


def test_every_case_is_here():
    assert {path.name for path in CASES.iterdir()} == READ.keys() | STOPS.keys() | OTHERS


def converted(name, tmp_path):
    source = CASES / name
    (shutil.copytree if source.is_dir() else shutil.copy)(source, tmp_path / name)
    return convert_folder(tmp_path / name, tmp_path / "out")


@pytest.mark.parametrize("name", READ)
def test_it_is_read_as_it_was_meant(tmp_path, name):
    images, boxes, said = READ[name]
    result = converted(name, tmp_path)
    read = examples(result) | examples(result, "validation")
    numbers = {int(filename.rpartition(".")[0][-1]): e for filename, e in read.items()}
    assert sorted(numbers) == list(images)
    for number, example in numbers.items():
        expected = np.array(boxes(number)) / np.array([HEIGHT, WIDTH] * 2)
        # Files have six decimals.
        np.testing.assert_allclose(example.boxes, expected, atol=2e-5)
    assert any(said in problem for problem in result.problems) or not said


@pytest.mark.parametrize("name", STOPS)
def test_it_stops_with_the_reason(tmp_path, name):
    with pytest.raises(UserError, match=STOPS[name]):
        converted(name, tmp_path)
    assert not (tmp_path / "out").exists()


def test_a_lost_split_stops_with_bad_records_too(tmp_path):
    shutil.copytree(CASES / "m_truncated", tmp_path / "set")
    with refused("images/p1.json:1"):
        convert_folder(tmp_path / "set", tmp_path / "out", FolderOptions(bad_records="fail"))


def test_names_splits_and_folders(tmp_path):
    assert converted("yolo_names_bool", tmp_path).classes == ("no", "yes", "on", "10", "010", "~")
    windows = convert_folder(CASES / "yolo_windows_yaml", tmp_path / "windows")
    assert (windows.train_images, windows.validation_images) == (4, 2)
    assert windows.split == "stated by the data set"
    folders = convert_folder(CASES / "ls_same_names", tmp_path / "folders")
    read = examples(folders) | examples(folders, "validation")
    for number, name in enumerate(sorted(read)):
        expected = np.array(box_of(number)) / np.array([HEIGHT, WIDTH] * 2)
        np.testing.assert_allclose(read[name].boxes, [expected], atol=2e-5)
    png = convert_folder(CASES / "v_two_suffixes", tmp_path / "suffixes")
    read = examples(png) | examples(png, "validation")
    assert sorted(read) == [f"p{number}.png" for number in ALL]


def test_all_boxes_of_a_dense_set_are_read(tmp_path):
    assert converted("dense_yolo", tmp_path).boxes == 600


def test_what_the_user_says_about_the_numbers_decides(tmp_path):
    result = convert_folder(
        CASES / "yolo_pixels", tmp_path / "out", FolderOptions(box_numbers="pixels:corners")
    )
    read = examples(result) | examples(result, "validation")
    for number in ALL:
        expected = np.array(box_of(number)) / np.array([HEIGHT, WIDTH] * 2)
        np.testing.assert_allclose(read[f"p{number}.jpg"].boxes, [expected], atol=1e-6)
    stored = json.loads((tmp_path / "out" / "conversion.json").read_text())
    assert any("boxes are pixels" in problem for problem in stored["result"]["problems"])
