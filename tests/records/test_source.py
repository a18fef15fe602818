import threading
import time
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from stillbox.errors import UserError
from stillbox.records.parallel import ordered_map
from stillbox.records.source import ExampleSource, expand, missing_shards
from stillbox.records.tf_example import serialize_example
from stillbox.records.tfrecord import RecordError
from stillbox.records.wire import parse_features, serialize_features
from tests.helpers import refused
from tests.records.builders import CAT_DOG, make_example, write_records


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


def test_a_file_or_folder_whose_name_holds_pattern_characters_is_itself(tmp_path):
    (tmp_path / "odd[1].record").touch()
    assert names(expand([f"{tmp_path}/odd[1].record"])) == ["odd[1].record"]
    for name in ("run[1]", "run1"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "a.record").touch()
    assert expand([f"{tmp_path}/run[1]/*.record"]) == [tmp_path / "run[1]/a.record"]
    assert expand([f"{tmp_path}/run[12]/*"]) == [tmp_path / "run1/a.record"]


def test_the_home_folder_is_understood(folder, monkeypatch):
    monkeypatch.setenv("HOME", str(folder))
    assert names(expand(["~/val*"])) == ["val.record-00000-of-00002"]


@pytest.mark.parametrize(
    ("pattern", "sentence", "fix"),
    [
        ("trian.record-?????-of-00003", "matches no file", "did you mean 'train.record-00000-of-"),
        ("val.record-00000-of-00003", "there is no such file", "did you mean 'val.record-00000-"),
        ("zzz*", "matches no file", "holds train.record-00000-of-00003, train"),
        ("subfolder/x", "there is no such file", "subfolder holds no file"),
        ("subfloder/deep/x*", "matches no file", "there is no folder"),
        ("subfloder/x*", "matches no file", "did you mean 'subfolder'"),
        ("", "is a folder", "holds train.record-00000-of-00003"),
        ("train.record@4", "absent: 4 of 4 shards", "did you mean 'train.record-00000-of-00003'"),
        ("val.record@2", "absent: 1 of 2 shards", "did you mean 'val.record-00000-of-00002'"),
        ("train.record@0", "0 of 0 shards", "a number of shards above 0"),
        ("train.record@9999999999", "there is no such file", "train.record-00000-of-00003"),
    ],
)
def test_a_pattern_without_matches_lists_the_files_nearby(folder, pattern, sentence, fix):
    with pytest.raises(UserError) as raised:
        expand([f"{folder}/{pattern}"])
    assert raised.value.where == f"{folder}/{pattern}"
    assert sentence in raised.value.what
    assert fix in raised.value.fix


def test_no_path_and_remote_paths_are_refused():
    with pytest.raises(UserError, match="no record file is named"):
        expand([])
    with refused("nowhere://bucket/x"):
        expand(["nowhere://bucket/x/y"])


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
    alone = expand([f"{tmp_path}/{files[1]}"])
    assert missing_shards(alone) == [f"{tmp_path}/train.tfrecord: 1 of 2 shards"]
    with refused("train@3.tfrecord"):
        expand([f"{tmp_path}/train@3.tfrecord"])


def test_patterns_pass_over_what_conversions_write_beside_records(tmp_path):
    for name in ("train.record-00000-of-00001", "label_map.pbtxt"):
        (tmp_path / name).touch()
    for ending in ("json", "txt", "html"):
        (tmp_path / f"train.report.{ending}").touch()
        (tmp_path / f"conversion.{ending}").touch()
    for pattern in ("train*", "*"):
        names = [file.name for file in expand([str(tmp_path / pattern)])]
        assert names == ["train.record-00000-of-00001"]
    with refused("*.json"):
        expand([str(tmp_path / "*.json")])
    assert expand([str(tmp_path / "train.report.json")])  # the file itself is refused with its name


@pytest.mark.parametrize("workers", [0, 1, 5])
def test_results_come_in_order(workers):
    def slow_first(number):
        time.sleep(0.01 if number == 0 else 0)
        return number * 2

    assert list(ordered_map(slow_first, range(40), workers)) == [n * 2 for n in range(40)]


def test_only_a_few_results_wait():
    taken = []
    results = ordered_map(str, (taken.append(n) or n for n in range(1000)), 2)
    assert next(results) == "0"
    assert len(taken) <= 4 * 2 + 2
    results.close()
    assert threading.active_count() < 10


