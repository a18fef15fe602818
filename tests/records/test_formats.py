"""Each format as its own tool writes it: what is read, and what is refused."""

import base64
import json
import struct
import tracemalloc

import numpy as np
import pytest
from PIL import features

from stillbox.errors import UserError
from stillbox.predicting.images import list_inputs
from stillbox.records import data_folder
from stillbox.records.data_folder import DataFolder
from stillbox.records.folder import convert_folder
from stillbox.records.folder_content import FolderOptions
from stillbox.records.foreign_files import read_json
from stillbox.records.formats import registry
from stillbox.records.formats.registry import recognise
from stillbox.records.problems import ConversionLog
from stillbox.references import worded
from tests.helpers import refused
from tests.records.builders import (
    BOX,
    HEIGHT,
    NAMES,
    WIDTH,
    coco,
    cvat,
    image_folder,
    label_studio,
    labelme,
    open_images,
    put,
    voc_csv,
    write_records,
    yolo,
)
from tests.records.test_folder import examples, picture, voc_folder, voc_xml
from tests.records.test_image_files import chunk

# A PNG of a few bytes that claims 8,000 x 8,000 pixels.
BOMB = (
    b"\x89PNG\r\n\x1a\n"
    + chunk(b"IHDR", struct.pack(">IIBBBBB", 8000, 8000, 8, 2, 0, 0, 0))
    + chunk(b"IDAT", b"")
)


@pytest.fixture
def folder(tmp_path):
    """Three pictures in `photos/images`, which annotations are put beside."""
    for number, name in enumerate(NAMES):
        picture(tmp_path / "photos" / "images" / f"{name}.png", number)
    return tmp_path / "photos"


def refuse_folder(folder, tmp_path, message, **options):
    """Converts a folder, and returns the error that says so; nothing is written."""
    with pytest.raises(UserError, match=message) as caught:
        convert_folder(folder, tmp_path / "refused", FolderOptions(**options))
    assert not (tmp_path / "refused").exists()
    return caught.value


def both_sets(converted):
    return examples(converted) | examples(converted, "validation")


# Images that are read: the others have no annotation.
FORMATS = {
    "yolo": (yolo, "abc"),
    "coco": (coco, "abc"),
    "cvat": (cvat, "abc"),
    "labelme": (labelme, "abc"),
    "voc_csv": (voc_csv, "ab"),
    "open_images": (open_images, "ab"),
    "label_studio": (label_studio, "ab"),
    "hugging_face": (image_folder, "abc"),
}


@pytest.mark.parametrize("name", FORMATS)
def test_a_format_is_recognised_and_its_boxes_are_read(folder, tmp_path, name):
    write, read = FORMATS[name]
    write(folder)
    converted = convert_folder(folder, tmp_path / "out")
    assert (converted.format, converted.boxes) == (name, 2)
    assert converted.classes[-1] == "cat"
    both = both_sets(converted)
    assert "".join(sorted(filename[0] for filename in both)) == read
    for image in ("a.png", "b.png"):
        expected = np.float32([[0.1, 0.1, 0.6, 0.6]])
        np.testing.assert_allclose(both[image].boxes, expected, atol=1e-6)
        assert both[image].class_ids == {"yolo": 2, "coco": 7, "cvat": 2}.get(name, 1)


@pytest.mark.parametrize("lists", [True, False])
def test_a_parquet_file_has_no_more_values_than_bytes(folder, tmp_path, lists):
    arrow = pytest.importorskip("pyarrow")
    parquet = pytest.importorskip("pyarrow.parquet")
    objects = {"bbox": [[0.0, 0.0, 9.0, 9.0]] * 30, "category": [0] * 30}
    rows = [objects if lists else {"bbox": [], "category": []}] * 60_000
    images = [{"bytes": b"same", "path": None}] * 60_000
    path = folder / "x.parquet"
    parquet.write_table(arrow.table({"image": images, "objects": rows}), path, compression="zstd")
    assert path.stat().st_size < 100_000
    refuse_folder(folder, tmp_path, "damaged or too large: it claims [0-9,]+ values")


