import gc
import gzip
import os
import resource
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

from stillbox.errors import UserError
from stillbox.records import byte_source
from stillbox.records import record_file as index_module
from stillbox.records.byte_source import open_source
from stillbox.records.file_list import LIST
from stillbox.records.files import try_lock
from stillbox.records.record_file import RecordFile, is_gzip
from stillbox.records.tfrecord import (
    RecordError,
    crc32c,
    masked_crc32c,
    shard_files,
    sharded_writer,
    tfrecord_writer,
)
from tests.helpers import refused
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
    ("byte", "part"), [(n, "length") for n in (21, 28, 30)] + [(n, "content") for n in (33, 39, 42)]
)
def test_a_changed_byte_is_found_and_placed(tmp_path, byte, part):
    path = write_records(tmp_path / "a.record", [b"first", b"seventh", b"last"])
    data = bytearray(path.read_bytes())
    data[byte] ^= 0x10
    path.write_bytes(data)
    assert RecordFile(path, salvage=True).read(0) == b"first"
    with refused("a.record: record 1 (byte 21)", part, kind=RecordError) as raised:
        RecordFile(path).read(1)
    assert raised.value.where == f"{path}: record 1 (byte 21)"
    assert "data.bad_records=drop" in raised.value.fix


@pytest.mark.parametrize("kept", [22, 30, 33, 38, 41, 43])
def test_a_truncated_file_is_found_and_placed(tmp_path, kept):
    path = write_records(tmp_path / "a.record", [b"first", b"seventh"])
    path.write_bytes(path.read_bytes()[:kept])
    with refused("a.record: record 1 (byte 21)", kind=RecordError):
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
    with pytest.raises(RuntimeError), tfrecord_writer(path) as write:
        write(b"x")
        raise RuntimeError
    assert list(tmp_path.iterdir()) == []
    with tfrecord_writer(path) as write:
        write(b"x")
        assert not path.exists()
    assert [p.name for p in tmp_path.iterdir()] == ["a.record"]


def shown(folder):
    """Returns the names in a folder but for the list of stillbox's files, of which one is there."""
    names = sorted(path.name for path in folder.iterdir())
    assert LIST in names
    return [name for name in names if name != LIST]


def refused_write(*arguments):
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


def test_no_shard_stays_empty_and_an_older_set_is_replaced_only_on_request(tmp_path):
    with sharded_writer(tmp_path, "train", 10) as write:
        write(b"a")
        write(b"b")
    names = [f"train.record-0000{n}-of-00002" for n in range(2)]
    assert shown(tmp_path) == names
    with pytest.raises(UserError, match=r"of this name already.*\n.*overwrite"):
        refused_write(tmp_path, "train", 1)
    with sharded_writer(tmp_path, "train", 1, overwrite=True) as write:
        write(b"c")
    assert shown(tmp_path) == ["train.record-00000-of-00001"]


def test_a_set_of_somebody_else_is_not_replaced(tmp_path):
    theirs = tmp_path / "train.record-00000-of-00001"
    theirs.write_bytes(b"theirs")
    with pytest.raises(UserError) as caught, sharded_writer(tmp_path, "train", overwrite=True):
        pytest.fail("a writer was opened")
    assert caught.value.where == str(theirs)
    assert [path.name for path in tmp_path.iterdir()] == [theirs.name]
    theirs.unlink()
    # The other program may have been faster than this one.
    with pytest.raises(UserError) as caught, sharded_writer(tmp_path, "train") as write:
        write(b"a")
        theirs.write_bytes(b"theirs")
    assert caught.value.where == str(theirs)
    assert theirs.read_bytes() == b"theirs"


def test_a_failed_rewrite_keeps_the_older_set(tmp_path):
    with sharded_writer(tmp_path, "train") as write:
        write(b"old")
    with pytest.raises(RuntimeError), sharded_writer(tmp_path, "train", overwrite=True) as write:
        write(b"new")
        raise RuntimeError
    (name,) = shown(tmp_path)
    assert read_records(tmp_path / name) == [b"old"]


def test_leftovers_of_a_killed_writer_are_cleared(tmp_path):
    for name in ("train", "val"):
        leftover = tmp_path / f".{name}.stillbox-partial"
        leftover.mkdir()
        (leftover / "00000").write_bytes(b"half")
    with sharded_writer(tmp_path, "train") as write:
        write(b"a")
    assert shown(tmp_path) == ["train.record-00000-of-00001"]


