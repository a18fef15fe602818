"""`stillbox predict` on folders, bad files, large images, videos and a camera, without a model."""

import gc
import json
import os
import signal
import weakref
from pathlib import Path

import cv2
import numpy as np
import pytest
from PIL import Image

from stillbox.evaluation.tiling import Tiling
from stillbox.predicting import detections
from stillbox.predicting.images import read_image
from stillbox.predicting.predictor import Predictor
from stillbox.predicting.video import Video
from stillbox.records.file_list import LIST
from tests.helpers import refused
from tests.predicting.blobs import Blobs, scene
from tests.predicting.test_video import Camera, write_video

pytestmark = pytest.mark.usefixtures("shared_programs")


@pytest.fixture(autouse=True)
def backend(monkeypatch):
    """Every model is the backend that finds rectangles."""
    backend = Blobs()
    monkeypatch.setattr(
        "stillbox.api.load",
        lambda *words, batch_size, **others: Predictor(backend, batch_size=batch_size),
    )
    return backend


@pytest.fixture
def photos(here):
    """Three images in a folder, one of them in a subfolder."""
    for number, name in enumerate(["2.png", "10.png", "deep/2.png"]):
        path = here / "photos" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(scene((10, 10, 20, 20 + number), size=(40, 60))).save(path)
    return here / "photos"


def entries(name="predictions.json"):
    with open(f"predictions/{name}") as file:  # noqa: PTH123
        return json.load(file) if name.endswith(".json") else [json.loads(line) for line in file]


def test_a_folder(stillbox, photos):
    code, out, err = stillbox("predict", "model", "photos", "--batch-size", 4)
    assert (code, err) == (0, "next: stillbox export model\n")
    assert [entry["image"] for entry in entries()] == ["photos/2.png", "photos/10.png"]
    assert entries() == entries("predictions.jsonl")
    assert "photos/10.png: 1 object (1 blob) -> predictions/10.jpg" in out
    assert "images/s" in out


def test_subfolders_without_pictures(stillbox, photos):
    words = ["--recursive", "--no-pictures"]
    stillbox("predict", "model", "photos", *words).ended()
    assert [entry["image"] for entry in entries()][-1] == "photos/deep/2.png"
    names = [LIST, "predictions.json", "predictions.jsonl"]
    assert sorted(os.listdir("predictions")) == names  # noqa: PTH208
    assert "picture" not in entries()[0]


@pytest.mark.parametrize("batch_size", [1, 2])
def test_bad_files_are_passed_over_and_listed_at_the_end(stillbox, photos, batch_size):
    (photos / "1.png").write_bytes(b"no image")
    (photos / "3.png").write_bytes((photos / "2.png").read_bytes()[:60])
    _, err = stillbox("predict", "model", "photos", "--batch-size", batch_size).ended(1)
    assert [entry["image"] for entry in entries()] == ["photos/2.png", "photos/10.png"]
    last = err[err.index("2 of 4 could not be read:") :].splitlines()
    assert [line.split(": ")[0].strip() for line in last[1:]] == ["photos/1.png", "photos/3.png"]


def test_images_of_few_values_are_counted(stillbox, photos):
    Image.new("RGB", (60, 40), (3, 3, 9)).save(photos / "black.png")
    Image.new("I;16", (60, 40)).save(photos / "c.tif")
    _, _, err = stillbox("predict", "model", "photos", "--recursive")
    line = "2 images with few of the 256 values, almost of one colour: first photos/black.png"
    assert line in err.splitlines()


def test_names_that_are_no_text(stillbox, photos):
    names = [b"\xff.png", b"\x1b[31m.png", "\u96fb {0} [b].png".encode()]
    for name in names:
        with open(os.fsencode(photos) + b"/" + name, "wb") as file:  # noqa: PTH123
            file.write((photos / "2.png").read_bytes())
    with open(os.fsencode(photos) + b"/\x1b.png", "wb") as file:  # noqa: PTH123
        file.write(b"no image")
    out, err = stillbox("predict", "model", "photos").ended(1)
    assert len(entries()) == 5
    assert "photos/\\udcff.png: 1 object " in out
    assert "\x1b" not in out + err
    assert "photos/\\x1b.png: cannot be decoded" in err


def test_only_bad_files_are_an_error(stillbox, here):
    for name in ("1.png", "2.png"):
        (here / name).write_bytes(b"no image")
    _, err = stillbox("predict", "model", "1.png", "2.png").ended(2)
    assert "stillbox predict: 1.png: cannot be decoded" in err
    assert "so it is with all 2" in err
    assert not (here / "predictions/predictions.json").exists()