def test_parquet_files_keep_their_images(folder, tmp_path):
    pyarrow = pytest.importorskip("pyarrow")
    parquet = pytest.importorskip("pyarrow.parquet")
    features = {"objects": {"feature": {"category": {"names": ["cat"], "_type": "ClassLabel"}}}}
    rows = [{"image": {"bytes": (folder / "images" / f"{name}.png").read_bytes(), "path": None},
             "objects": {"bbox": [[6.0, 4.0, 30.0, 20.0]], "category": [0]}}
            for name in NAMES]  # fmt: skip
    table = pyarrow.Table.from_pylist(rows)
    info = json.dumps({"info": {"features": features}})
    (tmp_path / "set").mkdir()
    table = table.replace_schema_metadata({"huggingface": info})
    parquet.write_table(table, tmp_path / "set" / "all.parquet", row_group_size=2)
    converted = convert_folder(tmp_path / "set", tmp_path / "out")
    assert (converted.format, converted.classes, converted.boxes) == ("hugging_face", ("cat",), 3)
    read = [e.encoded for p in ("train", "validation") for e in examples(converted, p).values()]
    assert sorted(read) == sorted(row["image"]["bytes"] for row in rows)


def numbered(folder):
    image_folder(folder)
    file = folder / "images/metadata.jsonl"
    file.write_text(file.read_text().replace('"cat"', "1"))


CARD = """---
license: mit
dataset_info:
  features:
  - name: image
    dtype: image
  - name: label
    dtype:
      class_label:
        names: {'0': indoors, '1': outdoors}
  - name: objects
    sequence:
    - {name: bbox, sequence: float32, length: 4}
    - name: category
      dtype:
        class_label:
          names:
            '0': dog
            '1': cat
---
# Pets
"""
INFOS = {"default": {"features": {
    "label": {"names": ["indoors", "outdoors"], "_type": "ClassLabel"},
    "objects": {"feature": {"category": {"names": ["dog", "cat"], "_type": "ClassLabel"}}},
}}}  # fmt: skip


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("README.md", CARD),
        ("README.md", CARD.replace("\n            '0': dog\n            '1': cat", " [dog, cat]")),
        ("dataset_infos.json", INFOS),
    ],
)
def test_numbers_get_the_names_of_the_data_set(folder, tmp_path, name, content):
    numbered(folder)
    put(folder, name, content)
    converted = convert_folder(folder, tmp_path / "out")
    assert (converted.classes, converted.boxes) == (("dog", "cat"), 2)
    both = both_sets(converted)
    assert both["a.png"].class_ids == 2


DAMAGED = "---\na: &a [*b]\n---\n"


@pytest.mark.parametrize("card", ["# Pets\n", "---\nlicense: mit\n---\n", "---\nno end\n", DAMAGED])
def test_numbers_without_names_stay_numbers_and_a_damaged_card_is_named(folder, tmp_path, card):
    numbered(folder)
    put(folder, "README.md", card)
    converted = convert_folder(folder, tmp_path / "out")
    assert converted.classes == ("class_1",)
    named = [p for p in converted.problems if "no class names can be read" in p]
    assert len(named) == (card == DAMAGED)
    assert all("README.md" in problem for problem in named)


def test_an_embedded_image_is_used_if_there_is_no_file(folder, tmp_path):
    labelme(folder)
    pixels = {name: (folder / f"images/{name}.png").read_bytes() for name in NAMES}
    for name, place in (("a", "../images/a.png"), ("b", "C:\\elsewhere\\b.png"), ("c", "c.png")):
        content = json.loads((folder / f"json/{name}.json").read_text())
        # The file of c is there, and another image is embedded.
        data = base64.b64encode(pixels["a" if name == "c" else name]).decode()
        put(folder, f"json/{name}.json", content | {"imagePath": place, "imageData": data})
    for name in "ab":
        (folder / f"images/{name}.png").unlink()
    converted = convert_folder(folder, tmp_path / "out")
    both = both_sets(converted)
    assert {name: example.encoded for name, example in both.items()} == {
        "a.png": pixels["a"], "b.img": pixels["b"], "c.png": pixels["c"],
    }  # fmt: skip


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        ("%%%%", "image file cannot be opened"),
        (base64.b64encode(BOMB).decode(), "bytes claim to have 8000 x 8000"),
    ],
)
def test_an_embedded_image_has_the_limits_of_files(folder, tmp_path, data, reason):
    labelme(folder)
    (folder / "images/a.png").unlink()
    content = json.loads((folder / "json/a.json").read_text())
    put(folder, "json/a.json", content | {"imageData": data})
    converted = convert_folder(folder, tmp_path / "out")
    assert any(reason in problem and "json/a.json" in problem for problem in converted.problems)


