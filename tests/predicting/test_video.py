"""Frames of a video and of a camera, and videos that are written."""

from itertools import pairwise

import cv2
import numpy as np
import pytest

from stillbox.errors import UserError
from stillbox.evaluation.results import NotFiniteError, RawDetections
from stillbox.evaluation.tiling import Tiling
from stillbox.predicting import video as videos
from stillbox.predicting.predictor import Predictor
from stillbox.predicting.video import Video, VideoFile
from stillbox.records.tile_grid import tile_windows
from stillbox.references import Parameter
from tests.helpers import refused
from tests.predicting.blobs import Blobs, scene


def write_video(path, frames=25, rate=10, size=(48, 64)):
    """Writes a Motion JPEG; its frames have the grey levels 0, 10, 20, ..."""
    writer = cv2.VideoWriter(str(path), cv2.VideoWriter.fourcc(*"MJPG"), rate, size[::-1])
    for number in range(frames):
        writer.write(np.full((*size, 3), 10 * number, np.uint8))
    writer.release()
    return path


def levels(path):
    """The grey level of every frame, in tens."""
    return [round(float(frame.pixels.mean()) / 10) for frame in Video(path)]


class Camera:
    """Takes five frames and then fails, like an unplugged camera."""

    def __init__(self, source):
        self.left = 5

    def isOpened(self):  # noqa: N802
        return True

    def get(self, name):
        return {cv2.CAP_PROP_FPS: 0.0, cv2.CAP_PROP_FRAME_COUNT: -1.0}.get(name, 0.0)

    def grab(self):
        self.left -= 1
        return self.left >= 0

    def retrieve(self):
        return True, np.full((8, 8, 3), (0, 0, 255), np.uint8)

    def release(self):
        self.left = 0


def test_frames_have_numbers_times_and_rgb(tmp_path):
    video = Video(write_video(tmp_path / "a.avi"))
    assert (video.rate, video.frames, video.live) == (10, 25, False)
    frames = list(video)
    assert [frame.number for frame in frames] == list(range(25))
    assert [frame.seconds for frame in frames] == pytest.approx([n / 10 for n in range(25)])
    assert frames[0].pixels.shape == (48, 64, 3)
    assert [round(frame.pixels.mean() / 10) for frame in frames] == list(range(25))


def test_every_third_frame(tmp_path):
    video = Video(write_video(tmp_path / "a.avi"), stride=3)
    assert video.frames == 9
    assert [(frame.number, round(frame.seconds, 3)) for frame in video] == [
        (number, number / 10) for number in range(0, 25, 3)
    ]


@pytest.mark.parametrize("content", [b"", b"no video", b"RIFF\0\0\0\0AVI "])
def test_files_that_are_no_videos_are_named(tmp_path, content):
    (tmp_path / "a.avi").write_bytes(content)
    with refused("a.avi") as caught:
        list(Video(tmp_path / "a.avi"))
    assert caught.value.where == str(tmp_path / "a.avi")


@pytest.mark.parametrize("first", ["#EXTM3U\n", "\ufeffffconcat version 1.0\nfile ", "v=0\nm=\n"])
def test_a_file_cannot_have_other_files_opened(tmp_path, first):
    write_video(tmp_path / "secret.avi")
    (tmp_path / "a.mp4").write_text(first + "secret.avi\n")
    with refused("a.mp4"):
        Video(tmp_path / "a.mp4")


def test_a_video_that_is_cut_off_gives_its_first_frames(tmp_path):
    path = write_video(tmp_path / "a.avi")
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
    assert 0 < len(list(Video(path))) < 25


def test_a_camera_gives_colours_and_the_time_that_has_passed(monkeypatch):
    now = iter([100.0, 100.0, 100.5, 101.0, 101.5, 102.0])
    monkeypatch.setattr(cv2, "VideoCapture", Camera)
    monkeypatch.setattr(videos.time, "monotonic", lambda: next(now))
    camera = Video(0)
    assert (camera.live, camera.rate, camera.frames, camera.name) == (True, 30, 0, "webcam:0")
    frames = list(camera)
    assert [frame.seconds for frame in frames] == [0, 0.5, 1, 1.5, 2]
    assert frames[0].pixels[0, 0].tolist() == [255, 0, 0]


def test_a_video_that_cannot_be_read_is_named(tmp_path):
    with refused("a.mp4") as caught:
        Video(tmp_path / "a.mp4")
    assert caught.value.where == str(tmp_path / "a.mp4")


def test_a_camera_that_is_not_there_is_refused():
    with refused("webcam:97"):
        Video(97)