def test_the_first_error_in_order_is_raised():
    def fail(number):
        if number in (3, 5):
            raise ValueError(number)
        return number

    results = ordered_map(fail, range(10), 4)
    assert [next(results) for _ in range(3)] == [0, 1, 2]
    with pytest.raises(ValueError, match="3"):
        next(results)


FLAT = [[0.1, 0.2, 0.5, 0.6], [0.3, 0.3, 0.3, 0.9]]  # box 1 has no height


def numbered(numbers):
    return [make_example(image_id=str(number)) for number in numbers]


def image_ids(source):
    return [source.example(index).image_id for index in range(len(source))]


def test_shards_follow_each_other_in_sorted_order(tmp_path):
    for shard, numbers in ((2, [5]), (0, [0, 1, 2]), (1, [3, 4])):
        write_records(tmp_path / f"a-0000{shard}-of-00003", numbered(numbers))
    source = ExampleSource([f"{tmp_path}/a-*"], CAT_DOG)
    assert len(source) == 6
    assert image_ids(source) == ["0", "1", "2", "3", "4", "5"]
    assert source.location(4).startswith(f"{tmp_path}/a-00001-of-00003: record 1 (byte ")
    assert not list(source.problems)


def test_every_nth_record_of_gzip_shards_and_plain_ones(tmp_path):
    write_records(tmp_path / "a", numbered([0, 1]), gz=True)
    write_records(tmp_path / "b", numbered([2, 3, 4, 5, 6]))
    paths = [f"{tmp_path}/a", f"{tmp_path}/b"]
    assert image_ids(ExampleSource(paths)) == ["0", "1", "2", "3", "4", "5", "6"]
    source = ExampleSource(paths, sample_1_of_n=3)
    assert image_ids(source) == ["0", "3", "6"]
    assert "b: record 4" in source.location(2)
    with pytest.raises(IndexError):
        source.example(3)


@pytest.mark.parametrize("policy", ["fail", "drop"])
def test_files_without_any_record_are_refused(tmp_path, policy):
    (tmp_path / "a").touch()
    with pytest.raises(UserError, match=r"there is no record in .*/a\n  fix: write the records"):
        ExampleSource([f"{tmp_path}/a"], bad_records=policy)


def test_an_incomplete_set_and_one_empty_file_among_others_are_noted(tmp_path):
    write_records(tmp_path / "a-00001-of-00002", numbered([1]))
    source = ExampleSource([f"{tmp_path}/a-*"])
    assert {p.reason: p.count for p in source.problems} == {"incomplete set of shards": 1}
    (tmp_path / "a-00000-of-00002").touch()
    source = ExampleSource([f"{tmp_path}/a-*"])
    assert image_ids(source) == ["1"]
    assert {p.reason: p.count for p in source.problems} == {"file without a record": 1}


def damaged(path):
    """Changes a byte in the content of the second of three records."""
    write_records(path, numbered([0, 1, 2]))
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)
    return str(path)


def test_a_damaged_record_stops_or_is_left_out(tmp_path):
    path = damaged(tmp_path / "a")
    with pytest.raises(UserError) as raised:
        ExampleSource([path]).example(1)
    assert raised.value.where.startswith(f"{path}: record 1 (byte ")
    assert "unreadable record: the checksum of the record's content is wrong" in raised.value.what
    assert "data.bad_records=drop" in raised.value.fix
    source = ExampleSource([path], bad_records="drop")
    assert [source.example(i) is None for i in (0, 1, 2, 1)] == [False, True, False, True]
    (problem,) = source.problems
    assert (problem.reason, problem.count, problem.action) == (
        "unreadable record",
        1,  # however often it is read
        "record left out",
    )
    assert "record 1 (byte" in problem.examples[0]


def test_a_truncated_file_stops_or_gives_its_whole_records(tmp_path):
    path = write_records(tmp_path / "a", numbered([0, 1, 2]))
    path.write_bytes(path.read_bytes()[:-5])
    with refused("a: record 2 (byte 2610)", kind=RecordError):
        ExampleSource([str(path)])
    source = ExampleSource([str(path)], bad_records="drop")
    assert image_ids(source) == ["0", "1"]
    assert {p.reason: p.count for p in source.problems} == {"damaged file": 1}