KEYPOINTS = {
    "images": [{"id": 1, "file_name": "a.png"}],
    "annotations": [
        {"id": 1, "image_id": 1, "category_id": 1, "bbox": [0, 0, 9, 9], "keypoints": []}
    ],
    "categories": [{"id": 1, "name": "person", "keypoints": ["nose"]}],
}
LABELME = "<annotation><object><name>cat</name><polygon></polygon></object></annotation>"
FOREIGN = {
    "CVAT for video": ("tracks.xml", "<annotations><track id='0' label='cat'/></annotations>"),
    "COCO JSON of keypoints": ("a.json", json.dumps(KEYPOINTS)),
    "YOLO poses": ("data.yaml", "names: [person]\ntrain: images\nkpt_shape: [17, 3]\n"),
    "KITTI": ("a.txt", "Car 0.00 0 -1.57 614 181 727 284 1.57 1.73 4.15 1.00 1.75 13.22 -1.62\n"),
    "LabelMe XML": ("a.xml", LABELME),
    "imglab": ("a.xml", "<?xml version='1.0'?><!-- x --><dataset><images></images></dataset>"),
    "TFRecord data": ("a.record", b"payload"),
    "a Hugging Face data set whose rows": ("dataset_infos.json", json.dumps(INFOS)),
}


def test_a_json_file_is_parsed_once_and_keypoints_beside_instances_are_passed_over(
    folder, tmp_path, monkeypatch
):
    coco(folder)
    put(folder, "person.json", KEYPOINTS)
    parsed = []
    monkeypatch.setattr(
        "stillbox.records.data_folder.read_json",
        lambda file: parsed.append(file) or read_json(file),
    )
    converted = convert_folder(folder, tmp_path / "out")
    assert sorted(parsed) == [folder / "_annotations.coco.json", folder / "person.json"]
    assert any("COCO JSON of keypoints, passed over" in problem for problem in converted.problems)


@pytest.mark.parametrize("title", FOREIGN)
def test_a_foreign_format_is_named(folder, tmp_path, title):
    name, content = FOREIGN[title]
    if isinstance(content, bytes):
        write_records(folder / name, [content])
    else:
        put(folder, name, content)
    refuse_folder(folder, tmp_path, f"this is .*{title}")


def test_formats_that_agree_need_no_choice(folder, tmp_path):
    voc_folder(folder / "images", NAMES)
    rows = "".join(f"{name}.png,60,40,cat,6,4,36,24\n" for name in NAMES)
    put(folder, "labels.csv", f"filename,width,height,class,xmin,ymin,xmax,ymax\n{rows}")
    lines = f"0 {21 / 60} {14 / 40} {30 / 60} {20 / 40}\n"
    for name in NAMES:
        put(folder, f"images/{name}.txt", lines)
    put(folder, "classes.txt", "cat\n")
    converted = convert_folder(folder, tmp_path / "out")
    assert converted.format == "voc"
    assert sum("which has the same boxes" in said for said in converted.problems) == 2
    for other in (lines.replace("0.5", "0.6"), 2 * lines, lines.replace("0 ", "1 ", 1)):
        put(folder, "images/a.txt", other)
        with pytest.raises(UserError, match="several formats"):
            convert_folder(folder, tmp_path / "other")


@pytest.mark.parametrize(
    ("files", "reason"),
    [
        ({"classes.txt": "cat\n", "obj.names": "dog\n"}, "the lists of classes differ"),
        ({"data.yaml": "train: .\nnames: {0: cat, 2: dog}\n"}, "numbers of the classes have gaps"),
        ({"data.yaml": "names: [cat]\ntrain: .\nval: elsewhere\n"}, "the images of val are not"),
    ],
)
def test_a_format_that_would_be_refused_is_no_remedy(folder, tmp_path, files, reason):
    voc_folder(folder, NAMES)
    for name in NAMES:
        put(folder, f"{name}.txt", "0 0.5 0.5 0.1 0.1\n")
    for name, content in files.items():
        put(folder, name, content)
    with pytest.raises(UserError, match="several formats") as caught:
        convert_folder(folder, tmp_path / "out")
    assert worded(caught.value.fix) == "format=voc"
    assert reason in caught.value.what.partition("as YOLO it cannot be read: ")[2]
    refuse_folder(folder, tmp_path, reason, format="yolo")
    assert convert_folder(folder, tmp_path / "out", FolderOptions(format="voc")).format == "voc"


