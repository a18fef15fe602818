import pytest

from stillbox.errors import UserError
from stillbox.records.patterns import expand, missing_shards


@pytest.fixture
def folder(tmp_path):
    for shard in (2, 0, 1):
        (tmp_path / f"train.record-0000{shard}-of-00003").touch()
    (tmp_path / "val.record-00000-of-00002").touch()
    (tmp_path / "subfolder").mkdir()
    return tmp_path


def names(paths):
    return [path.name for path in paths]


TRAIN = [f"train.record-0000{shard}-of-00003" for shard in range(3)]


@pytest.mark.parametrize(
    "pattern",
    ["train.record-?????-of-00003", "train.record*", "train.record-0000[0-2]*", "train.record@3"],
)
def test_patterns_give_sorted_files(folder, pattern):
    assert names(expand([f"{folder}/{pattern}"])) == TRAIN


def test_several_paths_keep_their_order_and_name_no_file_twice(folder):
    paths = [f"{folder}/val*", f"{folder}/{TRAIN[1]}", f"{folder}/train*"]
    expected = ["val.record-00000-of-00002", TRAIN[1], TRAIN[0], TRAIN[2]]
    assert names(expand(paths)) == expected


def test_a_file_whose_name_holds_pattern_characters_is_itself(tmp_path):
    (tmp_path / "odd[1].record").touch()
    assert names(expand([f"{tmp_path}/odd[1].record"])) == ["odd[1].record"]


def test_a_folder_whose_name_holds_pattern_characters_is_itself(tmp_path):
    for name in ("run[1]", "run1"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "a.record").touch()
    assert expand([f"{tmp_path}/run[1]/*.record"]) == [tmp_path / "run[1]/a.record"]
    assert expand([f"{tmp_path}/run[12]/*"]) == [tmp_path / "run1/a.record"]


def test_the_home_folder_is_understood(folder, monkeypatch):
    monkeypatch.setenv("HOME", str(folder))
    assert names(expand(["~/val*"])) == ["val.record-00000-of-00002"]


@pytest.mark.parametrize(
    ("pattern", "what", "fix"),
    [
        ("trian.record-?????-of-00003", "matches no file", "did you mean 'train.record-00000-of-"),
        (
            "val.record-00000-of-00003",
            "there is no such file",
            "did you mean 'val.record-00000-of-",
        ),
        ("zzz*", "matches no file", "holds train.record-00000-of-00003, train"),
        ("subfolder/x", "there is no such file", "subfolder holds no file"),
        ("subfloder/deep/x*", "matches no file", "there is no folder"),
        ("subfloder/x*", "matches no file", "did you mean 'subfolder'"),
        ("", "is a folder", "holds train.record-00000-of-00003"),
        (
            "train.record@4",
            "absent: 4 of 4 shards",
            "did you mean 'train.record-00000-of-00003'",
        ),
        ("val.record@2", "absent: 1 of 2 shards", "did you mean 'val.record-00000-of-00002'"),
        ("train.record@0", "0 of 0 shards", "a number of shards above 0"),
    ],
)
def test_a_pattern_without_matches_lists_the_files_nearby(folder, pattern, what, fix):
    with pytest.raises(UserError) as raised:
        expand([f"{folder}/{pattern}"])
    assert raised.value.where == f"{folder}/{pattern}"
    assert what in raised.value.what
    assert fix in raised.value.fix


def test_no_path_and_remote_paths_are_refused():
    with pytest.raises(UserError, match="no record file is named"):
        expand([])
    with pytest.raises(UserError, match=r"gs://bucket/x: .*this machine's disk only"):
        expand(["gs://bucket/x"])


def test_incomplete_sets_are_noticed(folder):
    assert missing_shards(expand([f"{folder}/train*"])) == []
    assert missing_shards(expand([f"{folder}/*"])) == [f"{folder}/val.record: 1 of 2 shards"]


def test_numbers_may_stand_before_the_ending(tmp_path):
    files = [f"train-0000{shard}-of-00002.tfrecord" for shard in range(2)]
    for name in files:
        (tmp_path / name).touch()
    assert names(expand([f"{tmp_path}/train@2.tfrecord"])) == files
    assert names(expand([f"{tmp_path}/train-*"])) == files
    assert missing_shards(expand([f"{tmp_path}/train-*"])) == []
    one = expand([f"{tmp_path}/{files[1]}"])
    assert missing_shards(one) == [f"{tmp_path}/train.tfrecord: 1 of 2 shards"]
    with pytest.raises(UserError, match="absent: 3 of 3 shards"):
        expand([f"{tmp_path}/train@3.tfrecord"])


def test_patterns_pass_over_what_conversions_write_beside_records(tmp_path):
    for name in ("train.record-00000-of-00001", "train.report.json", "train.report.txt"):
        (tmp_path / name).touch()
    for name in ("conversion.json", "conversion.txt", "label_map.pbtxt"):
        (tmp_path / name).touch()
    for pattern in ("train*", "*"):
        found = [file.name for file in expand([str(tmp_path / pattern)])]
        assert found == ["train.record-00000-of-00001"]
    with pytest.raises(UserError, match="matches no file"):
        expand([str(tmp_path / "*.json")])
    assert expand([str(tmp_path / "train.report.json")])  # the file itself is refused with its name
