import gc
import gzip
import os
import threading
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from stillbox.errors import UserError
from stillbox.records import byte_source
from stillbox.records import record_file as index_module
from stillbox.records.byte_source import open_source
from stillbox.records.files import try_lock
from stillbox.records.record_file import RecordFile
from stillbox.records.tfrecord import RecordError
from tests.records.builders import write_records

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


@pytest.mark.parametrize("content", [b"", b"garbage", b"[]\n", b'{"format": 1}\n123'])
def test_a_broken_index_is_rebuilt(tmp_path, cache_folder, content):
    path = write_records(tmp_path / "a.record", PAYLOADS)
    RecordFile(path)
    kept_index(cache_folder).write_bytes(content)
    assert RecordFile(path).read(3) == b"last"
    assert kept_index(cache_folder).read_bytes() != content


def test_an_index_with_one_changed_byte_is_rebuilt(tmp_path, cache_folder):
    path = write_records(tmp_path / "a.record", PAYLOADS)
    RecordFile(path)
    kept = kept_index(cache_folder)
    data = bytearray(kept.read_bytes())
    data[-8] ^= 1
    kept.write_bytes(data)
    assert RecordFile(path).read(3) == b"last"


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


def test_a_cache_that_cannot_be_written_is_explained(tmp_path, monkeypatch):
    path = write_records(tmp_path / "a.record", PAYLOADS, gz=True)
    (tmp_path / "file").write_bytes(b"")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    with pytest.raises(Exception, match=r"no room for the decompressed copy.*\n.*XDG_CACHE_HOME"):
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
    with pytest.raises(RecordError, match=rf"record {record} \(byte {byte}\).*truncated"):
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


def test_a_gzip_file_that_unpacks_without_end_leaves_nothing_behind(tmp_path, cache_folder):
    path = tmp_path / "a.record"
    path.write_bytes(gzip.compress(bytes(1_000_000)))
    with pytest.raises(UserError, match="unpacks to more than 200 times of its size"):
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


def test_an_empty_file_has_no_record(tmp_path):
    path = tmp_path / "a.record"
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
    with pytest.raises(RecordError, match=r"record 1 \(byte \d+\): the file was changed or repl"):
        file.read(1)


def test_a_file_that_is_replaced_while_it_is_read_keeps_its_records(tmp_path):
    path = write_records(tmp_path / "a.record", PAYLOADS)
    file = RecordFile(path)
    file.read(0)
    replace_file(path)
    assert [file.read(record) for record in range(len(PAYLOADS))] == PAYLOADS


def test_a_file_overwritten_while_it_is_read_is_reported_with_the_record(tmp_path):
    path = write_records(tmp_path / "a.record", PAYLOADS)
    file = RecordFile(path)
    file.read(0)
    path.write_bytes(b"x" * (path.stat().st_size + 1))
    with pytest.raises(RecordError, match=r"record 0 \(byte 0\): the file was changed or replaced"):
        file.read(0)
