"""Bytes of objects, and the blocks that are kept of them."""

import gzip
import uuid
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace

import pytest

from stillbox.errors import UserError
from stillbox.object_storage import ObjectFolder, ObjectPath
from stillbox.records import byte_source
from stillbox.records.byte_source import BlockCache, RemoteBytes
from stillbox.records.conversion import LABEL_MAP_NAME
from stillbox.records.label_map import LabelMap
from stillbox.records.record_file import RecordFile
from stillbox.records.source import expand
from stillbox.records.tfrecord import RecordError, frame
from stillbox.records.tiling import TileOptions, tile_records
from tests.helpers import refused
from tests.records.builders import CAT_DOG, make_example, write_records

BLOCK = 64
PAYLOADS = [bytes([n]) * (3 * n + 1) for n in range(40)]
CONTENT = b"".join(map(frame, PAYLOADS))


@pytest.fixture
def bucket(monkeypatch, cache_folder):
    """An empty folder of objects, read in small blocks."""
    monkeypatch.setattr(byte_source, "BLOCK_BYTES", BLOCK)
    return ObjectFolder(f"memory://{uuid.uuid4().hex}")


@pytest.fixture
def fetched(monkeypatch):
    """The ranges that were fetched."""
    ranges, fetch = [], RemoteBytes._fetch

    def noting(self, start, end):
        ranges.append((start, end))
        return fetch(self, start, end)

    monkeypatch.setattr(RemoteBytes, "_fetch", noting)
    return ranges


def kept(folder):
    """The files of the kept blocks; the name of a folder may begin as theirs do."""
    return [path for path in folder.rglob("0*") if path.is_file()]


def written(bucket, name="a.record", content=CONTENT):
    bucket.write(name, content)
    return ObjectPath(f"{bucket.url}/{name}")


@pytest.mark.parametrize("name", ["a.record", "a.record.gz"])
def test_records_of_an_object_are_those_of_the_file(bucket, name):
    content = gzip.compress(CONTENT) if name.endswith("gz") else CONTENT
    file = RecordFile(written(bucket, name, content))
    assert [file.read(n) for n in range(len(file))] == PAYLOADS
    assert file.location(1) == f"{bucket.url}/{name}: record 1 (byte 17)"


def test_each_byte_is_fetched_once_while_there_is_room(bucket, fetched):
    path = written(bucket)
    for _ in range(2):
        file = RecordFile(path)
        assert [file.read(n) for n in reversed(range(len(file)))] == PAYLOADS[::-1]
    assert sorted(fetched) == sorted(set(fetched))
    assert sum(end - start for start, end in fetched) == len(CONTENT)


def test_without_room_exactly_the_wanted_bytes_are_fetched(bucket, fetched, tmp_path):
    source = RemoteBytes(written(bucket), BlockCache(tmp_path / "blocks", limit=2 * BLOCK))
    assert source.read_at(0, 10) == CONTENT[:10]
    assert source.read_at(100, 20) == CONTENT[100:120]
    assert source.read_at(500, 200) == CONTENT[500:700]
    assert source.read_at(len(CONTENT) - 5, 100) == CONTENT[-5:]
    # One block each, then what was asked for.
    assert fetched == [(0, 64), (64, 128), (500, 700), (len(CONTENT) - 5, len(CONTENT))]
    assert source.read_at(0, 128) == CONTENT[:128]
    assert len(fetched) == 4


def test_blocks_of_objects_that_nobody_reads_make_room(bucket, fetched, tmp_path):
    folder = tmp_path / "blocks"
    path, other = written(bucket), written(bucket, "b.record", CONTENT[::-1])
    RemoteBytes(other, BlockCache(folder, limit=4 * BLOCK)).read_at(0, 4 * BLOCK)
    # Another process, which does not read the first object.
    cache = BlockCache(folder, limit=4 * BLOCK)
    source = RemoteBytes(path, cache)
    assert source.read_at(0, 4 * BLOCK) == CONTENT[: 4 * BLOCK]
    del fetched[:]
    assert source.read_at(0, 4 * BLOCK) == CONTENT[: 4 * BLOCK]
    assert fetched == []
    assert sum(file.stat().st_size for file in folder.rglob("*") if file.is_file()) == 4 * BLOCK


def test_a_disk_keeps_a_tenth_free(bucket, monkeypatch, fetched, tmp_path):
    folder = tmp_path / "blocks"

    def usage(path):
        size = sum(file.stat().st_size for file in kept(folder))
        return SimpleNamespace(total=1000, free=100 + BLOCK - size)

    monkeypatch.setattr(byte_source.shutil, "disk_usage", usage)
    source = RemoteBytes(written(bucket), BlockCache(folder))
    source.read_at(0, 10)
    source.read_at(200, 10)
    assert fetched == [(0, 64), (200, 210)]


