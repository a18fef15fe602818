"""The page in Chromium: every way to add images, the controls, and the looks."""

import io
import json
import time

import numpy as np
import pytest
from PIL import Image

from stillbox.evaluation.drawing import PALETTE, css
from stillbox.predicting.predictor import Predictor
from stillbox.predicting.web_page import FOLDER
from stillbox.serving.app import _FOLDER, build_app
from stillbox.serving.settings import ServeSettings
from tests.serving.browser import KEYS, chromium, needs_chromium
from tests.serving.conftest import b64, encoded, running
from tests.serving.fake import FakeBackend

pytestmark = pytest.mark.xdist_group("chromium")


def test_colours_are_those_of_the_pictures_that_the_server_draws():
    script = (FOLDER / "draw.js").read_text()
    listed = script[script.index("[") + 1 : script.index("]")].replace('"', "").split(",")
    assert [color.strip() for color in listed if color.strip()] == [css(color) for color in PALETTE]


@pytest.mark.parametrize(
    "path", sorted([*FOLDER.iterdir(), *_FOLDER.iterdir()]), ids=lambda path: path.name
)
def test_nothing_comes_from_elsewhere(path):
    text = path.read_text().replace("http://www.w3.org/2000/svg", "")
    assert "http" not in text.replace("https or localhost", "")
    assert " style=" not in text
    assert "onclick=" not in text


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("chromium")
    images = folder / "images"
    (images / "deep").mkdir(parents=True)
    (images / "red.png").write_bytes(encoded(204, (400, 300)))
    (images / "dark.png").write_bytes(encoded(102, (120, 360)))
    (images / "deep" / "white.jpg").write_bytes(encoded(255, (64, 64), "JPEG"))
    (images / "notes.txt").write_text("no image")
    (folder / "broken.png").write_bytes(encoded(204)[:45])
    return folder


@pytest.fixture(scope="module")
def window(folder):
    with chromium(folder) as browser:
        browser.resize(1100, 700)
        yield browser


@pytest.fixture(scope="module")
def address():
    app = build_app(Predictor(FakeBackend()), ServeSettings(name="owls", batch_sizes=(1, 2)))
    with running(app) as (_, address):
        yield address


@pytest.fixture
def page(window, address):
    """A fresh page without images."""
    window.open(address)
    window.complaints()
    yield window
    assert window.complaints() == []


def choose(page, *paths):
    page.type("#files", "\n".join(map(str, paths)))


def shown(page):
    return page.run("return [...document.querySelectorAll('.box span')].map(s => s.textContent)")


def status(page):
    return page.run("return document.getElementById('status').textContent")


def wait_for(page, words):
    page.wait(f"return document.getElementById('status').textContent.startsWith({words!r})")


def slide(page, value, name="threshold"):
    page.run(
        "const s = document.getElementById(arguments[1]); s.value = arguments[0];"
        "s.dispatchEvent(new Event('input'))",
        *(value, name),
    )


def dropped(page, script):
    """Drops or pastes what a script makes of the bytes of an image."""
    page.run(
        """const bytes = Uint8Array.from(atob(arguments[0]), c => c.charCodeAt(0));
        const transfer = new DataTransfer();
        transfer.items.add(new File([bytes], "given.png", {type: "image/png"}));
        """
        + script,
        b64(encoded(204)),
    )


@needs_chromium
def test_a_chosen_image_shows_its_boxes_where_they_are(page, folder):
    choose(page, folder / "images" / "red.png")
    wait_for(page, "1 object")
    assert shown(page) == ["owl 0.80"]
    image, box = page.run(
        "return ['#image', '.box'].map(s => { const r = document.querySelector(s)"
        ".getBoundingClientRect(); return [r.left, r.top, r.width, r.height]; })"
    )
    # The owl fills the upper left quarter.
    np.testing.assert_allclose(box, [image[0], image[1], image[2] / 2, image[3] / 2], atol=1)
    assert page.run("return document.getElementById('image').alt") == "red.png, 1 object found"


