"""The page of docs/browser, which runs a TFLite export: its files, and its results in Chromium."""

import base64
import dataclasses
import hashlib
import json
import re
import runpy
import shutil
import subprocess
import threading
import zipfile
from contextlib import contextmanager
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import cv2
import numpy as np
import pytest

from stillbox.api import load, load_model
from stillbox.experiment import schema
from stillbox.experiment.resolve import changed
from stillbox.experiment.values import section_to_plain
from stillbox.experiment.yaml_config import to_yaml
from stillbox.exporting.export import export_model
from stillbox.exporting.manifest import EXPERIMENT, Manifest
from stillbox.exporting.settings import ExportSettings
from stillbox.exporting.tflite.format import class_labels
from stillbox.inputs.interpolation import METHODS
from stillbox.inputs.resize import resized_size
from stillbox.predicting.images import read_image
from stillbox.records.label_map import LabelMap
from tests.exporting.test_proof import CALIBRATED_ON, PHOTOGRAPHS, SSD
from tests.serving.browser import chromium, needs_chromium
from tests.small import EVERY_DETECTION, needs_shared

HOSTILE = "<img src=x onerror=document.title='run'><script>document.title='run'</script>"
PROGRAM = runpy.run_path(str(Path(__file__).resolve().parents[2] / "docs/browser/page.py"))
VERSION, INTEGRITY, write_page = (PROGRAM[name] for name in ("VERSION", "INTEGRITY", "write_page"))
PACKAGE = f"@litertjs/core@{VERSION}"


@pytest.fixture(scope="module")
def hostile(model):
    """The model with HTML for the names of its classes and of its experiment."""
    items = "".join(
        f"item {{ id: {class_id} name: {json.dumps(name)} }}"
        for class_id, name in (
            (class_id, f"{HOSTILE} {class_id}") for class_id in model.class_names()
        )
    )
    experiment = dataclasses.replace(model.experiment, name=HOSTILE)
    return dataclasses.replace(model, label_map=LabelMap.from_text(items), experiment=experiment)


def export_without_program(model, folder, **settings):
    """Writes what the page reads of an export."""
    resizer = model.experiment.model.resizer
    (folder / EXPERIMENT).write_text(to_yaml(model.experiment), encoding="utf-8")
    with zipfile.ZipFile(folder / "model.tflite", "w") as archive:
        archive.writestr("label_ids.txt", "\n".join(map(str, model.slots().ids)))
        archive.writestr("labels.txt", "\n".join(class_labels(model)))
    Manifest(
        settings=ExportSettings(format="tflite", **settings).with_sizes(resizer),
        files={},
        input_size=resizer.input_size,
        resizer=section_to_plain(resizer),
        source="owls",
    ).write(folder)


@pytest.fixture
def folder(hostile, tmp_path):
    """The page, with a model that cannot run."""
    export_without_program(hostile, tmp_path)
    write_page(tmp_path, tmp_path / "site")
    return tmp_path / "site"


def texts(folder):
    return {
        str(path.relative_to(folder)): path.read_text(encoding="utf-8")
        for path in folder.rglob("*")
        if path.is_file() and path.suffix != ".tflite"
    }


def test_the_files_of_the_page_are_there(folder):
    index = texts(folder)["index.html"]
    for name in re.findall(r'(?:src|href)="([^"]+)"', index):
        assert (folder / name).is_file()
    names = {"api.js", "app.js", "draw.js", "files.js", "resize.js"}
    assert {path.name for path in (folder / "page").glob("*.js")} == names
    for name, text in texts(folder).items():
        for imported in re.findall(r'from "\./([^"]+)"', text):
            assert (folder / "page" / imported).is_file(), name


def test_names_of_classes_are_data_and_never_html(folder):
    files = texts(folder)
    holders = [name for name, text in files.items() if "onerror" in text and "<img src=x" in text]
    assert holders == ["page/model.json"]
    assert json.loads(files["page/model.json"])["classes"][0] == {"id": 1, "name": f"{HOSTILE} 1"}
    assert "&lt;script&gt;" in files["index.html"]


