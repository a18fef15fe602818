import pytest

from stillbox.errors import UserError
from stillbox.records.record_file import RecordFile, is_gzip
from stillbox.records.tfrecord import (
    RecordError,
    crc32c,
    masked_crc32c,
    shard_files,
    sharded_writer,
    tfrecord_writer,
)
from tests.records.builders import read_records, write_records


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        (b"", 0x00000000),
        (b"123456789", 0xE3069283),  # the check value of the CRC catalogue
        (bytes(32), 0x8A9136AA),  # RFC 3720, B.4
        (b"\xff" * 32, 0x62A8AB43),  # RFC 3720, B.4
        (bytes(range(32)), 0x46DD794E),  # RFC 3720, B.4
    ],
)
def test_published_vectors(data, expected):
    assert crc32c(data) == expected


def test_mask_rotates_right_by_15_and_adds():
    # crc 0xe3069283 = 1110 0011 0000 0110 1001 0010 1000 0011
    # >> 15: 0x1c60d, << 17 (low 32 bits): 0x25060000, or: 0x2507c60d
    # + 0xa282ead8 = 0xc78ab0e5
    assert masked_crc32c(b"123456789") == 0xC78AB0E5


def test_a_record_whose_length_looks_like_gzip_is_not_taken_for_it(tmp_path):
    # 559,903 = 0x088b1f: little-endian the bytes 1f 8b 08, the start of every gzip file.
    path = write_records(tmp_path / "a.record", [bytes(559_903)])
    assert path.read_bytes()[:3] == b"\x1f\x8b\x08"
    assert not is_gzip(path.read_bytes()[:12])
    assert RecordFile(path).read(0) == bytes(559_903)


# Record 1 starts at byte 16 + 5 = 21 and is 16 + 7 long: length 21..28, its checksum 29..32,
# payload 33..39, its checksum 40..43.
@pytest.mark.parametrize(
    ("byte", "words"),
    [
        (21, "checksum of the record's length is wrong"),
        (28, "checksum of the record's length is wrong"),
        (30, "checksum of the record's length is wrong"),
        (33, "checksum of the record's content is wrong"),
        (39, "checksum of the record's content is wrong"),
        (42, "checksum of the record's content is wrong"),
    ],
)
def test_a_changed_byte_is_found_and_placed(tmp_path, byte, words):
    path = write_records(tmp_path / "a.record", [b"first", b"seventh", b"last"])
    data = bytearray(path.read_bytes())
    data[byte] ^= 0x10
    path.write_bytes(data)
    assert RecordFile(path, salvage=True).read(0) == b"first"
    with pytest.raises(RecordError, match=words) as raised:
        RecordFile(path).read(1)
    assert raised.value.where == f"{path}: record 1 (byte 21)"
    assert "data.bad_records=drop" in raised.value.fix


@pytest.mark.parametrize("kept", [22, 30, 33, 38, 41, 43])
def test_a_truncated_file_is_found_and_placed(tmp_path, kept):
    path = write_records(tmp_path / "a.record", [b"first", b"seventh"])
    path.write_bytes(path.read_bytes()[:kept])
    with pytest.raises(RecordError, match=r"record 1 \(byte 21\).*truncated"):
        RecordFile(path)


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"version https://git-lfs.github.com/spec/v1\n", "Git LFS pointer"),
        (b'{"images": []}', "convert it with `stillbox data convert coco`"),
        (b"\xff\xd8\xff\xe0" + bytes(20), "a JPEG image"),
        (b"item { id: 1 }", "a label map"),
        (b"just some other bytes", "this is not a TFRecord file"),
    ],
)
def test_another_kind_of_file_is_named(tmp_path, content, words):
    path = tmp_path / "x"
    path.write_bytes(content)
    with pytest.raises(RecordError, match=words):
        RecordFile(path)


def test_the_file_appears_only_when_it_is_complete(tmp_path):
    path = tmp_path / "a.record"
    with tfrecord_writer(path) as write:
        write(b"x")
        assert not path.exists()
    assert path.exists()
    assert [p.name for p in tmp_path.iterdir()] == ["a.record"]


