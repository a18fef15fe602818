"""`stillbox data scenes`: the embedded data set."""

import hashlib

import pytest


def digests(folder):
    return {
        str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }


def test_the_scenes_are_drawn_and_counted(stillbox, here):
    code, out, _ = stillbox("data", "scenes", "--output", "s", "--train", 3, "--val", 2)
    assert code == 0
    assert out.startswith("train: 3 scenes, ")
    assert "val: 2 scenes, " in out
    assert "records, images and annotations are in s" in out
    assert stillbox("data", "check", "s/train.record-*", "--label-map", "s/label_map.pbtxt")[0] == 0


def test_the_same_seed_draws_the_same_bytes_and_another_one_others(stillbox, here):
    for name, seed in (("a", 4), ("b", 4), ("c", 5)):
        stillbox("data", "scenes", "--output", name, "--train", 2, "--val", 1, "--seed", seed)
    assert digests(here / "a") == digests(here / "b")
    record = "train.record-00000-of-00001"
    assert digests(here / "a")[record] != digests(here / "c")[record]


def test_scenes_that_are_there_are_replaced_only_on_demand(stillbox, refused, here):
    words = ["data", "scenes", "--output", "s", "--train", 1, "--val", 1]
    stillbox(*words)
    before = digests(here / "s")
    assert "--overwrite" in refused(*words, "--seed", 9)[-200:]
    assert digests(here / "s") == before
    assert stillbox(*words, "--seed", 9, "--overwrite").code == 0
    assert digests(here / "s") != before


@pytest.mark.parametrize("number", ["-1", "many"])
def test_a_number_of_scenes_is_a_number(refused, here, number):
    assert refused("data", "scenes", "--output", "s", "--train", number)