def test_nothing_names_a_folder_of_this_machine(folder, trained_once):
    for text in texts(folder).values():
        assert str(trained_once) not in text
        assert str(folder) not in text
        assert not re.search(r'(src|href|import)="/', text)


def test_the_only_other_host_is_the_cdn_with_a_version_and_checksums(folder):
    files = texts(folder)
    text = "".join(files.values()).replace("http://www.w3.org/2000/svg", "")
    hosts = set(re.findall(r"https?://([\w.:-]+)", text))
    assert hosts == {"cdn.jsdelivr.net", "localhost:8000."}
    library = json.loads(files["page/model.json"])["library"]
    assert library["cdn"] == f"https://cdn.jsdelivr.net/npm/@litertjs/core@{VERSION}/"
    imports = re.search(r'<script type="importmap">(.*?)</script>', files["index.html"])[1]
    assert all(digest.startswith("sha384-") for digest in json.loads(imports)["integrity"].values())
    digest = base64.b64encode(hashlib.sha256(imports.encode()).digest()).decode()
    assert f"'sha256-{digest}'" in files["index.html"]


def test_a_model_of_a_custom_operation_has_no_page(hostile, tmp_path):
    export_without_program(hostile, tmp_path, postprocess="detection_op")
    with pytest.raises(SystemExit, match="built-in operations"):
        write_page(tmp_path, tmp_path / "site")
    assert not (tmp_path / "site").exists()


class Files(SimpleHTTPRequestHandler):
    """Files of a folder, without a line for each request."""

    def log_message(self, *_):
        pass


@contextmanager
def served(folder):
    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(Files, directory=folder))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()


in_chromium = [needs_chromium, pytest.mark.slow, pytest.mark.xdist_group("chromium")]


def marked(*marks):
    """All marks of a test in the browser."""

    def mark(function):
        for marker in (*in_chromium, *marks):
            function = marker(function)
        return function

    return mark


@pytest.fixture(scope="module")
def window(tmp_path_factory):
    folder = tmp_path_factory.mktemp("chromium")
    # No test asks the CDN.
    with chromium(folder, "--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1") as browser:
        browser.resize(1100, 700)
        yield browser


@pytest.fixture(scope="module")
def packages(tmp_path_factory):
    """The folder `node_modules` with LiteRT.js."""
    folder = tmp_path_factory.mktemp("npm")
    words = ["npm", "install", "--no-audit", "--no-fund", "--prefix", str(folder), PACKAGE]
    if not shutil.which("npm") or subprocess.run(words, capture_output=True).returncode:
        pytest.skip(f"npm is not installed, or cannot install {PACKAGE}")
    return folder / "node_modules"


def note(window):
    window.wait("return !document.getElementById('runtime').textContent.startsWith('Loading')")
    return window.run("return document.getElementById('runtime').textContent")


def shown(window, folder, packages, files):
    """Returns the detections of the page in image files, by name, with every score."""
    if not (folder / "node_modules").exists():
        shutil.copytree(packages, folder / "node_modules")
    with served(folder) as address:
        window.open(address)
        assert note(window).startswith(f"LiteRT.js {VERSION} from this folder")
        window.run(
            "document.getElementById('one-class').click();"
            "const s = document.getElementById('threshold'); s.value = 0.01;"
            "s.dispatchEvent(new Event('input'))"
        )
        window.type("#files", "\n".join(map(str, files)))
        script = """import('./page/app.js').then(({ shownAsJson }) => {
          const found = [JSON.parse(shownAsJson())].flat();
          if (found.length === arguments[0]) window.everything = found;
        }); return window.everything;"""
        entries = window.wait(script.replace("arguments[0]", str(len(files))), 300)
    return {entry["image"]: entry["detections"] for entry in entries}


SIDES = ("ymin", "xmin", "ymax", "xmax")  # the driver sorts the names


