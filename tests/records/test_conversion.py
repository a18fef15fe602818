import json
import os
import signal
import subprocess
import sys
import threading
import time
from functools import partial

import numpy as np
import pytest

from stillbox.errors import UserError
from stillbox.records.annotations import AnnotatedImage, to_example
from stillbox.records.conversion import ConversionOptions, ConversionReport, convert
from stillbox.records.file_list import LIST
from stillbox.records.image_files import PreparedImage
from stillbox.records.label_map import LabelMap
from stillbox.records.parallel import ordered_map
from stillbox.records.problems import ConversionLog, ProblemLog
from stillbox.records.source import ExampleSource
from stillbox.references import Parameter
from tests.helpers import refused
from tests.records.builders import CAT_DOG, image_bytes


def item_of(tmp_path, boxes, height, width):
    count = len(boxes)
    return AnnotatedImage(
        path=tmp_path / "a.jpg",
        where="a.xml",
        image_id="a",
        filename="a.jpg",
        height=height,
        width=width,
        pixel_boxes=np.array(boxes, np.float64).reshape(-1, 4),
        class_ids=np.ones(count, np.int32),
        area=np.full(count, 100, np.float32),
    )


def test_coordinates_are_the_nearest_float32_to_the_quotient(tmp_path):
    log = ProblemLog()
    item = item_of(tmp_path, [[12.34, 217.62, 240.54, 359.17]], 427, 640)
    example = to_example(item, PreparedImage(b"x", 427, 640), log)
    expected = np.float32([12.34 / 427, 217.62 / 640, 240.54 / 427, 359.17 / 640])
    np.testing.assert_array_equal(example.boxes[0], expected)
    assert not list(log)


# The image is 40 x 60 (height x width).
@pytest.mark.parametrize(
    ("claimed", "box", "frame", "outcome"),
    [
        # resized to half after the annotation
        ((80, 120), [10, 20, 70, 100], (80, 120), "boxes divided by the annotation's size"),
        # the size in the annotation is wrong: the box does not fit into it
        ((20, 30), [10, 20, 35, 50], (40, 60), "boxes divided by the real size"),
        # height and width exchanged, the box fits the real size
        ((60, 40), [10, 5, 35, 38], (40, 60), "boxes divided by the real size"),
        # it fits into neither
        ((20, 30), [10, 20, 35, 90], (20, 30), "boxes divided by the annotation's size"),
        # no size: the real one is used, and nothing is said
        ((0, 0), [10, 20, 35, 50], (40, 60), ""),
    ],
)
def test_boxes_decide_between_two_image_sizes(tmp_path, claimed, box, frame, outcome):
    log = ProblemLog()
    item = item_of(tmp_path, [box], *claimed)
    example = to_example(item, PreparedImage(b"x", 40, 60), log)
    np.testing.assert_allclose(example.boxes[0], np.array(box) / np.array([*frame, *frame]), 1e-6)
    assert (example.height, example.width) == (40, 60)
    # 40 * 60 / (80 * 120) = 1/4 of the area is left after the resize
    scale = 2400 / (frame[0] * frame[1])
    np.testing.assert_allclose(example.area, [100 * scale])
    size = f"a.xml: {claimed[1]} x {claimed[0]}, image 60 x 40"
    said = [(outcome, [size])] if outcome else []
    assert [(problem.action, problem.examples) for problem in log] == said


def test_nan_boxes_do_not_decide_between_two_image_sizes(tmp_path):
    item = item_of(tmp_path, [[np.nan] * 4, [10, 20, 70, 100]], 80, 120)
    example = to_example(item, PreparedImage(b"x", 40, 60), ProblemLog())
    np.testing.assert_allclose(example.boxes[1], [0.125, 1 / 6, 0.875, 5 / 6], 1e-6)
    item = item_of(tmp_path, [], 80, 120)
    assert to_example(item, PreparedImage(b"x", 40, 60), ProblemLog()).boxes.shape == (0, 4)


BOX = [4, 6, 24, 36]


@pytest.fixture
def annotated(tmp_path):
    (tmp_path / "images").mkdir()

    def make(name, boxes=(BOX,), class_ids=None, content=None, **values):
        path = tmp_path / "images" / f"{name}.jpg"
        if content is not False:
            path.write_bytes(image_bytes() if content is None else content)
        fields = {
            "path": path,
            "where": f"all.json: image {name}",
            "image_id": name,
            "filename": path.name,
            "height": 40,
            "width": 60,
            "pixel_boxes": np.array(boxes, np.float64).reshape(-1, 4),
            "class_ids": np.array(class_ids or [1] * len(boxes), np.int32),
        }
        return AnnotatedImage(**(fields | values))

    return make


