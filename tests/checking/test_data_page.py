"""The page of a conversion and of records: what it shows, and which images."""

import re
import time

import numpy as np
import pytest

from stillbox.checking.data_choice import Reason, choose
from stillbox.checking.data_content import conversion_content
from stillbox.checking.data_page import data_page, write_conversion_page, write_records_page
from stillbox.checking.planning_records import records_of
from stillbox.cli.main import build_parser
from stillbox.errors import UserError
from stillbox.printing import html_text
from stillbox.records.annotations import AnnotatedImage
from stillbox.records.conversion import ConversionOptions
from stillbox.records.folder import ConversionView, convert_folder
from stillbox.records.folder_content import FolderOptions
from stillbox.records.label_map import LabelMap
from stillbox.records.pixels import NO_DEEP
from stillbox.records.source import expand
from tests.helpers import read_json
from tests.records.builders import CAT_DOG, make_example, write_records
from tests.records.test_folder import picture, voc_folder, voc_xml

pytestmark = pytest.mark.usefixtures("cache_folder")


@pytest.fixture
def cli(capsys):
    """Runs a command line and returns its exit code and what it printed."""

    def run(*words):
        args = build_parser().parse_args([*map(str, words)])
        code = args.run(args)
        return code, capsys.readouterr().out

    return run


def convert(folder, out, *reading, **options):
    return convert_folder(folder, out, *reading, write_page=write_conversion_page, **options)


def one_image(tmp_path, *objects):
    """The page of four images, of which the first has these objects."""
    folder = voc_folder(tmp_path / "photos")
    (folder / "a.xml").write_text(voc_xml(*objects))
    return convert(folder, tmp_path / "out").page.read_text()


def figure(page, name):
    """The picture of a file with its caption."""
    (drawing,) = (f for f in re.findall("<figure>.*?</figure>", page, re.DOTALL) if name in f)
    return drawing


def view(boxes, *, names=("cat", "dog"), class_ids=None, size=(100, 200), folder="photos"):
    """A conversion with these boxes and with images that do not exist."""
    items = [
        AnnotatedImage(
            path=folder / f"{number}.png",
            where=f"{number}.xml",
            image_id=str(number),
            filename=f"{number}.png",
            height=size[0],
            width=size[1],
            pixel_boxes=np.array(rows, np.float64).reshape(-1, 4),
            class_ids=np.array((class_ids or {}).get(number, [1] * len(rows)), np.int32),
        )
        for number, rows in enumerate(boxes)
    ]
    return ConversionView(
        title="VOC",
        folder=str(folder),
        split="stated",
        label_map=LabelMap.from_names(names),
        items=items,
        splits=["train"] * len(items),
        problems=[],
        options=ConversionOptions(),
        brightest=NO_DEEP,
    )


def test_the_page_belongs_to_the_conversion(tmp_path):
    folder, out = voc_folder(tmp_path / "photos"), tmp_path / "out"
    first = convert(folder, out)
    assert first.page == out / "conversion.html"
    assert "conversion.html" in read_json(out / "conversion.json")["files"]
    again = convert(folder, out)
    assert (again.reused, again.page) == (True, first.page)
    with pytest.raises(UserError, match="overwrite"):
        convert(folder, out, FolderOptions(seed=1))
    changed = convert(folder, out, FolderOptions(seed=1), options=ConversionOptions(overwrite=True))
    assert (changed.reused, changed.page) == (False, first.page)
    page = changed.page.read_text()
    assert page.count("<figure>") == 4
    for part in ("seed 1", "a.png", "60 x 40, 1 box", "training images", "boxes as read"):
        assert part in page
    for pattern in ("*", "train*"):
        assert all(".record-" in file.name for file in expand([str(out / pattern)]))


def test_training_on_a_folder_says_where_to_look(tmp_path):
    records = records_of(voc_folder(tmp_path / "photos"), tmp_path / "data")
    (line,) = (line for line in records.said if line.startswith("look at"))
    assert str(tmp_path / "data" / "conversion.html") in line


def test_hostile_names_are_escaped(tmp_path):
    folder, name = tmp_path / "<b>\x1b[2J", "<script>alert(1)</script>"
    for number, stem in enumerate(("<img src=x>", "b")):
        picture(folder / f"{stem}.png", number)
        (folder / f"{stem}.xml").write_text(voc_xml((html_text(name), (4, 6, 24, 36))))
    page = convert(folder, tmp_path / "out").page.read_text()
    assert html_text(name) in page
    assert "&lt;img src=x&gt;.png" in page
    for part in (name, "<img src", "<b>\\", "\x1b"):
        assert part not in page