def assert_equal(detected, wanted, box=0.02, score=1e-4):
    """Compares detections of the page, best first, with `Detections`; equal scores in any order."""
    wanted = [detection for detection in wanted if detection.score > 0.01 + score]
    detected = [detection for detection in detected if detection["score"] > 0.01 + score]
    assert abs(len(detected) - len(wanted)) <= 1
    for detection in wanted[: len(detected)]:
        assert any(
            other["class_id"] == detection.class_id
            and other["class"] == detection.name
            and abs(other["score"] - detection.score) <= score
            and np.allclose([other["box"][side] for side in SIDES], detection.box, atol=box, rtol=0)
            for other in detected
        ), detection


def resized_file(file, size, folder):
    path = folder / f"{file.stem}.png"
    assert cv2.imwrite(str(path), cv2.resize(cv2.imread(str(file)), size[::-1]))
    return path


PADDED = {"kind": "scale_jitter", "height": 64, "width": 64, "pad_value": [9, 99, 199]}


@marked()
@pytest.mark.parametrize(
    "settings, resizer",
    [
        ({}, {}),
        ({"input_type": "float_image_tensor"}, PADDED),
        ({"input_type": "raw_image_tensor", "input_name": "pixels"}, {}),
        ({"image_size": (48, 80)}, {}),
    ],
    ids=["bytes", "padded", "raw", "size"],
)
def test_the_page_detects_the_same_as_the_export(
    hostile, scenes, window, packages, tmp_path, settings, resizer
):
    pytest.importorskip("litert_converter")
    files = sorted((scenes / "images/val").iterdir())[:3]
    if size := settings.get("image_size"):
        # Images that the browser resizes differ by a level from OpenCV; these are not resized.
        files = [resized_file(file, size, tmp_path) for file in files]
    changes = {"model.resizer": resizer} if resizer else {}
    model = dataclasses.replace(hostile, experiment=changed(hostile.experiment, changes))
    settings = ExportSettings(format="tflite", max_detections=20, **settings)
    images = [read_image(file)[0] for file in files]
    exported = export_model(model, tmp_path / "out", settings, images)
    write_page(exported.folder, tmp_path / "site")
    detected = shown(window, tmp_path / "site", packages, files)
    artefact = load(exported.folder)
    for file in files:
        wanted = list(artefact.predict(file, **EVERY_DETECTION))
        assert len(detected[file.name]) > 3
        assert_equal(detected[file.name], wanted)
    # Names of classes are shown and never run.
    assert all(HOSTILE in detection["class"] for some in detected.values() for detection in some)
    assert window.run("return document.title") == f"{HOSTILE} · stillbox"
    assert window.run("return document.querySelectorAll('#found img, #boxes img').length") == 0


@marked()
def test_without_the_library_and_the_cdn_the_page_shows_a_remedy(window, folder):
    with served(folder) as address:
        window.open(address)
        assert f"npm install --prefix FOLDER {PACKAGE}" in note(window)


@marked()
def test_a_library_of_other_content_is_refused(window, folder, packages):
    shutil.copytree(packages, folder / "node_modules")
    module = folder / "node_modules/@litertjs/core/dist/index.js"
    module.write_text("document.title = 'run'; export {};")
    with served(folder) as address:
        window.open(address)
        assert "LiteRT.js cannot be loaded" in note(window)
        assert window.run("return document.title") != "run"


@marked()
def test_from_a_file_the_page_asks_for_a_server(window, folder):
    window.open((folder / "index.html").as_uri())
    assert "This page needs a web server" in note(window)


@marked()
def test_the_checksums_are_those_of_the_packages(packages):
    for package, files in INTEGRITY.items():
        for name, digest in files.items():
            content = (packages / "@litertjs" / package / name).read_bytes()
            assert base64.b64encode(hashlib.sha384(content).digest()).decode() == digest