@needs_chromium
def test_threshold_and_classes(page, folder):
    choose(page, folder / "images" / "red.png")
    wait_for(page, "1 object")
    slide(page, 0.05)
    assert sorted(shown(page)) == ["hawk 0.10", "owl 0.80"]
    page.run("document.querySelectorAll('#classes input')[0].click()")
    assert shown(page) == ["hawk 0.10"]
    slide(page, 0.9)
    assert shown(page) == []
    assert status(page).startswith("0 objects")


@needs_chromium
def test_many_images_by_keyboard(page, folder):
    choose(page, *sorted((folder / "images").glob("*.png")))
    wait_for(page, "1 object")
    assert "1 of 2 · dark.png" in page.run("return document.getElementById('caption').textContent")
    assert shown(page) == ["owl 0.40"]
    page.press(KEYS["right"])
    wait_for(page, "1 object")
    assert shown(page) == ["owl 0.80"]
    page.press(KEYS["right"])  # the last one
    assert shown(page) == ["owl 0.80"]
    page.press(KEYS["left"])
    assert shown(page) == ["owl 0.40"]
    page.run("document.querySelector('#found button').focus()")
    page.press(KEYS["enter"])
    assert page.run("return document.querySelectorAll('.box.chosen').length") == 1
    page.press(KEYS["escape"])
    assert page.run("return document.querySelectorAll('.box.chosen').length") == 0


@needs_chromium
def test_every_control_is_reachable_by_tab_and_shows_its_focus(page, folder):
    choose(page, *sorted((folder / "images").glob("*.png")))
    wait_for(page, "1 object")
    reached = []
    for _ in range(30):
        page.press(KEYS["tab"])
        name, outline = page.run(
            """const e = document.activeElement;
            const style = getComputedStyle(e.closest('#classes label') ?? e);
            const name = e.id || e.dataset.choose || e.type || e.tagName;
            return [name, style.outlineStyle + style.outlineWidth];"""
        )
        # Where Tab begins after a file is chosen differs between versions: it wraps around once.
        if name == "BODY":
            continue
        reached.append(name)
        assert outline == "solid3px", name
    expected = {
        "next",
        "threshold",
        "one-class",
        "iou",
        "checkbox",
        "save-json",
        "save-picture",
        "camera",
        "clear",
    }
    assert expected <= set(reached)


@needs_chromium
def test_the_switch_and_the_slider_of_one_class_for_each_object(window, folder):
    backend = FakeBackend()
    backend.doubts = True
    app = build_app(Predictor(backend), ServeSettings(name="owls", batch_sizes=(1,)))
    with running(app) as (_, address):
        window.open(address)
        choose(window, folder / "images" / "red.png")
        wait_for(window, "1 object")
        assert window.run("return document.getElementById('iou-value').value") == "0.70"
        slide(window, 1, "iou")
        assert sorted(shown(window)) == ["hawk 0.40", "owl 0.80"]
        slide(window, 0.5, "iou")
        assert shown(window) == ["owl 0.80"]
        window.run("document.getElementById('one-class').click()")
        assert sorted(shown(window)) == ["hawk 0.40", "owl 0.80"]
        assert window.run("return document.getElementById('iou').disabled")


@needs_chromium
def test_a_folder_with_other_files(page, folder):
    page.type("#folder", str(folder / "images"))
    page.wait("return document.querySelectorAll('#strip button').length === 3")
    slide(page, 0.2)
    page.wait("return document.querySelectorAll('.box').length === 1")


@needs_chromium
@pytest.mark.parametrize(
    "script",
    [
        "dispatchEvent(new ClipboardEvent('paste', {clipboardData: transfer}))",
        "dispatchEvent(new DragEvent('drop', {dataTransfer: transfer, cancelable: true}))",
    ],
    ids=["paste", "drop"],
)
def test_an_image_that_is_pasted_or_dropped(page, script):
    dropped(page, script)
    wait_for(page, "1 object")
    assert shown(page) == ["owl 0.80"]


@needs_chromium
def test_text_that_is_pasted_is_no_image(page):
    page.run(
        "const transfer = new DataTransfer(); transfer.setData('text/plain', 'secret');"
        "dispatchEvent(new ClipboardEvent('paste', {clipboardData: transfer}))"
    )
    assert status(page) == ""