def test_several_formats_are_named_and_one_is_chosen(folder, tmp_path):
    coco(folder)
    voc_csv(folder)
    with (folder / "labels.csv").open("a") as rows:
        rows.write(f"c.png,{WIDTH},{HEIGHT},cat,6,4,36,24\n")
    refuse_folder(folder, tmp_path, r"several formats: COCO JSON.*CSV[\s\S]*format=voc_csv")
    assert (
        convert_folder(folder, tmp_path / "out", FolderOptions(format="voc_csv")).format
        == "voc_csv"
    )
    refuse_folder(folder, tmp_path, "no file is YOLO", format="yolo")
    refuse_folder(folder, tmp_path, "did you mean 'coco'", format="cocoo")


def test_photographs_alone_and_annotations_without_their_images_are_refused(folder, tmp_path):
    refuse_folder(folder, tmp_path, "3 images and no annotations")
    coco(folder)
    for image in folder.rglob("*.png"):
        image.unlink()
    refuse_folder(folder, tmp_path, r"of 3 images .* none .* the first is a\.png")


def test_an_impossible_share_is_refused(folder, tmp_path):
    for share in (0, 1, -1, 3, float("nan")):
        refuse_folder(folder, tmp_path, "is no share", validation_share=share)


def test_coco_files_that_disagree_about_ids_are_joined_by_name(folder, tmp_path):
    for part, categories in (("train", ["cat", "dog"]), ("valid", ["dog", "cat"])):
        picture(folder / part / "x.png", len(part))
        put(folder, f"{part}/_annotations.coco.json", {
            "images": [{"id": 1, "file_name": "x.png", "height": HEIGHT, "width": WIDTH}],
            "annotations": [{"id": 1, "image_id": 1, "category_id": 1, "bbox": [6, 4, 30, 20]}],
            "categories": [{"id": n, "name": name} for n, name in enumerate(categories, 1)],
        })  # fmt: skip
    converted = convert_folder(folder, tmp_path / "out")
    assert converted.classes == ("cat", "dog")
    assert [e.class_ids.tolist() for e in examples(converted).values()] == [[1]]
    assert [e.class_ids.tolist() for e in examples(converted, "validation").values()] == [[2]]


# ---- hostile files ------------------------------------------------------------------------------


@pytest.fixture
def secret(tmp_path):
    picture(tmp_path / "secret.png", 50)
    return tmp_path / "secret.png"


@pytest.mark.parametrize("name", ["../../secret.png", "{secret}", "x/../../../secret.png"])
@pytest.mark.parametrize("write", [coco, voc_csv, cvat, image_folder])
def test_a_name_that_leads_out_is_refused_with_its_line(folder, tmp_path, secret, write, name):
    name = name.format(secret=secret)
    write(folder)
    file = next(f for f in folder.rglob("*") if f.suffix in (".json", ".csv", ".xml", ".jsonl"))
    text = file.read_text()
    file.write_text(text.replace("images/a.png", "a.png").replace("a.png", name, 1))
    error = refuse_folder(folder, tmp_path, "leads out of the folder")
    assert name in error.what
    assert error.where.rpartition(":")[2].isdecimal()