def in_page(window, function, *arguments):
    """Calls a function of `resize.js`."""
    window.run(
        "window.got = undefined; const given = arguments;"
        "import('./page/resize.js').then((m) => { window.got = m[given[0]](...given[1]); })",
        *(function, arguments),
    )
    return window.wait("return window.got && [...window.got]")


WAYS = [(method, align) for method in METHODS for align in (False, True)]


@marked()
@pytest.mark.parametrize("size", [(7, 11), (40, 23), (61, 90)], ids="{0[0]}x{0[1]}".format)
@pytest.mark.parametrize("method, align", [*WAYS, ("opencv_area", False)])
def test_images_are_resized_as_in_training(window, folder, method, size, align):
    pixels = np.random.default_rng(0).integers(0, 256, (31, 47, 3), np.uint8)
    if method == "opencv_area":
        wanted = cv2.resize(pixels, size[::-1], interpolation=cv2.INTER_AREA)
    else:
        wanted = np.empty((*size, 3), np.float32)
        METHODS[method](pixels, wanted, align_corners=align)
    data = np.concatenate([pixels, np.full((31, 47, 1), 255, np.uint8)], axis=2)
    image = {"height": 31, "width": 47, "data": data.ravel().tolist()}
    resizer = {"method": method, "align_corners": align}
    with served(folder) as address:
        window.open(address)
        got = np.array(in_page(window, "resize", image, size, resizer)).reshape(wanted.shape)
    # OpenCV stores bytes, and computes with weights of 11 bits where it enlarges.
    atol = (
        1 if method == "opencv_area" else 0 if method in ("nearest", "bilinear_antialias") else 1e-3
    )
    np.testing.assert_allclose(got, wanted, atol=atol, rtol=0)


RESIZERS = [
    schema.FixedShapeResizer(height=30, width=50),
    schema.KeepAspectRatioResizer(min_dimension=100, max_dimension=150),
    schema.ScaleJitterResizer(height=120, width=90),
    schema.ConditionalShapeResizer(canvas=(999, 999), condition="greater", threshold=77),
    schema.ConditionalShapeResizer(canvas=(999, 999), condition="smaller", threshold=333),
    schema.IdentityResizer(canvas=(999, 999)),
    schema.PadToMultipleResizer(canvas=(999, 999)),
]


@marked()
@pytest.mark.parametrize("resizer", RESIZERS, ids=lambda resizer: type(resizer).__name__)
def test_sizes_are_those_of_every_resizer(window, folder, resizer):
    with served(folder) as address:
        window.open(address)
        for size in ((100, 100), (333, 500), (427, 640), (31, 803), (335, 201)):
            got = in_page(window, "sizeInside", size, section_to_plain(resizer))
            assert tuple(got) == resized_size(size, resizer)


def test_every_resizer_is_compared():
    known = {resizer.kind for resizer in RESIZERS}
    assert known == {
        resizer.kind for resizer in schema.Resizer.__subclasses__() if hasattr(resizer, "kind")
    } | {resizer.kind for resizer in schema.data.CanvasResizer.__subclasses__()}


@marked(pytest.mark.proof, needs_shared)
@pytest.mark.parametrize("quantize", ["none", "int8"])
def test_photographs_have_the_boxes_of_the_checkpoint(window, packages, tmp_path, quantize):
    pytest.importorskip("litert_converter")
    source = {name: SSD[name] for name in ("weights", "overrides")}
    model = load_model(SSD["config"], **source)
    settings = ExportSettings(format="tflite", quantize=quantize)
    images = [read_image(file)[0] for file in CALIBRATED_ON]
    exported = export_model(model, tmp_path / "out", settings, images)
    files = sorted((PHOTOGRAPHS / "val2017").iterdir())
    write_page(exported.folder, tmp_path / "site")
    detected = shown(window, tmp_path / "site", packages, files)
    wanted = load(SSD["config"], **source) if quantize == "none" else load(exported.folder)
    for file in files:
        assert_equal(detected[file.name], list(wanted.predict(file, **EVERY_DETECTION)))
