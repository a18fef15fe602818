"""Ray Data on a local Ray of two workers: the table, bad images in it, and its continuation."""

import pickle
import subprocess
import sys

import pytest

from stillbox.predicting.selection import Selection
from stillbox.scaling.image_files import file_system
from stillbox.scaling.ray_data import predict_files
from stillbox.scaling.table import DetectionTable

pytest.importorskip("pyarrow")

from tests.scaling.tables import agrees, middle_score, rows

pytestmark = [
    pytest.mark.proof,
    pytest.mark.slow,
    pytest.mark.xdist_group("ray"),
    # Ray Data 2.60 sets options of its own that it has deprecated.
    pytest.mark.filterwarnings("ignore::DeprecationWarning:ray"),
]


def test_a_later_run_continues_the_table(ray_cluster, predictor, photos, tmp_path):
    output, progress = tmp_path / "table", []
    patterns = [f"{photos}/**"]
    least = middle_score(predictor, photos)
    settings = {"selection": Selection(min_score=least), "workers": 2}
    summary = predict_files(
        predictor, patterns, str(output), **settings, on_image=lambda *both: progress.append(both)
    )
    assert (summary.images, summary.others, summary.done_before) == (12, 1, 0)
    assert (summary.predicted, summary.bad, summary.unread) == (10, 2, 0)
    assert progress[-1] == (12, 12)
    agrees(rows(output), predictor, photos, least)

    parts = sorted(output.glob("part-*.parquet"))
    assert len(parts) == 6  # of two images, a batch
    written = {part: part.stat().st_mtime_ns for part in parts}
    parts[0].unlink()
    summary = predict_files(predictor, patterns, str(output), **settings)
    assert (summary.done_before, summary.predicted + summary.bad) == (10, 2)
    agrees(rows(output), predictor, photos, least)
    assert all(part.stat().st_mtime_ns == written[part] for part in parts[1:])


def test_an_error_of_writing_ends_the_run(ray_cluster, predictor, photos, tmp_path, monkeypatch):
    def absent(place, made_by):
        return DetectionTable(*file_system(place), place, made_by)

    monkeypatch.setattr(DetectionTable, "open", absent)
    monkeypatch.setattr(DetectionTable, "images", lambda self: set())
    with pytest.raises(FileNotFoundError, match=r"absent/\.part-"):
        predict_files(predictor, [f"{photos}/deep"], str(tmp_path / "absent"), workers=1)


KILLED = """
import os, pickle, signal, sys
from stillbox.scaling.ray_data import predict_files

with open(sys.argv[1], "rb") as file:
    predictor = pickle.load(file)

def killed(done, total):
    os.kill(os.getpid(), signal.SIGKILL)

predict_files(predictor, [sys.argv[2]], sys.argv[3], workers=1, on_image=killed)
"""


def test_a_killed_run_is_continued(ray_cluster, predictor, photos, tmp_path, monkeypatch):
    (tmp_path / "predictor").write_bytes(pickle.dumps(predictor))
    # The killed process and this one are two jobs of one cluster.
    monkeypatch.setenv("RAY_ADDRESS", ray_cluster)
    output = tmp_path / "table"
    command = [sys.executable, "-c", KILLED, tmp_path / "predictor", f"{photos}/**", output]
    assert subprocess.run(command, check=False).returncode == -9
    before = rows(output)
    assert before
    summary = predict_files(predictor, [f"{photos}/**"], str(output), workers=1)
    assert summary.done_before == len(before)
    agrees(rows(output), predictor, photos, 0)