def test_a_damaged_block_is_fetched_again(bucket, cache_folder):
    file = RecordFile(written(bucket))
    blocks = kept(cache_folder / "blocks")
    assert blocks
    for block in blocks:
        block.write_bytes(bytes(block.stat().st_size))
    assert file.read(30) == PAYLOADS[30]


def test_a_block_that_was_cut_off_is_fetched_again(bucket, cache_folder):
    path = written(bucket)
    RecordFile(path)
    blocks = kept(cache_folder / "blocks")
    assert blocks
    for block in blocks:
        block.write_bytes(block.read_bytes()[:20])
    for index in cache_folder.rglob("*.index"):
        index.unlink()
    file = RecordFile(path)
    assert [file.read(n) for n in range(len(file))] == PAYLOADS


def test_a_replaced_object_is_named(bucket, monkeypatch):
    monkeypatch.setattr(BlockCache, "has_room", lambda self: False)
    path = written(bucket)
    file = RecordFile(path)
    written(bucket, content=CONTENT[::-1])
    with refused("a.record: record 3 (byte 60)", kind=RecordError):
        file.read(3)
    bucket.remove("a.record")
    with pytest.raises(RecordError, match="changed or replaced after it was opened"):
        file.read(3)
    with refused("a.record"):
        RecordFile(path)


@pytest.mark.parametrize("name", ["a.record", "a.record.gz"])
@pytest.mark.parametrize("sound", [0, BLOCK])
def test_an_object_that_is_replaced_while_it_is_opened_is_named(bucket, monkeypatch, name, sound):
    path = written(bucket, name, gzip.compress(CONTENT) if name.endswith("gz") else CONTENT)
    read = ObjectFolder.read

    def replaced(self, name, start, end):
        return read(self, name, start, end) if end <= sound else b""

    monkeypatch.setattr(ObjectFolder, "read", replaced)
    with pytest.raises(UserError, match="changed or replaced after it was opened") as caught:
        RecordFile(path)
    assert caught.value.where == str(path)


def test_a_changed_object_is_indexed_again_and_a_damaged_one_names_record_and_byte(bucket):
    path = written(bucket)
    assert len(RecordFile(path)) == 40
    written(bucket, content=b"".join(map(frame, PAYLOADS[::-1])))
    assert RecordFile(path).read(0) == PAYLOADS[-1]
    written(bucket, content=CONTENT[:-3])
    with refused("a.record: record 39 (byte 2886)", kind=RecordError):
        RecordFile(path)


def test_threads_read_what_one_thread_reads(bucket, fetched):
    file = RecordFile(written(bucket))
    order = [n * 7 % 40 for n in range(400)]
    with ThreadPoolExecutor(8) as threads:
        assert list(threads.map(file.read, order)) == [PAYLOADS[n] for n in order]
    assert len(fetched) == len(set(fetched))


def test_patterns_name_objects(bucket):
    for shard in range(3):
        written(bucket, f"data/train.record-{shard:05d}-of-00003")
    written(bucket, "data/train.report.json", b"{}")
    written(bucket, "more/train.record-00000-of-00001")
    names = [f"{bucket.url}/data/train.record-{shard:05d}-of-00003" for shard in range(3)]
    for pattern in ("data/train.record-*", "data/train.record@3", "da*/train*", "data/train*"):
        assert list(map(str, expand([f"{bucket.url}/{pattern}"]))) == names
    assert list(map(str, expand([names[1]]))) == names[1:2]
    assert len(expand([f"{bucket.url}/*/train.record-*"])) == 4


@pytest.mark.parametrize(
    ("pattern", "words"),
    [
        ("train.recrod-*", "matches no object\n.*did you mean 'train.record-00000-of-00003'"),
        ("train.record", "there is no such object"),
        ("train.record@3", "absent: 2 of 3 shards"),
        ("train.record@0", "absent: 0 of 0 shards"),
    ],
)
def test_absent_objects_are_refused_with_what_is_there(bucket, pattern, words):
    written(bucket, "train.record-00000-of-00003")
    with pytest.raises(UserError, match=words):
        expand([f"{bucket.url}/{pattern}"])


def test_the_label_map_beside_records_at_a_url_is_taken(bucket, tmp_path):
    record = write_records(tmp_path / "a.record", [make_example()])
    bucket.write("a.record", record.read_bytes())
    options = TileOptions(tile=64)
    without = tile_records([f"{bucket.url}/a.record"], tmp_path / "b", "t", options)
    bucket.write(LABEL_MAP_NAME, CAT_DOG.to_text().encode())
    tile_records([f"{bucket.url}/a.record"], tmp_path / "c", "t", options)
    assert without.images == 1
    assert not (tmp_path / "b" / LABEL_MAP_NAME).exists()
    assert LabelMap.from_file(tmp_path / "c" / LABEL_MAP_NAME).items == CAT_DOG.items