def test_more_shards_than_files_may_be_open_are_refused_and_leave_nothing(tmp_path):
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    # Descriptors that are inherited may have any number: 40 below the limit are free.
    taken = {int(file.name) for file in Path("/dev/fd").iterdir()}
    free = [number for number in range(len(taken) + 40) if number not in taken]
    resource.setrlimit(resource.RLIMIT_NOFILE, (free[39] + 1, limits[1]))
    try:
        sentence = "80 shards are more files than this process may open"
        with pytest.raises(UserError, match=sentence), sharded_writer(tmp_path, "train", 80):
            pass
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)
    assert not list(tmp_path.iterdir())


def test_two_sets_of_one_name_and_zero_shards_are_refused(tmp_path):
    with sharded_writer(tmp_path, "train") as write, sharded_writer(tmp_path, "val") as other:
        write(b"a")
        other(b"b")
        with pytest.raises(UserError, match="train: another process is writing it"):
            refused_write(tmp_path, "train")
        write(b"c")
    assert [len(read_records(tmp_path / name)) for name in shown(tmp_path)] == [2, 1]
    with pytest.raises(UserError, match="0 shards"):
        refused_write(tmp_path, "train", 0)


def test_file_names_of_tpu_models_and_mlperf(tmp_path):
    with sharded_writer(tmp_path, "train", 2, names="tfrecord") as write:
        for number in range(3):
            write(b"%d" % number)
    assert {name: read_records(tmp_path / name) for name in shown(tmp_path)} == {
        "train-00000-of-00002.tfrecord": [b"0", b"2"],
        "train-00001-of-00002.tfrecord": [b"1"],
    }
    # Not this set's, though its name begins alike.
    (tmp_path / "train-x-00000-of-00001.tfrecord").touch()
    # The same set under the other rule would be its images a second time.
    with refused(tmp_path, "train-00000-of-00002.tfrecord"):
        refused_write(tmp_path, "train", 2)
    with sharded_writer(tmp_path, "train", overwrite=True) as write:
        write(b"a")
    assert shown(tmp_path) == [
        "train-x-00000-of-00001.tfrecord",
        "train.record-00000-of-00001",
    ]


PAYLOADS = [b"first", b"", b"x" * 300, b"last"]


@pytest.fixture(scope="module", autouse=True)
def permits():
    """A permit for every file: those that other tests left in reference cycles are given back."""
    gc.collect()


@pytest.mark.parametrize("gz", [False, True])
def test_records_come_in_any_order(tmp_path, gz):
    file = RecordFile(write_records(tmp_path / "a.record", PAYLOADS, gz=gz))
    assert len(file) == 4
    assert [file.read(n) for n in (3, 0, 2, 1)] == [b"last", b"first", b"x" * 300, b""]


def test_the_location_names_file_record_and_byte(tmp_path):
    path = write_records(tmp_path / "a.record", PAYLOADS)
    # 16 bytes of frame each: 0, 16 + 5 = 21, 21 + 16 = 37
    assert RecordFile(path).location(2) == f"{path}: record 2 (byte 37)"


def scans(monkeypatch):
    """Counts how often a file is walked over."""
    calls = []
    original = index_module._scan
    monkeypatch.setattr(index_module, "_scan", lambda *a: (calls.append(a), original(*a))[1])
    return calls


def kept_index(cache_folder):
    (index,) = (cache_folder / "indexes").iterdir()
    return index


def test_the_index_is_built_once_and_kept_in_the_cache(tmp_path, cache_folder, monkeypatch):
    path = write_records(tmp_path / "a.record", PAYLOADS)
    calls = scans(monkeypatch)
    for _ in range(3):
        assert RecordFile(path).read(3) == b"last"
    assert len(calls) == 1
    assert kept_index(cache_folder).name.endswith(".a.record.index")
    assert [path.name for path in tmp_path.iterdir() if path.is_file()] == ["a.record"]


def test_the_index_is_rebuilt_when_the_file_changes(tmp_path, monkeypatch):
    path = write_records(tmp_path / "a.record", PAYLOADS)
    RecordFile(path)
    calls = scans(monkeypatch)
    write_records(path, [b"other"])  # another size
    assert RecordFile(path).read(0) == b"other"
    os.utime(path, (1, 1))  # the same size, another time
    assert RecordFile(path).read(0) == b"other"
    assert len(calls) == 2