@pytest.mark.parametrize("write", [coco, voc_csv, yolo, labelme])
def test_a_link_that_leads_out_is_refused(folder, tmp_path, secret, write):
    write(folder)
    (folder / "images" / "a.png").unlink()
    (folder / "images" / "a.png").symlink_to(secret)
    if write in (coco, voc_csv):
        file = next(f for f in folder.iterdir() if f.suffix in (".json", ".csv"))
        file.write_text(file.read_text().replace("a.png", "images/a.png"))
    refuse_folder(folder, tmp_path, "leads out of the folder")


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.json", "[" * 100_000, "nested too deep"),
        ("a.json", '{"images": [\n1,}', r"a\.json:2: this is not JSON"),
        ("a.xml", "<annotation><object>", "no XML"),
        ("data.yaml", "names: [a, b\ntrain: x\n", "not YAML"),
        ("data.yaml", "names: " + "[" * 5000, "nested deeper"),
        ("labels.csv", "filename,class,xmin,ymin,xmax,ymax\na.png,cat,1\n", r"csv:2: .* 6 columns"),
    ],
    ids=["nested JSON", "JSON", "XML", "YAML", "nested YAML", "CSV"],
)
def test_malformed_files_are_reported_with_file_and_line(folder, tmp_path, name, content, message):
    put(folder, name, content)
    error = refuse_folder(folder, tmp_path, message)
    assert name in str(error)


def with_half_a_character(name):
    """A class of each format; its name ends with half a character, escaped or in bytes."""
    if name == "yolo":
        return yolo, "data.yaml", b"cat]", b'"cat\\ud800"]'
    if name == "labelme":
        return labelme, "json/a.json", b'"cat"', b'"cat\xed\xa0\x80"'
    return coco, "_annotations.coco.json", b'"cat"', b'"cat\\uD800"'


@pytest.mark.parametrize("name", ["yolo", "labelme", "coco"])
def test_half_a_character_becomes_a_question_mark(folder, tmp_path, name):
    write, file, cat, half = with_half_a_character(name)
    write(folder)
    path = folder / file
    path.write_bytes(path.read_bytes().replace(cat, half))
    assert "cat?" in convert_folder(folder, tmp_path / "out").classes[-1]


def test_multiplying_entities_are_reported(folder, tmp_path):
    levels = "".join(
        f'<!ENTITY l{n} "{f"&l{n - 1};" * 10}">' if n else '<!ENTITY l0 "lol">' for n in range(12)
    )
    put(folder, "images/a.xml", f"<!DOCTYPE a [{levels}]>{voc_xml(('&l11;', BOX))}")
    put(folder, "images/b.xml", voc_xml(("cat", BOX)))
    put(folder, "images/c.xml", voc_xml(("cat", BOX)))
    converted = convert_folder(folder, tmp_path / "out")
    assert converted.boxes == 2
    assert any("no XML" in p and "declares entities" in p for p in converted.problems)


def test_a_class_number_beyond_the_names_is_an_unknown_class(folder, tmp_path):
    yolo(folder)
    put(folder, "labels/c.txt", "99999999999 0.5 0.5 0.1 0.1\n7 1 2\n")
    converted = convert_folder(folder, tmp_path / "out")
    assert converted.boxes == 2
    assert any("unknown class" in problem for problem in converted.problems)
    assert any("labels/c.txt:2" in problem for problem in converted.problems)


def test_an_empty_confidence_of_open_images_counts(folder, tmp_path):
    open_images(folder)
    path = folder / "boxes.csv"
    path.write_text(path.read_text().replace(",/m/01yrx,1,", ",/m/01yrx,,"))
    assert convert_folder(folder, tmp_path / "out").boxes == 2
    path.write_text(path.read_text().replace(",/m/01yrx,,", ",/m/01yrx,0,"))
    refuse_folder(folder, tmp_path, "no box for any of 3 images")


def test_rows_of_absent_images_are_not_kept(folder):
    open_images(folder)
    with (folder / "boxes.csv").open("a") as file:
        file.write("gone,xclick,/m/01yrx,1,0,1,0,1,0,0\n" * 5000)
    data, log = DataFolder(folder), ConversionLog()
    recognised = recognise(data)
    tracemalloc.start()
    reading = recognised.format.read(data, recognised.files, log)
    _, most = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert [image.image.filename for image in reading.images] == ["a.png", "b.png"]
    assert most < 10**6
    assert log.lines() == ["1 x image file is missing, image left out: boxes.csv: gone"]


