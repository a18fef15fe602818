"""Frames of a video and of a camera, and videos that are written."""

import cv2
import numpy as np
import pytest

from stillbox.errors import UserError
from stillbox.predicting import video as videos
from stillbox.predicting.video import Video, VideoFile


def write_video(path, frames=25, rate=10, size=(48, 64)):
    """Writes a Motion JPEG whose frames have the grey levels 0, 10, 20, ..."""
    writer = cv2.VideoWriter(str(path), cv2.VideoWriter.fourcc(*"MJPG"), rate, size[::-1])
    for number in range(frames):
        writer.write(np.full((*size, 3), 10 * number, np.uint8))
    writer.release()
    return path


def levels(path):
    """The grey level of every frame, in tens."""
    return [round(float(frame.pixels.mean()) / 10) for frame in Video(path)]


class Camera:
    """Takes five frames and then fails, as a camera that is pulled out."""

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
    with pytest.raises(UserError, match="cannot be decoded") as caught:
        list(Video(tmp_path / "a.avi"))
    assert caught.value.where == str(tmp_path / "a.avi")


@pytest.mark.parametrize("first", ["#EXTM3U\n", "\ufeffffconcat version 1.0\nfile ", "v=0\nm=\n"])
def test_a_file_cannot_have_other_files_opened(tmp_path, first):
    write_video(tmp_path / "secret.avi")
    (tmp_path / "a.mp4").write_text(first + "secret.avi\n")
    with pytest.raises(UserError, match=r"a\.mp4: this is a playlist"):
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
    with pytest.raises(UserError, match=r"a\.mp4: cannot read it: No such file") as caught:
        Video(tmp_path / "a.mp4")
    assert caught.value.where == str(tmp_path / "a.mp4")


def test_a_camera_that_is_not_there_is_refused():
    with pytest.raises(UserError, match="webcam:97: the camera cannot be opened"):
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


def test_a_video_that_is_not_whole_on_the_disk_is_an_error(tmp_path, monkeypatch):
    monkeypatch.setattr(
        VideoFile, "_open", lambda self, width, height: cv2.VideoWriter()
    )  # its `write` does nothing, as on a full disk
    with (
        pytest.raises(UserError, match=r"a\.webm: the video cannot be written"),
        VideoFile(tmp_path / "a.webm", 10) as file,
    ):
        file.write(np.zeros((48, 64, 3), np.uint8), 0)