def test_a_broken_index_is_rebuilt(tmp_path, cache_folder):
    path = write_records(tmp_path / "a.record", PAYLOADS)
    RecordFile(path)
    kept = kept_index(cache_folder)
    changed = bytearray(kept.read_bytes())
    changed[-8] ^= 1
    for content in (b"", b"garbage", b"[]\n", b'{"format": 1}\n123', bytes(changed)):
        kept.write_bytes(content)
        assert RecordFile(path).read(3) == b"last"
        assert kept_index(cache_folder).read_bytes() != content


def test_files_of_one_name_have_indexes_of_their_own(tmp_path, cache_folder):
    for folder, payload in (("one", b"1"), ("other", b"2")):
        (tmp_path / folder).mkdir()
        assert (
            RecordFile(write_records(tmp_path / folder / "a.record", [payload])).read(0) == payload
        )
    assert len(list((cache_folder / "indexes").iterdir())) == 2


def test_files_are_read_if_no_index_can_be_written(tmp_path, monkeypatch):
    path = write_records(tmp_path / "a.record", PAYLOADS)

    def refuse(*_):
        raise UserError("cannot be written")

    monkeypatch.setattr(index_module, "write_whole", refuse)
    assert RecordFile(path).read(3) == b"last"


def test_gzip_is_decompressed_once_and_again_after_a_change(tmp_path, cache_folder):
    path = write_records(tmp_path / "a.record", PAYLOADS, gz=True)
    RecordFile(path)
    RecordFile(path)
    copies = cache_folder / "decompressed"
    (first,) = copies.glob("*.record")
    write_records(path, [b"other"], gz=True)
    assert RecordFile(path).read(0) == b"other"
    (second,) = copies.glob("*.record")  # the outdated copy is gone
    assert first != second


def test_a_copy_that_another_process_has_made_meanwhile_stays(tmp_path, monkeypatch):
    path = write_records(tmp_path / "a.record", PAYLOADS, gz=True)
    original, others = index_module._decompress, []

    def meanwhile(source, target):
        monkeypatch.setattr(index_module, "_decompress", original)
        others.append(RecordFile(path))
        return original(source, target)

    monkeypatch.setattr(index_module, "_decompress", meanwhile)
    first = RecordFile(path)
    assert [file.read(3) for file in (first, *others)] == [b"last", b"last"]


def test_the_cache_needs_no_hard_links(tmp_path, monkeypatch, cache_folder):
    def refuse(*_):
        raise PermissionError

    monkeypatch.setattr(os, "link", refuse)
    assert RecordFile(write_records(tmp_path / "a.record", PAYLOADS, gz=True)).read(3) == b"last"
    assert len(list((cache_folder / "decompressed").iterdir())) == 1


def test_a_cache_that_cannot_be_written_is_explained(tmp_path, monkeypatch):
    path = write_records(tmp_path / "a.record", PAYLOADS, gz=True)
    (tmp_path / "file").write_bytes(b"")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    with refused("a.record", "XDG_CACHE_HOME", kind=Exception):
        RecordFile(path)


@pytest.mark.parametrize("byte", [0, 8, 12, 16])
def test_a_byte_changed_after_indexing_is_found(tmp_path, byte):
    path = write_records(tmp_path / "a.record", PAYLOADS)
    file = RecordFile(path)
    file.read(3)  # opens it
    data = bytearray(path.read_bytes())
    data[byte] ^= 1
    path.write_bytes(data)
    with pytest.raises(RecordError, match=r"record 0 \(byte 0\).*(checksum|changed)"):
        file.read(0)
    assert file.read(3) == b"last"


@pytest.mark.parametrize(("kept", "record", "byte"), [(25, 1, 21), (40, 2, 37), (100, 2, 37)])
def test_a_truncated_file_is_refused_or_salvaged(tmp_path, kept, record, byte):
    path = write_records(tmp_path / "a.record", PAYLOADS)
    path.write_bytes(path.read_bytes()[:kept])
    with refused("", record, byte, kind=RecordError):
        RecordFile(path)
    file = RecordFile(path, salvage=True)
    assert len(file) == record
    assert file.damage is not None
    assert file.read(0) == b"first"