def test_lines_of_json_end_at_line_feeds_and_blank_ones_are_counted(folder, tmp_path):
    image_folder(folder)
    file = folder / "images/metadata.jsonl"
    text = "\n" + file.read_text().replace('"cat"', '"c\u2028at"')
    file.write_text(text + "{\n", encoding="utf-8")
    refuse_folder(folder, tmp_path, r"metadata\.jsonl:5: this is not JSON")
    file.write_text(text, encoding="utf-8")
    assert convert_folder(folder, tmp_path / "out").classes == ("c\u2028at",)


def test_lines_are_looked_up_for_the_reported_cases_only(tmp_path, monkeypatch):
    looked_up = []
    monkeypatch.setattr(
        data_folder, "line_of", lambda *arguments: looked_up.append(arguments) or "line"
    )
    for name in ("x", "y"):
        picture(tmp_path / name / "a.png")
    data, log = DataFolder(tmp_path), ConversionLog()
    for _ in range(9):
        assert data.image("z/a.png", data.root / "labels.csv", data.root, log) is None
    assert (len(looked_up), [problem.count for problem in log]) == (5, [9])


def test_a_damaged_list_of_labels_is_named(folder, tmp_path):
    open_images(folder)
    put(folder, "class-descriptions.csv", f"/m/01yrx,cat\n/m/2,{'x' * 200_000}\n")
    error = refuse_folder(folder, tmp_path, "this is not CSV: field larger than field limit")
    assert error.where.endswith("class-descriptions.csv")


def test_an_image_address_that_is_no_url_is_left_out(folder, tmp_path):
    label_studio(folder)
    file = next(folder.glob("*.json"))
    tasks = json.loads(file.read_text())
    file.write_text(json.dumps([*tasks, tasks[0] | {"data": {"image": "//[c.png"}}]))
    converted = convert_folder(folder, tmp_path / "out")
    assert converted.boxes == 2
    assert any("image address is no URL" in problem for problem in converted.problems)


# Turned by a quarter, an ellipse of 30 x 20 pixels is 20 x 30; by an eighth, its box is a square
# of half the side sqrt((15^2 + 10^2) / 2).
@pytest.mark.parametrize(
    ("degrees", "halves"), [(0, (10, 15)), (90, (15, 10)), (-45, (162.5**0.5, 162.5**0.5))]
)
@pytest.mark.parametrize("tool", ["cvat", "label_studio"])
def test_the_box_around_an_ellipse_that_is_turned(folder, tmp_path, tool, degrees, halves):
    if tool == "cvat":
        shape = f'<ellipse label="cat" cx="21" cy="20" rx="15" ry="10" rotation="{degrees}"/>'
        images = (
            f'<image name="{n}.png" width="{WIDTH}" height="{HEIGHT}">{shape}</image>'
            for n in NAMES
        )
        put(folder, "a.xml", f"<annotations>{''.join(images)}</annotations>")
    else:
        value = {"x": 35, "y": 50, "radiusX": 25, "radiusY": 25, "rotation": degrees}
        size = {"original_width": WIDTH, "original_height": HEIGHT}
        result = [{"value": value | {"ellipselabels": ["cat"]}, **size}]
        put(folder, "a.json", [
            {"data": {"image": f"/{n}.png"}, "annotations": [{"result": result}]} for n in NAMES
        ])  # fmt: skip
    down, across = halves
    expected = [20 - down, 21 - across, 20 + down, 21 + across]
    for example in both_sets(convert_folder(folder, tmp_path / "out")).values():
        boxes = example.boxes * [HEIGHT, WIDTH, HEIGHT, WIDTH]
        np.testing.assert_allclose(boxes, [expected], atol=1e-4)


def test_a_file_in_place_of_its_folder(folder, tmp_path):
    yolo(folder)
    assert convert_folder(folder / "data.yaml", tmp_path / "out").boxes == 2
    with refused("photos/labels/a.txt", folder):
        convert_folder(folder / "labels/a.txt", tmp_path / "other")


def test_avif_and_jpeg_2000_are_images_of_folders(folder, tmp_path):
    if not (features.check("avif") and features.check("jpg_2000")):
        pytest.skip("Pillow is built without them")
    yolo(folder)
    for name, suffix in (("a", ".avif"), ("b", ".jp2")):
        picture(folder / f"images/{name}{suffix}", ord(name))
        (folder / f"images/{name}.png").unlink()
    assert [path.suffix for path in list_inputs([str(folder / "images")]).images] == [
        ".avif", ".jp2", ".png"
    ]  # fmt: skip
    converted = convert_folder(folder, tmp_path / "out")
    assert converted.boxes == 2
    assert not any("without an image" in said for said in converted.problems)