def test_a_box_below_a_pixel_has_a_ring(tmp_path):
    # 0.4 x 0.4 of 60 x 40 pixels, and a box that is seen
    boxes = [[0.5, 0.5, 0.5 + 0.4 / 40, 0.5 + 0.4 / 60], [0.1, 0.1, 0.6, 0.6]]
    examples = [make_example(boxes, [1, 2], filename="a.jpg"), make_example()]
    records = write_records(tmp_path / "a.record", examples)
    write_records_page([str(records)], CAT_DOG, tmp_path / "a.html")
    page = (tmp_path / "a.html").read_text()
    shown = figure(page, "a.jpg")
    # A rim and a line; the image is drawn as one of 420 x 280.
    assert re.findall('<circle cx="([0-9.]+)" cy="([0-9.]+)"', shown) == [("211.4", "141.4")] * 2
    assert "<circle" not in figure(page, "7.jpg")
    for part in ("1 x box narrower than a pixel", "smallest box: 0.4 x 0.4 px"):
        assert part in shown
    assert re.search("below a pixel</th><td[^>]*>1</td>", page)


def test_a_box_outside_is_cut_off_at_the_border_and_dashed(tmp_path):
    page = one_image(tmp_path, ("cat", (20, 30, 400, 600)))
    shown = figure(page, "a.png")
    # The image of 60 x 40 pixels is drawn as one of 420 x 280.
    assert 'x="210.0" y="140.0" width="210.0" height="140.0"' in shown
    assert "stroke-dasharray" in shown
    assert "1 x box reaches outside the image" in shown
    assert "stroke-dasharray" not in figure(page, "b.png")


def test_images_that_cannot_be_read_are_passed_over(tmp_path):
    folder = voc_folder(tmp_path / "photos")
    (folder / "a.png").write_bytes(b"no image")
    page = convert(folder, tmp_path / "out").page.read_text()
    assert page.count("<figure>") == 3
    assert "unreadable image" in page


def test_the_choice_is_telling_and_always_the_same(tmp_path):
    usual = [[10, 10, 50, 50]]
    boxes = [usual] * 40
    boxes[20] = usual * 7
    boxes[21] = [[10, 10, 12, 13]]
    boxes[22] = [[10, 10, 90, 190]]
    boxes[23] = [[0, 0, 99, 200]]
    boxes[24] = []
    boxes[25] = [*usual, [50, 50, 10, 10]]
    boxes[26] = [[10, 10, 50, np.nan]]
    content = conversion_content(view(boxes, class_ids={27: [2]}, folder=tmp_path))
    chosen = choose(content)
    expected = {
        0: Reason("first"),
        20: Reason("most boxes: 7"),
        21: Reason("smallest box", 0),
        22: Reason("largest box", 0),
        23: Reason("covers 99% of the image", 0),
        24: Reason("without a box"),
        25: Reason("box inverted (1 in all)", 1),
        26: Reason("box coordinate is not a number (1 in all)", 0),
        27: Reason("rare class 'dog', 1 box", 0),
        39: Reason("image 40 of 40"),
    }
    for image, reason in expected.items():
        assert reason in chosen[image]
    assert list(chosen.items()) == list(choose(content).items())


def test_many_boxes_and_classes_make_no_large_page(tmp_path):
    rng = np.random.default_rng(0)
    corners = rng.uniform(0, 50, (4000, 25, 2))
    boxes = np.concatenate([corners, corners + rng.uniform(0, 90, corners.shape)], axis=2)
    names = [f"class {'x' * 500} {number}" for number in range(3000)]
    ids = dict(enumerate(rng.integers(1, 3001, (4000, 25)).tolist()))
    shown = view(list(boxes), names=names, class_ids=ids, folder=tmp_path)
    began = time.monotonic()
    page = data_page(conversion_content(shown))
    assert time.monotonic() - began < 5  # it takes 0.3 seconds
    assert len(page) < 50_000
    assert "and 2,980 more with a box" in page


def test_a_set_of_voc_has_its_page(cli, tmp_path):
    folder, out = voc_folder(tmp_path / "photos"), tmp_path / "out"
    words = ["--annotations", folder, "--images", folder, "--output", out, "--name", "train"]
    assert f"page: {out}/train.report.html" in cli("data", "convert", "voc", *words)[1]
    assert "<figure>" in (out / "train.report.html").read_text()
    assert (
        f"page: {out}2/conversion.html" in cli("data", "convert", folder, "--output", f"{out}2")[1]
    )


def test_a_check_of_records_draws_them(cli, tmp_path):
    pixels = make_example([[4, 6, 20, 30]], image_id="b", filename="b.jpg")
    records = write_records(tmp_path / "a.record", [make_example(), pixels])
    words = ["data", "check", records]
    assert "page check.html" in cli(*words)[1]
    page = tmp_path / "check.html"
    assert f"page: {page}" in cli(*words, "--page", page)[1]
    shown = page.read_text()
    assert "box in pixels, not in 0..1" in figure(shown, "b.jpg")
    assert "stroke-dasharray" in figure(shown, "b.jpg")
    assert "stroke-dasharray" not in figure(shown, "7.jpg")
    assert sorted(file.name for file in tmp_path.iterdir() if file.suffix == ".html") == [
        "check.html"
    ]