def test_few_images_are_in_memory_at_a_time(stillbox, photos, monkeypatch):
    alive, most = weakref.WeakSet(), 0
    made = detections.Detections.__init__

    def counted(self, *args, **values):
        nonlocal most
        made(self, *args, **values)
        alive.add(self)
        most = max(most, len(alive))

    monkeypatch.setattr(detections.Detections, "__init__", counted)
    monkeypatch.setattr(detections.Detections, "__hash__", object.__hash__)
    monkeypatch.setattr("stillbox.cli.predict_files.own_processors", lambda: 2)
    for number in range(100, 200):
        (photos / f"{number}.png").write_bytes((photos / "2.png").read_bytes())
    gc.collect()
    stillbox("predict", "model", "photos", "--no-pictures").ended()
    assert len(entries()) == 102
    # Each comes twice, before and after the least score; two threads have four results each.
    assert most < 30


def test_tiles(stillbox, here, backend):
    Image.fromarray(scene((100, 100, 110, 110), (190, 50, 210, 390))).save("large.png")
    words = ["predict", "model", "large.png", "--tile", 100, "--batch-size", 8]
    for more in (["--merge", "wbf"], ["--overlap", "0.3", "--tiles-only"]):
        stillbox(*words, *more).ended()
        (entry,) = entries()
        boxes = sorted(tuple(detection["box"].values()) for detection in entry["detections"])
        assert boxes == [(100, 100, 110, 110), (190, 50, 210, 390)]
    assert {len(batch) for batch in backend.batches} == {8}


def test_a_model_with_tiles_of_its_own_is_asked_in_them(stillbox, here, backend):
    Image.fromarray(scene((100, 100, 110, 110), (190, 50, 210, 390))).save("large.png")
    backend.tiling = Tiling(tile=200, overlap=0.25, full_image=False)
    for number, (more, sizes) in enumerate(
        (
            ([], [(200, 200)] * 6),
            (["--tile", 300], [(300, 300)] * 2),
            (["--overlap", "0"], [(200, 200)] * 4),
            (["--no-tiles"], [(300, 400)]),
        )
    ):
        backend.batches.clear()
        stillbox("predict", "model", "large.png", "--output", f"results{number}", *more).ended()
        assert [size for batch in backend.batches for size in batch] == sizes


def test_a_video_becomes_a_video_and_lines(stillbox, here):
    write_video(here / "clip.avi")
    out, _ = stillbox(
        "predict", "model", "clip.avi", "--frame-stride", 2, "--batch-size", 4
    ).ended()
    assert "clip.avi: 13 frames, 12 objects (12 blob), " in out
    lines = entries("clip.jsonl")
    assert [line["frame"] for line in lines] == list(range(0, 25, 2))
    assert [line["time"] for line in lines] == pytest.approx([n / 10 for n in range(0, 25, 2)])
    assert lines[1]["detections"][0]["box"] == {"ymin": 0, "xmin": 0, "ymax": 48, "xmax": 64}
    drawn = Video(here / "predictions/clip.webm")
    assert (drawn.rate, drawn.frames) == (5, 13)
    assert not (here / "predictions/predictions.json").exists()


def test_a_bad_video_among_good_inputs(stillbox, photos):
    (photos / "clip.mp4").write_bytes(b"no video")
    write_video(photos / "good.avi", frames=3)
    _, err = stillbox("predict", "model", "photos").ended(1)
    assert "1 of 4 could not be read:\n  photos/clip.mp4: the video cannot be decoded" in err
    assert len(entries("good.jsonl")) == 3


@pytest.mark.parametrize("words", [["--camera", "0"], ["webcam:0"]])
def test_a_camera(stillbox, here, monkeypatch, words):
    # The files that are written are opened again with the real one.
    real = cv2.VideoCapture
    monkeypatch.setattr(
        cv2, "VideoCapture", lambda *source: (Camera if source == (0,) else real)(*source)
    )
    stillbox("predict", "model", *words).ended()
    lines = entries("webcam_0.jsonl")
    assert [(line["video"], line["frame"]) for line in lines] == [
        ("webcam:0", number) for number in range(5)
    ]
    assert Video(here / "predictions/webcam_0.webm").frames > 0


@pytest.mark.parametrize("name", ["predictions.jsonl", "predictions.json"])
def test_a_pipe_or_a_link_among_the_results_is_kept(stillbox, photos, name):
    results = photos.parent / "predictions"
    results.mkdir()
    if name == "predictions.json":
        (results / name).symlink_to("/dev/full")
    else:
        os.mkfifo(results / name)
    _, err = stillbox("predict", "model", "photos", "--no-pictures").ended(2)
    assert f"predictions/{name}: this would be replaced" in err
    assert os.listdir(results) == [name]  # noqa: PTH208