@pytest.mark.parametrize(
    "content",
    [b"\x89PNG\x00\xff", b"lorem ipsum\n", b"cat .5 .5 .1 .1\n", b"0 .5 .5\n0 .1\n", b"0 a b c d"],
)
def test_an_image_whose_label_file_is_rubbish_is_left_out_by_name(folder, tmp_path, content):
    yolo(folder)
    (folder / "labels/c.txt").write_bytes(content)
    converted = convert_folder(folder, tmp_path / "out")
    assert converted.train_images + converted.validation_images == 2
    assert any("labels/c.txt" in said and "left out" in said for said in converted.problems)
    refuse_folder(folder, tmp_path, r"labels/c\.txt(:1)?: label file", bad_records="fail")


def test_an_image_with_two_label_files_is_left_out_by_name(folder, tmp_path):
    yolo(folder)
    put(folder, "older/a.txt", "0 .5 .5 .1 .1\n")
    converted = convert_folder(folder, tmp_path / "out")
    assert (converted.train_images + converted.validation_images, converted.boxes) == (2, 1)
    assert any("another label file of an image" in said for said in converted.problems)
    sentence = r"older/a\.txt: another label file of an image.*beside labels/a\.txt"
    refuse_folder(folder, tmp_path, sentence, bad_records="fail")


def test_a_cvat_file_is_not_taken_for_voc(folder, tmp_path):
    voc_folder(folder / "images", NAMES)
    cvat(folder)
    refuse_folder(folder, tmp_path, r"several formats: CVAT for images.*Pascal VOC XML")


def parquet_of(folder, rows, **options):
    """A folder with a parquet file of images and objects."""
    pyarrow = pytest.importorskip("pyarrow")
    parquet = pytest.importorskip("pyarrow.parquet")
    folder.mkdir(exist_ok=True)
    images, objects = zip(*rows, strict=True)
    table = pyarrow.table({"image": list(images), "objects": list(objects)})
    parquet.write_table(table, folder / "train.parquet", **options)
    return folder / "train.parquet"


BOXES = {"bbox": [[1.0, 1.0, 9.0, 9.0]], "category": [0]}


@pytest.mark.parametrize("rows", [
    [({"bytes": bytes(2**26), "path": "a"}, BOXES)],
    [({"bytes": b"x", "path": "a"}, {"bbox": [[1.0] * 4] * 300_000, "category": [0] * 300_000})],
])  # fmt: skip
def test_a_small_parquet_file_that_unpacks_to_much_is_refused(tmp_path, rows):
    file = parquet_of(tmp_path / "set", rows, compression="zstd")
    assert file.stat().st_size < 2**20
    with pytest.raises(UserError, match=r"damaged or too large: (it unpacks|it claims)"):
        convert_folder(tmp_path / "set", tmp_path / "out")


@pytest.mark.parametrize("damage", [
    lambda data: b"PAR1", lambda data: b"PAR1" + bytes(range(256)) * 10,
    lambda data: b"PAR1" + bytes(100) + b"PAR1", lambda data: data[: len(data) // 2],
    lambda data: data[:-8] + b"\xff\xff\xff\x7fPAR1", lambda data: data[:-4],
    lambda data: data[:4] + bytes(200) + data[204:],
])  # fmt: skip
def test_a_damaged_parquet_file_is_a_sentence(tmp_path, damage):
    file = parquet_of(tmp_path / "set", [({"bytes": b"x" * 300, "path": "a"}, BOXES)])
    file.write_bytes(damage(file.read_bytes()))
    with pytest.raises(UserError):
        convert_folder(tmp_path / "set", tmp_path / "out")


def test_a_format_that_is_registered_later_is_known(monkeypatch):
    known = set(registry.all_formats())
    monkeypatch.setattr(registry, "_FORMATS", dict(registry._FORMATS))
    registry.register("later", "a format of a user", lambda folder: [])(print)
    assert set(registry.readable_formats()) - known == {"later"}