@needs_chromium
def test_the_camera(page):
    page.run("document.querySelector('#empty [data-choose=camera]').click()")
    page.wait("return document.getElementById('video').videoWidth > 0")
    page.run("document.getElementById('shoot').click()")
    page.wait("return /object/.test(document.getElementById('status').textContent)")
    assert page.run("return document.getElementById('video').srcObject") is None


@needs_chromium
def test_downloads(page, folder):
    choose(page, folder / "images" / "red.png")
    wait_for(page, "1 object")
    page.run("document.getElementById('save-json').click()")
    page.run("document.getElementById('save-picture').click()")
    saved = json.loads(arrived(folder / "downloads" / "red.json"))
    assert (saved["image"], saved["height"], saved["width"]) == ("red.png", 300, 400)
    assert [detection["class"] for detection in saved["detections"]] == ["owl"]
    picture = arrived(folder / "downloads" / "red-detections.png")
    pixels = np.asarray(Image.open(io.BytesIO(picture)).convert("RGB")).astype(int)
    assert pixels.shape == (300, 400, 3)
    changed = np.abs(pixels - (204, 7, 9)).max(axis=2) > 30
    assert changed[148:153, 20:180].any(axis=0).all()  # the lower edge of the owl's box
    assert not changed[160:].any()


def arrived(path):
    end = time.monotonic() + 20
    while not path.exists():
        assert time.monotonic() < end, path
        time.sleep(0.05)
    return path.read_bytes()


@needs_chromium
def test_a_broken_image_shows_an_error(window, address, folder):
    window.open(address)
    choose(window, folder / "broken.png")
    wait_for(window, "Not detected")
    said = window.run("return document.getElementById('failure').textContent")
    assert "cannot be decoded" in said or "no image" in said
    window.complaints()  # Chromium notes the 400 by itself


@needs_chromium
def test_the_key_is_asked_for_and_wrong_ones_again(window, folder):
    settings = ServeSettings(name="owls", batch_sizes=(1,), api_key="secret")
    app = build_app(Predictor(FakeBackend()), settings)
    with running(app) as (_, address):
        window.open(address)
        choose(window, folder / "images" / "red.png")
        window.wait("return document.getElementById('key-dialog').open")
        # No header can have these quotation marks.
        window.type("#key", "\u201csecret\u201d" + KEYS["enter"])
        field = "document.getElementById('key')"
        assert window.run(f"return {field}.validity.patternMismatch")
        window.run(f"{field}.value = ''")
        for key in ("wrong", "secret"):
            window.wait("return document.getElementById('key-dialog').open")
            window.type("#key", key + KEYS["enter"])
        wait_for(window, "1 object")
        assert shown(window) == ["owl 0.80"]
        # Nothing of it stays in the browser.
        assert window.run("return [localStorage.length, sessionStorage.length]") == [0, 0]
        assert window.run("return document.cookie") == ""
        assert window.run("return indexedDB.databases().then(found => found.length)") == 0
        assert window.run("return caches.keys().then(found => found.length)") == 0
        window.open(address)
        choose(window, folder / "images" / "red.png")
        window.wait("return document.getElementById('key-dialog').open")


@needs_chromium
@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("size", [(1280, 800), (390, 844)], ids=["desk", "phone"])
def test_how_it_looks(page, folder, scheme, size, tmp_path):
    try:
        page.resize(*size)
        page.prefer(scheme)
        choose(page, *sorted((folder / "images").glob("*.png")))
        wait_for(page, "1 object")
        (tmp_path / "page.png").write_bytes(page.picture())
        shot = np.asarray(Image.open(tmp_path / "page.png").convert("L"))
        assert shot.shape == (size[1], size[0])
        assert (shot[2, size[0] // 2] > 128) == (scheme == "light")
        # Nothing makes the page wider than the screen.
        assert page.run("return document.documentElement.scrollWidth") <= size[0]
    finally:
        page.resize(1100, 700)
        page.prefer("light")