def test_a_file_of_another_type_is_refused_under_any_policy(tmp_path):
    (tmp_path / "a").write_bytes(b"no records at all")
    for policy in ("fail", "drop"):
        with refused("a: record 0 (byte 0)", "TFRecord"):
            ExampleSource([f"{tmp_path}/a"], bad_records=policy)


def test_content_that_is_no_example_stops_or_is_left_out(tmp_path):
    path = write_records(tmp_path / "a", [b"not an example", make_example()])
    with refused("a: record 0 (byte 0)", "tf.Example"):
        ExampleSource([str(path)]).example(0)
    source = ExampleSource([str(path)], bad_records="drop")
    assert source.example(0) is None
    assert {p.reason: p.count for p in source.problems} == {"not a tf.Example": 1}


def test_bad_boxes_are_dropped_and_counted_once_or_stop(tmp_path):
    path = write_records(tmp_path / "a", [make_example(FLAT, [1, 2])])
    source = ExampleSource([str(path)], CAT_DOG)
    for _ in range(3):
        assert source.example(0).class_ids.tolist() == [1]
    (problem,) = source.problems
    assert (problem.reason, problem.count, problem.action) == ("box without area", 1, "box dropped")
    assert problem.examples == [
        f"{path}: record 0 (byte 0), box 1: ymin 0.3, xmin 0.3, ymax 0.3, xmax 0.9"
    ]
    with pytest.raises(UserError) as raised:
        ExampleSource([str(path)], CAT_DOG, bad_boxes="fail").example(0)
    assert raised.value.where == f"{path}: record 0 (byte 0)"
    assert raised.value.what.startswith("box 1: box without area: ymin 0.3")
    assert "data.bad_boxes=fix" in raised.value.fix


def test_an_unknown_class_is_counted(tmp_path):
    stored = parse_features(serialize_example(make_example(), CAT_DOG))
    stored["image/object/class/text"] = [b"cow"]
    path = write_records(tmp_path / "a", [serialize_features(stored)])
    source = ExampleSource([str(path)], CAT_DOG)
    assert len(source.example(0).boxes) == 0
    assert {p.reason: p.count for p in source.problems} == {"unknown class": 1}


def test_optional_columns_and_disagreeing_classes_are_noted(tmp_path):
    stored = parse_features(serialize_example(make_example(), CAT_DOG))
    stored["image/object/is_crowd"] = np.array([1, 1])
    stored["image/object/class/label"] = np.array([2])
    path = write_records(tmp_path / "a", [serialize_features(stored)])
    source = ExampleSource([str(path)], CAT_DOG)
    assert source.example(0).class_ids.tolist() == [1]
    counts = {"optional column of wrong length": 1, "class text and label differ": 1}
    assert {p.reason: p.count for p in source.problems} == counts
    with refused("a: record 0 (byte 0)", "image/object/is_crowd"):
        ExampleSource([str(path)], CAT_DOG, bad_boxes="fail").example(0)


def test_a_later_reader_may_reject_a_record(tmp_path):
    path = write_records(tmp_path / "a", [make_example(FLAT, [1, 2])])
    with refused("a: record 0 (byte 0)"):
        ExampleSource([str(path)]).reject(0, "unreadable image", "why")
    source = ExampleSource([str(path)], bad_records="drop")
    source.example(0)  # its box problem does not hide the image's
    for _ in range(2):
        source.reject(0, "unreadable image", "why")
    counts = {p.reason: p.count for p in source.problems}
    assert counts == {"box without area": 1, "unreadable image": 1}


def test_threads_see_the_same_examples_and_count_problems_once(tmp_path):
    examples = [make_example(FLAT, [1, 2], image_id=str(number)) for number in range(50)]
    source = ExampleSource([str(write_records(tmp_path / "a", examples))], CAT_DOG)
    barrier = threading.Barrier(8)

    def read(start):
        barrier.wait()
        return [source.example((start + i) % 50).image_id for i in range(50)]

    with ThreadPoolExecutor(8) as pool:
        results = list(pool.map(read, [0] * 8))
    assert all(result == [str(number) for number in range(50)] for result in results)
    assert {p.reason: p.count for p in source.problems} == {"box without area": 50}