def test_damage_is_found_again_on_the_second_opening(tmp_path):
    path = write_records(tmp_path / "a.record", PAYLOADS)
    path.write_bytes(path.read_bytes()[:40])
    for _ in range(2):
        with pytest.raises(RecordError):
            RecordFile(path)


def test_every_cut_of_a_gzip_file_is_found_twice(tmp_path):
    path = write_records(tmp_path / "a.record", PAYLOADS, gz=True)
    whole = path.read_bytes()
    for kept in range(12, len(whole)):
        path.write_bytes(whole[:kept])
        for _ in range(2):
            with pytest.raises(RecordError):
                RecordFile(path)
        assert len(RecordFile(path, salvage=True)) <= 4


def test_a_plain_file_may_have_the_suffix_of_broken_copies(tmp_path):
    path = write_records(tmp_path / "a.broken", PAYLOADS)
    assert len(RecordFile(path)) == len(PAYLOADS)


def test_a_gzip_file_that_unpacks_without_end_leaves_nothing_behind(tmp_path, cache_folder):
    path = tmp_path / "a.record"
    path.write_bytes(gzip.compress(bytes(1_000_000)))
    with refused("a.record", 200):
        RecordFile(path)
    assert not [file for file in cache_folder.rglob("*") if file.is_file()]


def test_copies_of_a_killed_process_are_removed_and_those_of_a_live_one_are_not(
    tmp_path, cache_folder
):
    folder = cache_folder / "decompressed"
    folder.mkdir(parents=True)
    for name in (".new-dead", ".new-live", ".new-begun"):
        (folder / name).write_bytes(b"half")
    for name in (".new-dead", ".new-live"):
        os.utime(folder / name, (0, 0))
    path = write_records(tmp_path / "a.record", PAYLOADS, gz=True)
    with (folder / ".new-live").open("rb") as live:
        assert try_lock(live.fileno())
        assert len(RecordFile(path)) == len(PAYLOADS)
    assert sorted(file.name for file in folder.glob(".*")) == [".new-begun", ".new-live"]


def test_a_foreign_index_is_not_trusted(tmp_path):
    path = write_records(tmp_path / "a.record", PAYLOADS)
    for offsets in ([0, 2**63], [0, 40, 20], [5, 10], []):
        index_module._save_index(open_source(path), np.array(offsets, np.uint64))
        assert len(RecordFile(path)) == len(PAYLOADS)
    path.write_bytes(b"")
    assert len(RecordFile(path)) == 0


def test_threads_read_what_one_thread_reads(tmp_path):
    payloads = [bytes([n]) * (n * 37 + 1) for n in range(200)]
    file = RecordFile(write_records(tmp_path / "a.record", payloads))
    order = [n * 7 % 200 for n in range(2000)]
    with ThreadPoolExecutor(8) as pool:
        assert list(pool.map(file.read, order)) == [payloads[n] for n in order]


def test_more_files_than_descriptors_are_read(tmp_path, monkeypatch):
    monkeypatch.setattr(byte_source, "_KEPT_OPEN", threading.BoundedSemaphore(2))
    files = [RecordFile(write_records(tmp_path / f"{n}.record", [b"%d" % n])) for n in range(5)]
    for _ in range(2):
        assert [file.read(0) for file in files] == [b"0", b"1", b"2", b"3", b"4"]
    assert sum(file._source._descriptor >= 0 for file in files) == 2


def replace_file(path):
    write_records(path.with_name("new"), [payload[::-1] + b"!" for payload in PAYLOADS])
    path.with_name("new").replace(path)


def test_a_file_replaced_before_it_is_read_is_reported_with_the_record(tmp_path):
    path = write_records(tmp_path / "a.record", PAYLOADS)
    file = RecordFile(path)
    replace_file(path)
    with refused("a.record: record 1 (byte 21)", kind=RecordError):
        file.read(1)


def test_a_file_that_is_replaced_while_it_is_read_keeps_its_records(tmp_path):
    path = write_records(tmp_path / "a.record", PAYLOADS)
    file = RecordFile(path)
    file.read(0)
    replace_file(path)
    assert [file.read(record) for record in range(len(PAYLOADS))] == PAYLOADS
    # Overwritten in place.
    file = RecordFile(path)
    file.read(0)
    path.write_bytes(b"x" * (path.stat().st_size + 1))
    with refused("a.record: record 0 (byte 0)", kind=RecordError):
        file.read(0)