@pytest.fixture
def run(tmp_path):
    def run(items, log=None, name="train", label_map=CAT_DOG, engine=ordered_map, **options):
        return convert(
            items,
            label_map,
            tmp_path / "out",
            name,
            options=ConversionOptions(**options),
            log=log or ConversionLog(),
            engine=engine,
        )

    return run


def source(tmp_path, name="train"):
    label_map = LabelMap.from_file(tmp_path / "out" / "label_map.pbtxt")
    return ExampleSource([f"{tmp_path}/out/{name}.record-*"], label_map)


def outcomes(report):
    return {(p.reason, p.action): p.count for p in report.problems}


def test_a_set_and_its_report(tmp_path, annotated, run):
    items = [annotated("a", [BOX, [0, 0, 40, 60]], [1, 2]), annotated("b", []), annotated("c")]
    report = run(items, shards=2)
    assert report.files == ["train.record-00000-of-00002", "train.record-00001-of-00002"]
    assert (report.images_found, report.images_written, report.images_without_boxes) == (3, 3, 1)
    assert (report.boxes_found, report.boxes_written) == (3, 3)
    assert report.boxes_per_class == {"cat": 2, "dog": 1}
    assert report.problems == []
    stored = json.loads((tmp_path / "out" / "train.report.json").read_text())
    assert stored["boxes_per_class"] == {"cat": 2, "dog": 1}
    assert stored["images_per_class"] == {"cat": 2, "dog": 1}
    assert stored["settings"] == {
        "bad_records": "drop",
        "bad_boxes": "fix",
        "exif": "auto",
        "skip_images_without_boxes": False,
    }
    assert (tmp_path / "out" / "train.report.txt").read_text() == report.to_text()
    assert report.to_text().splitlines() == [
        "Set 'train'",
        "                        found     written",
        "  images                    3           3",
        "    without a box                       1",
        "  boxes                     3           3",
        "  shards                                2",
        "Boxes written",
        "        boxes      images      share  class",
        "            2           2     66.7 %  cat",
        "            1           1     33.3 %  dog",
    ]
    # Records take turns over the shards: a and c are in the first.
    examples = [source(tmp_path).example(index) for index in range(3)]
    assert [example.image_id for example in examples] == ["a", "c", "b"]
    np.testing.assert_array_equal(
        examples[0].boxes, np.float32([[4 / 40, 6 / 60, 24 / 40, 36 / 60], [0, 0, 1, 1]])
    )
    assert examples[0].encoded == image_bytes()
    assert (examples[0].height, examples[0].width) == (40, 60)


def test_the_same_input_gives_the_same_bytes_with_any_number_of_threads(tmp_path, annotated, run):
    items = [annotated(str(n), [BOX, [5, 5, 5, 9]]) for n in range(30)]
    contents = []
    for workers in (1, 4):
        engine = partial(ordered_map, workers=workers)
        run(items, overwrite=True, engine=engine, shards=3)
        contents.append({p.name: p.read_bytes() for p in sorted((tmp_path / "out").iterdir())})
    assert contents[0] == contents[1]


@pytest.mark.parametrize(
    ("content", "reason"), [(False, "image file is missing"), (b"no image", "unreadable image")]
)
def test_an_image_that_cannot_be_used(annotated, run, content, reason):
    items = [annotated("a"), annotated("b", content=content)]
    report = run(items)
    assert report.images_written == 1
    assert outcomes(report) == {(reason, "image left out"): 1}
    assert report.problems[0].examples[0].startswith("all.json: image b: ")
    with refused("all.json: image b", reason):
        run(items, ConversionLog("fail"), overwrite=True)


def test_a_truncated_image_and_a_folder_in_place_of_an_image(tmp_path, annotated, run):
    cut_off = annotated("c", content=image_bytes()[:-30])
    report = run([annotated("a"), annotated("b", path=tmp_path), cut_off])
    reasons = ("image file cannot be opened", "unreadable image")
    assert outcomes(report) == {(reason, "image left out"): 1 for reason in reasons}
    assert any("truncated" in problem.examples[0] for problem in report.problems)