@pytest.mark.timeout(20)
def test_a_file_that_would_block_is_passed_over(stillbox, photos):
    # Seen as files when they are listed.
    os.mkfifo(photos / "pipe")
    (photos / "link.png").symlink_to("pipe")
    (photos / "zero.png").symlink_to("/dev/zero")
    (photos / "sparse.png").touch()
    os.truncate(photos / "sparse.png", 20 * 2**30)
    _, err = stillbox("predict", "model", "photos", "--no-pictures").ended(1)
    assert "sparse.png: it has 21,474,836,480 bytes" in err
    with refused("here/photos/link.png"):
        read_image(photos / "link.png")


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_finishes_the_video(stillbox, here, backend, monkeypatch, number):
    run = backend.run

    def stopped(images):
        if len(backend.batches) == 5:
            os.kill(os.getpid(), number)
        return run(images)

    monkeypatch.setattr(backend, "run", stopped)
    write_video(here / "clip.avi")
    write_video(here / "later.avi")
    _, err = stillbox("predict", "model", "clip.avi", "later.avi").ended(128 + number)
    assert f"stopped by {number.name}" in err
    lines = entries("clip.jsonl")
    assert 0 < len(lines) < 10
    assert Video(here / "predictions/clip.webm").frames == len(lines)
    assert not (here / "predictions/later.jsonl").exists()


def test_a_signal_leaves_the_images_that_are_done(stillbox, photos, backend, monkeypatch):
    run = backend.run

    def stopped(images):
        if len(backend.batches) == 3:
            os.kill(os.getpid(), signal.SIGINT)
        return run(images)

    monkeypatch.setattr(backend, "run", stopped)
    monkeypatch.setattr("stillbox.cli.predict_files.own_processors", lambda: 1)
    for number in range(100, 200):
        (photos / f"{number}.png").write_bytes((photos / "2.png").read_bytes())
    _, err = stillbox("predict", "model", "photos", "--no-pictures").ended(130)
    assert err == "stopped by SIGINT; the files hold what was done\n"
    assert entries() == entries("predictions.jsonl")
    assert 0 < len(entries()) < 20


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["photos", "--min-score", "1.5"], "--min-score: 1.5 is no score"),
        (["photos", "--min-score", "nan"], "--min-score: 'nan' is no finite number"),
        (["photos", "--min-score", "-0.1"], "--min-score: -0.1 is no score"),
        (["photos", "--batch-size", "0"], "--batch-size: a batch holds at least one image"),
        (["photos", "--tile", "0"], "--tile: a tile of 0 pixels is too small"),
        (["photos", "--tile", "64", "--overlap", "1"], "--overlap: neighbouring tiles cannot"),
        (["photos", "--tile", "64", "--overlap", "nan"], "--overlap: 'nan' is no finite number"),
        (["photos", "--overlap", "0.3"], "--overlap: there are no tiles without --tile"),
        (["photos", "--tiles-only"], "--tiles-only: there are no tiles without --tile"),
        (["photos", "--tile", "64", "--no-tiles"], "--no-tiles: not allowed with argument --tile"),
        (["photos", "--frame-stride", "0"], "--frame-stride: frames are counted from 1"),
        ([], "no image is named"),
        (["webcam:front"], "'front' is no number of a camera"),
        (["--camera", "-1"], "'-1' is no number of a camera"),
        (["webcam:0", "webcam:1"], "there can be one"),
        (["photos", "--output", "photos"], "photos: the output folder lies among the images"),
        (["photos", "--engine", "ray", "--recursive"], "--recursive: --engine ray writes a table"),
    ],
)
def test_impossible_options_are_refused(refused, photos, words, expected):
    assert expected in refused("predict", "model", *words)
    assert not (photos.parent / "predictions").exists()


def test_boxes_are_clipped_to_the_image(stillbox, photos, backend, monkeypatch):
    detect = Blobs._found
    monkeypatch.setattr(
        Blobs,
        "_found",
        lambda self, pixels: detect(self, pixels)._replace(
            boxes=np.array([[-5.0, -5.0, 100.0, 200.0]])
        ),
    )
    stillbox("predict", "model", "photos").ended()
    assert entries()[0]["detections"][0]["box"] == {"ymin": 0, "xmin": 0, "ymax": 40, "xmax": 60}


def test_a_full_disk_names_the_file(refused, photos, monkeypatch):
    full = Path("/dev/full")
    module = "stillbox.predicting.files"
    monkeypatch.setattr(f"{module}.create_file", lambda path: full.open("wb"))
    code_line = refused("predict", "model", "photos")
    assert "predictions/predictions.jsonl: cannot be written: No space left on device" in code_line