def test_a_written_video_has_every_frame_and_the_rate(tmp_path):
    with VideoFile(tmp_path / "out/a.webm", 7.5) as file:
        for number in range(20):
            file.write(np.full((48, 64, 3), 10 * number, np.uint8), number / 7.5)
        assert not (tmp_path / "out/a.webm").exists()
    assert Video(tmp_path / "out/a.webm").rate == 7.5
    assert levels(tmp_path / "out/a.webm") == list(range(20))
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["a.webm"]


def test_a_written_video_is_one_that_browsers_play(tmp_path, capfd):
    # Of odd sides, which OpenCV makes even: it leaves out the last row and column.
    with VideoFile(tmp_path / "a.webm", 30000 / 1001) as file:
        for number in range(7):
            file.write(np.full((47, 65, 3), (200, 10 * number, 0), np.uint8), number / 30)
    reopened = cv2.VideoCapture(str(tmp_path / "a.webm"))
    assert int(reopened.get(cv2.CAP_PROP_FOURCC)).to_bytes(4, "little") == b"VP80"
    assert (tmp_path / "a.webm").read_bytes()[:64].find(b"webm") > 0
    frames = list(Video(tmp_path / "a.webm"))
    assert len(frames) == 7
    assert frames[0].pixels.shape == (46, 64, 3)
    np.testing.assert_allclose(frames[-1].pixels.mean((0, 1)), (200, 60, 0), atol=8)
    assert capfd.readouterr() == ("", "")


def test_a_video_of_a_camera_takes_the_time_of_its_frames(tmp_path):
    with VideoFile(tmp_path / "a.webm", 10, live=True) as file:
        # The second comes at once, the third after 0.3 s, and then a clock jumps by a year.
        for level, seconds in enumerate([0, 0.01, 0.3, 3e7]):
            file.write(np.full((48, 64, 3), 10 * level, np.uint8), seconds)
    assert levels(tmp_path / "a.webm") == [0, 2, 2, 2, *[3] * 100]


def test_an_exception_leaves_no_file(tmp_path):
    with pytest.raises(ZeroDivisionError), VideoFile(tmp_path / "a.webm", 10) as file:
        file.write(np.zeros((48, 64, 3), np.uint8), 0)
        raise ZeroDivisionError
    assert not list(tmp_path.iterdir())


def test_frames_that_the_encoder_refuses_leave_no_file(tmp_path):
    with refused("a.webm"), VideoFile(tmp_path / "a.webm", 10) as file:
        file.write(np.zeros((2, 2**14, 3), np.uint8), 0)  # a side of VP8 has 14 bits
    assert not list(tmp_path.iterdir())


def test_a_video_that_is_not_whole_on_the_disk_is_an_error(tmp_path, monkeypatch):
    monkeypatch.setattr(
        VideoFile, "_open", lambda self, width, height: cv2.VideoWriter()
    )  # its `write` does nothing, as on a full disk
    with refused("a.webm"), VideoFile(tmp_path / "a.webm", 10) as file:
        file.write(np.zeros((48, 64, 3), np.uint8), 0)


# ---- Tiles of a large image: their grid, their batches, and one box for each object --------------


def tiled(image, backend=None, min_score=0.0, **tiling):
    predictor = Predictor(backend or Blobs(), batch_size=4, tiling=Tiling(tile=100, **tiling))
    return predictor.predict(image, min_score=min_score)


@pytest.mark.parametrize("side", [1, 99, 100, 101, 180, 181, 555, 1000])
@pytest.mark.parametrize("overlap", [0, 0.2, 0.25, 0.9])
def test_tiles_cover_the_image_and_share_at_least_the_overlap(side, overlap):
    windows = tile_windows(side, 100, 100, overlap)
    spans = [(top, bottom) for top, _, bottom, _ in windows]
    assert spans[0][0] == 0
    assert spans[-1][1] == side
    assert {bottom - top for top, bottom in spans} == {min(side, 100)}
    shared = [before[1] - after[0] for before, after in pairwise(spans)]
    assert all(100 * overlap <= pixels_shared < 100 for pixels_shared in shared)


def test_the_whole_image_is_the_last_window_unless_it_is_the_only_one():
    assert Tiling(tile=100).windows(300, 400)[-1] == (0, 0, 300, 400)
    assert Tiling(tile=100).windows(80, 100) == [(0, 0, 80, 100)]
    assert len(Tiling(tile=100, overlap=0, full_image=False).windows(300, 400)) == 12