def test_an_exception_leaves_nothing(tmp_path):
    with pytest.raises(RuntimeError), tfrecord_writer(tmp_path / "a.record") as write:
        write(b"x")
        raise RuntimeError
    assert list(tmp_path.iterdir()) == []


def refused(*arguments):
    with sharded_writer(*arguments):
        pytest.fail("a writer was opened")


def test_records_go_to_the_shards_in_turn(tmp_path):
    with sharded_writer(tmp_path, "train", 3) as write:
        for number in range(7):
            write(b"%d" % number)
    assert [file.name for file in shard_files(tmp_path, "train")] == [
        f"train.record-0000{shard}-of-00003" for shard in range(3)
    ]
    assert [read_records(file) for file in shard_files(tmp_path, "train")] == [
        [b"0", b"3", b"6"],
        [b"1", b"4"],
        [b"2", b"5"],
    ]


def test_no_shard_stays_empty(tmp_path):
    with sharded_writer(tmp_path, "train", 10) as write:
        write(b"a")
        write(b"b")
    assert sorted(p.name for p in tmp_path.iterdir()) == [
        "train.record-00000-of-00002",
        "train.record-00001-of-00002",
    ]


def test_an_older_set_is_refused_and_replaced_on_request(tmp_path):
    with sharded_writer(tmp_path, "train", 2) as write:
        write(b"a")
        write(b"b")
    with pytest.raises(UserError, match=r"of this name already.*\n.*--overwrite"):
        refused(tmp_path, "train", 1)
    with sharded_writer(tmp_path, "train", 1, overwrite=True) as write:
        write(b"c")
    assert [p.name for p in tmp_path.iterdir()] == ["train.record-00000-of-00001"]


def test_a_failed_rewrite_keeps_the_older_set(tmp_path):
    with sharded_writer(tmp_path, "train") as write:
        write(b"old")
    with pytest.raises(RuntimeError), sharded_writer(tmp_path, "train", overwrite=True) as write:
        write(b"new")
        raise RuntimeError
    (path,) = tmp_path.iterdir()
    assert read_records(path) == [b"old"]


def test_leftovers_of_a_killed_writer_are_cleared(tmp_path):
    for name in ("train", "val"):
        leftover = tmp_path / f".{name}.stillbox-partial"
        leftover.mkdir()
        (leftover / "00000").write_bytes(b"half")
    with sharded_writer(tmp_path, "train") as write:
        write(b"a")
    assert [p.name for p in tmp_path.iterdir()] == ["train.record-00000-of-00001"]


def test_two_sets_of_one_name_are_not_written_at_once(tmp_path):
    with sharded_writer(tmp_path, "train") as write, sharded_writer(tmp_path, "val") as other:
        write(b"a")
        other(b"b")
        refused = pytest.raises(UserError, match="train: another process is writing it")
        with refused, sharded_writer(tmp_path, "train"):
            pass
        write(b"c")
    assert [len(read_records(path)) for path in sorted(tmp_path.iterdir())] == [2, 1]


def test_zero_shards_are_refused(tmp_path):
    with pytest.raises(UserError, match="0 shards"):
        refused(tmp_path, "train", 0)


def test_file_names_of_tpu_models_and_mlperf(tmp_path):
    with sharded_writer(tmp_path, "train", 2, names="tfrecord") as write:
        for number in range(3):
            write(b"%d" % number)
    assert {p.name: read_records(p) for p in tmp_path.iterdir()} == {
        "train-00000-of-00002.tfrecord": [b"0", b"2"],
        "train-00001-of-00002.tfrecord": [b"1"],
    }
    # Not this set's, though its name begins alike.
    (tmp_path / "train-x-00000-of-00001.tfrecord").touch()
    # The same set under the other rule would be its images a second time.
    with pytest.raises(UserError, match=r"name already: train-00000-of-00002\.tfrecord and 1 more"):
        refused(tmp_path, "train", 2)
    with sharded_writer(tmp_path, "train", overwrite=True) as write:
        write(b"a")
    assert sorted(p.name for p in tmp_path.iterdir()) == [
        "train-x-00000-of-00001.tfrecord",
        "train.record-00000-of-00001",
    ]