@pytest.mark.parametrize(
    ("policy", "written", "action"), [("fix", 2, "box fixed"), ("drop", 1, "box dropped")]
)
def test_a_box_that_can_be_fixed(annotated, run, policy, written, action):
    report = run([annotated("a", [BOX, [4, 6, 24, 90]])], ConversionLog(bad_boxes=policy))
    assert (report.boxes_found, report.boxes_written) == (2, written)
    assert outcomes(report) == {("box reaches outside the image", action): 1}
    assert report.problems[0].examples == [
        "all.json: image a, box 1: ymin 4, xmin 6, ymax 24, xmax 90 in 60 x 40"
    ]


def test_a_bad_box_stops_under_fail(tmp_path, annotated, run):
    with refused("all.json: image a, box 0", 4, 6):
        run([annotated("a", [[4, 6, 4, 36]])], ConversionLog(bad_boxes="fail"))
    assert list((tmp_path / "out").iterdir()) == []


def test_an_unknown_class_is_named(annotated, run):
    item = annotated("a", [BOX, BOX], [1, 0], unknown={1: "category id 9"})
    report = run([item])
    assert outcomes(report) == {("unknown class", "box dropped"): 1}
    assert report.problems[0].examples == ["all.json: image a, box 1: category id 9"]


def test_an_image_without_a_box_is_reported_as_background_or_left_out(annotated, run):
    report = run([annotated("a", [[4, 6, 4, 36]]), annotated("b")])
    assert (report.images_written, report.images_without_boxes) == (2, 1)
    assert ("no box of the image is usable", "background") in outcomes(report)
    items = [annotated("a"), annotated("b", [])]
    report = run(items, skip_images_without_boxes=True, overwrite=True)
    assert (report.images_written, report.images_without_boxes) == (1, 0)
    assert outcomes(report) == {("image without a box", "image left out"): 1}


def test_special_image_formats_are_reported(tmp_path, annotated, run):
    report = run(
        [
            annotated("gray", content=image_bytes(mode="L")),
            annotated("cmyk", content=image_bytes(mode="CMYK")),
            annotated("turned", content=image_bytes(60, 40, orientation=6)),
            annotated("png", content=image_bytes(kind="PNG")),
            annotated("bmp", content=image_bytes(kind="BMP")),
            annotated("sized", content=image_bytes(80, 120)),
        ]
    )
    assert outcomes(report) == {
        ("grayscale image", "kept; decoders make three channels"): 1,
        ("CMYK image", "re-encoded as RGB JPEG"): 1,
        ("EXIF orientation (annotation has the rotated size)", "turned upright and re-encoded"): 1,
        ("BMP image", "re-encoded as PNG"): 1,
        ("size is not the image's", "boxes divided by the annotation's size"): 1,
    }
    examples = {e.image_id: e for e in map(source(tmp_path).example, range(6))}
    for example in examples.values():
        np.testing.assert_allclose(example.boxes, [[0.1, 0.1, 0.6, 0.6]])
    assert (examples["turned"].height, examples["turned"].width) == (40, 60)
    assert (examples["sized"].height, examples["sized"].width) == (80, 120)


def test_a_set_without_usable_images_is_an_error_with_the_reasons(tmp_path, annotated, run):
    missing = [annotated(name, content=False) for name in "ab"]
    with refused(None, 2, "all.json"):
        run(missing)
    assert list((tmp_path / "out").iterdir()) == []
    with pytest.raises(UserError, match="the annotations name none"):
        run([])


def test_two_sets_share_a_folder_and_one_label_map_and_are_replaced_on_request(
    tmp_path, annotated, run
):
    run([annotated("a")])
    run([annotated("a")], name="val")
    other = r"other classes or ids\n  fix: choose another output=, or give"
    with pytest.raises(UserError, match=other):
        run([annotated("a")], name="test", label_map=LabelMap.from_names(["dog", "cat"]))
    assert not list((tmp_path / "out").glob("test*"))
    with pytest.raises(UserError, match="overwrite"):
        run([annotated("b")])
    assert run([annotated("b")], overwrite=True).images_written == 1


def test_the_number_of_shards_follows_the_number_of_images(annotated, run):
    items = [annotated("a")] * 1001
    assert len(run(items).files) == 2
    assert len(run(items[:1000], name="val").files) == 1