@pytest.mark.parametrize("merge", ["nms", "wbf"])
@pytest.mark.parametrize("full_image", [True, False])
@pytest.mark.parametrize(
    "boxes",
    [
        [(10, 10, 30, 30)],
        [(70, 70, 110, 110)],  # over the seams of four tiles
        [(70, 10, 95, 390)],  # over five tiles in a row, whole in none
        [(5, 5, 295, 395)],  # as large as the image
        [(70, 60, 110, 90), (70, 92, 110, 130)],  # neighbours at a seam
        [(y, x, y + 12, x + 12) for y in range(2, 280, 31) for x in range(3, 380, 29)],
    ],
)
def test_every_object_is_found_once_where_it_is(boxes, full_image, merge):
    detections = tiled(scene(*boxes), full_image=full_image, merge=merge)
    got = sorted(map(tuple, detections.boxes.round().astype(int).tolist()))
    assert got == sorted(boxes)
    assert (np.diff(detections.scores) <= 0).all()


def test_an_object_that_the_whole_image_shows_too_small_is_found_in_a_tile():
    class Coarse(Blobs):
        def _found(self, pixels):
            detections = super()._found(pixels)
            seen = (detections.boxes[:, 2:] - detections.boxes[:, :2]).min(
                axis=1, initial=99
            ) * 8 > len(pixels)
            return RawDetections(
                detections.boxes[seen], detections.scores[seen], detections.class_ids[seen]
            )

    image = scene((100, 100, 120, 120))
    whole = Predictor(Coarse()).predict(image)
    assert (len(whole), len(tiled(image, Coarse()))) == (0, 1)


def test_boxes_of_one_object_in_two_tiles_are_averaged_by_their_scores():
    tiling = Tiling(tile=100, merge="wbf", full_image=False)
    windows = [(0, 0, 100, 100), (0, 50, 100, 150)]
    first = RawDetections(np.array([[10.0, 60, 30, 80]]), np.array([0.6]), np.array([1]))
    # 10 .. 34 and 58 .. 80 in pixels of the image.
    other = RawDetections(np.array([[10.0, 8, 34, 30]]), np.array([0.3]), np.array([1]))
    merged = tiling.merged([first, other], windows)
    np.testing.assert_allclose(merged.boxes, [[10, (2 * 60 + 58) / 3, (2 * 30 + 34) / 3, 80]])
    assert merged.scores.tolist() == [0.6]
    kept = Tiling(tile=100, full_image=False).merged([first, other], windows)
    assert kept.boxes.tolist() == [[10, 60, 30, 80]]


def test_classes_and_objects_of_one_window_are_not_merged():
    windows = [(0, 0, 100, 100), (0, 50, 100, 150)]
    # Two boxes that overlap much in one window are two objects: the model has separated them.
    twins = RawDetections(
        np.array([[10.0, 60, 30, 80], [10, 62, 30, 82]]), np.array([0.6, 0.5]), np.array([1, 1])
    )
    other = RawDetections(np.array([[10.0, 10, 30, 30]]), np.array([0.3]), np.array([2]))
    merged = Tiling(tile=100).merged([twins, other], windows)
    assert merged.class_ids.tolist() == [1, 1, 2]


def test_all_batches_have_one_size_and_images_come_in_order():
    backend = Blobs()
    images = [scene((5, 5, 20, 20 + n), size=(100 + 60 * n, 120)) for n in range(4)]
    detections = Predictor(backend, batch_size=4, tiling=Tiling(tile=100)).predict(images)
    assert {len(batch) for batch in backend.batches} == {4}
    assert [detection.boxes[0, 3] for detection in detections] == [20, 21, 22, 23]


def test_a_window_that_is_not_finite_is_refused():
    class Broken(Blobs):
        def _found(self, pixels):
            return super()._found(pixels)._replace(finite=pixels.max() == 0)

    with refused("image", kind=NotFiniteError):
        tiled(scene((100, 100, 120, 120)), Broken())


@pytest.mark.parametrize(
    "values",
    [
        {"tile": 0},
        {"tile": -640},
        {"overlap": 1.0},
        {"overlap": -0.1},
        {"overlap": float("nan")},
        {"merge": "mean"},
        {"iou_threshold": 1.0},
    ],
)
def test_impossible_values_are_refused(values):
    with pytest.raises(UserError):
        Tiling(**{"tile": 640} | values)


def test_impossible_scores_and_batches_are_refused():
    for score in (1.5, -0.1, float("nan")):
        with refused(Parameter("min_score")):
            Predictor(Blobs()).predict(scene(), min_score=score)
    with refused("batch_size"):
        Predictor(Blobs(), batch_size=0)
