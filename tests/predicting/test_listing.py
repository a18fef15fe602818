"""Which files paths, folders and patterns mean, and in which order."""

import os

import pytest

from stillbox.errors import UserError
from stillbox.predicting.images import check_output, list_inputs
from tests.helpers import refusal


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """The working directory, with images, a video and other files in folders."""
    monkeypatch.chdir(tmp_path)
    for name in (
        *("photos/10.jpg", "photos/2.JPG", "photos/1.png", "photos/²x.jpg", "photos/.hidden.jpg"),
        *("photos/notes.txt", "photos/clip.mp4", "photos/deep/3.jpg", "photos/.git/4.jpg"),
        *("only/deep/5.jpg", "text/a.txt", "photos/[1].jpg"),
    ):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()
    os.mkfifo(tmp_path / "photos/pipe.jpg")
    return tmp_path


def names(paths):
    return [str(path) for path in paths]


def test_a_folder_in_natural_order(folder):
    inputs = list_inputs(["photos"])
    expected = ["photos/1.png", "photos/2.JPG", "photos/10.jpg", "photos/[1].jpg", "photos/²x.jpg"]
    assert names(inputs.images) == expected
    assert names(inputs.videos) == ["photos/clip.mp4"]
    assert inputs.passed_over == 1  # notes.txt; what is hidden, and a pipe, does not count


def test_subfolders_and_patterns(folder):
    assert "photos/deep/3.jpg" in names(list_inputs(["photos"], recursive=True).images)
    assert names(list_inputs(["photos/[0-9]*.jpg"]).images) == ["photos/10.jpg"]
    assert names(list_inputs(["**/*.jpg"]).images)[-2:] == ["photos/deep/3.jpg", "photos/²x.jpg"]
    everything = list_inputs(["photos/*"])
    assert (len(everything.images), everything.passed_over) == (5, 1)
    assert names(list_inputs(["photos/[1].jpg"]).images) == ["photos/[1].jpg"]


def test_each_file_comes_once_and_a_named_one_needs_no_suffix(folder):
    inputs = list_inputs(["text/a.txt", "photos/1.png", "photos/*.png", "./photos/1.png"])
    assert names(inputs.images) == ["text/a.txt", "photos/1.png"]


@pytest.mark.parametrize(
    ("word", "expected"),
    [
        ("only", "add --recursive: its subfolders hold some"),
        ("text", "the folder holds no image or video"),
        ("photos/*.webp", "matches no image or video"),
        ("text/*", "matches no image or video"),
        ("phot", "there is no such image file"),
    ],
)
def test_words_that_name_nothing_are_refused(folder, word, expected):
    error = refusal(list_inputs, [word, "photos"])
    assert expected in str(error)
    assert error.where == word


@pytest.mark.parametrize(
    ("words", "output", "recursive", "allowed"),
    [
        (["photos"], "photos", False, False),
        (["photos"], "photos/out", False, True),
        (["photos"], "photos/out", True, False),
        (["photos"], "only/../photos/deep", True, False),
        (["photos/*.jpg"], "photos", False, False),
        (["."], "predictions", False, True),
        (["photos"], "photos2", True, True),
    ],
)
def test_results_do_not_come_among_the_images(folder, words, output, recursive, allowed):
    (folder / "0.jpg").touch()
    inputs = list_inputs(words, recursive=recursive)
    try:
        check_output(folder / output, words, inputs.images, recursive=recursive)
    except UserError as error:
        assert not allowed, error
    else:
        assert allowed