CONVERT = """
import sys, time
from pathlib import Path
import numpy as np
from stillbox.records import conversion
from stillbox.records.annotations import AnnotatedImage
from stillbox.records.label_map import LabelMap
from stillbox.records.problems import ConversionLog

items = [
    AnnotatedImage(
        path=Path(sys.argv[1]), where=str(n), image_id=str(n), filename="a", height=0, width=0,
        pixel_boxes=np.array([[4.0, 6, 24, 36]]), class_ids=np.ones(1, np.int32),
    )
    for n in range(400)
]
conversion.convert(
    items, LabelMap.from_names(["a"]), sys.argv[2], "train",
    options=conversion.ConversionOptions(shards=4), log=ConversionLog(),
    on_image=lambda done, total: time.sleep(float(sys.argv[3])),
)
"""


def test_a_killed_conversion_leaves_no_half_written_shard(tmp_path):
    image, out = tmp_path / "a.jpg", tmp_path / "out"
    image.write_bytes(image_bytes())
    command = [sys.executable, "-c", CONVERT, str(image), str(out)]
    process = subprocess.Popen([*command, "0.02"])
    deadline = time.monotonic() + 60
    while not list(out.glob(".train.stillbox-partial/0*")):
        assert process.poll() is None
        assert time.monotonic() < deadline
        time.sleep(0.01)
    time.sleep(0.2)
    os.kill(process.pid, signal.SIGKILL)
    assert process.wait() == -signal.SIGKILL
    assert list(out.glob("train*")) == []
    assert list(out.glob(".train.stillbox-partial/0*"))  # it was in the middle of it
    subprocess.run([*command, "0"], check=True)
    assert [path.name for path in out.glob(".*")] == [LIST]
    assert len(source(tmp_path)) == 400


@pytest.mark.parametrize("name", ["../../x", "/tmp/x", "..", "", "a*", "a/b"])
def test_the_name_of_a_set_is_that_of_a_file(tmp_path, annotated, run, name):
    items = [annotated("a")]
    before = set(tmp_path.rglob("*"))
    with refused(Parameter("name")):
        run(items, name=name)
    assert set(tmp_path.rglob("*")) == before


def test_cases_are_counted_by_reason_and_outcome():
    log = ProblemLog()
    for box in range(7):
        log.add("no area", f"a.record: record {box}", "ymin 1", action="box dropped")
    log.add("no area", "b.record: record 0", action="box kept")
    log.add("inverted", "a.record: record 1", action="box fixed")
    kinds = [(problem.reason, problem.action, problem.count) for problem in log]
    assert kinds == [
        ("no area", "box dropped", 7),
        ("inverted", "box fixed", 1),
        ("no area", "box kept", 1),
    ]
    assert next(iter(log)).examples == [f"a.record: record {box}: ymin 1" for box in range(5)]


def test_a_report_shows_every_kind_and_the_number_of_cases_left_out():
    log = ProblemLog()
    for box in range(7):
        log.add("no area", f"[red]{box}", action="box dropped")
    log.add("inverted", "a.jpg", "ymin 1")
    assert ConversionReport(name="train", problems=list(log)).to_text().splitlines()[-10:] == [
        "Special or wrong",
        "  7 x no area, box dropped",
        *(f"    [red]{box}" for box in range(5)),
        "    ... and 2 more",
        "  1 x inverted",
        "    a.jpg: ymin 1",
    ]


def test_a_log_is_extended_by_another():
    left, right = ProblemLog(), ProblemLog()
    for log, name in ((left, "left"), (right, "right")):
        for number in range(3):
            log.add("x", f"{name} {number}")
    left.extend(right)
    (problem,) = left
    assert problem.count == 6
    assert problem.examples == ["left 0", "left 1", "left 2", "right 0", "right 1"]
    assert [problem.count for problem in right] == [3]


def test_no_case_is_lost_between_threads():
    log = ProblemLog()
    threads = [
        threading.Thread(target=lambda: [log.add("x", "here") for _ in range(500)])
        for _ in range(8)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert {p.reason: p.count for p in log} == {"x": 4000}


def test_a_conversion_log_counts_or_stops():
    mild = ConversionLog()
    mild.bad_record("unreadable", "a.jpg")
    mild.bad_box("no area", "a.xml, box 1", "ymin 3")
    assert [(p.reason, p.action) for p in mild] == [
        ("no area", "box dropped"),
        ("unreadable", "image left out"),
    ]
    strict = ConversionLog("fail", "fail")
    with refused("a.jpg", "bad_records=drop"):
        strict.bad_record("unreadable", "a.jpg", "why")
    with refused("a.xml", "bad_boxes=fix"):
        strict.bad_box("no area", "a.xml")
