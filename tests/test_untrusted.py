"""docs/security.md: what an untrusted file cannot do, and that every reader refuses it."""

import ast
import io
import json
import os
import re
import socket
import zipfile
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from safetensors.numpy import save_file

import stillbox
from stillbox import numerals
from stillbox.checkpoints import files, tf1, tf2
from stillbox.checkpoints.array_files import SafetensorsFile
from stillbox.checkpoints.checkpoint import Checkpoint, write_checkpoint
from stillbox.checkpoints.graphs import tensorflow, tfjs
from stillbox.checkpoints.graphs import tflite as tflite_graph
from stillbox.checkpoints.pretrained import read_receipt
from stillbox.checkpoints.tf1 import Tf1Checkpoint
from stillbox.checkpoints.weights_file import open_weights
from stillbox.errors import UserError
from stillbox.evaluation.coco import from_coco_json, results_from_coco_json
from stillbox.evaluation.history import read_history
from stillbox.experiment.resolve import resolve
from stillbox.exporting.manifest import Manifest, check_files
from stillbox.exporting.tflite import metadata
from stillbox.exporting.tflite.metadata import LABEL_IDS, label_ids
from stillbox.predicting.images import read_image
from stillbox.predicting.video import Video
from stillbox.records import (
    annotations,
    foreign_files,
    image_files,
    label_map,
    record_file,
    tfrecord,
)
from stillbox.records.annotations import line_of
from stillbox.records.data_folder import DataFolder
from stillbox.records.foreign_files import read_xml
from stillbox.records.formats import tables, yolo
from stillbox.records.formats.coco import read_coco
from stillbox.records.formats.registry import labelled, recognise
from stillbox.records.formats.voc import read_image_set, read_voc
from stillbox.records.label_map import LabelMap
from stillbox.records.problems import ConversionLog
from stillbox.records.record_file import RecordFile
from stillbox.records.source import expand
from stillbox.records.tfrecord import sharded_writer
from stillbox.serving import connections, decoding, turns
from stillbox.serving.connections import ConnectionLimits
from stillbox.serving.settings import ServeSettings
from stillbox.textformat import yaml_tree
from stillbox.untrusted import open_untrusted, read_untrusted
from tests.checkpoints.tf_writer import write_checkpoint as write_tf1
from tests.helpers import refusal


def refused(path, said, most=100, **options):
    for reader in (open_untrusted, read_untrusted):
        with pytest.raises(UserError, match=said) as caught:
            reader(path, most=most, where="--x", fix="give another", **options)
        assert (caught.value.where, caught.value.fix) == ("--x", "give another")


def test_what_is_no_regular_file_is_refused_at_once(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    os.mkfifo("pipe")
    for name, target in {"zero": "/dev/zero", "to_pipe": "pipe", "self": "self"}.items():
        Path(name).symlink_to(target)
    refused("pipe", "pipe is a pipe, not a regular file")
    refused("to_pipe", "to_pipe is a pipe")
    refused("/dev/zero", "is a device")
    refused("zero", "zero is a device")
    refused(tmp_path, "is a folder")
    refused("self", "cannot read self: Too many")
    refused("none", "cannot read none: No such file")
    refused("a\0b", "cannot read .*null")
    refused("a" * 300, "File name too long")
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind("socket")
        refused("socket", "is a socket")


def test_a_file_that_becomes_a_pipe_before_it_is_opened_does_not_block(tmp_path, monkeypatch):
    path, opened = tmp_path / "file", os.open
    path.write_bytes(b"a")

    def swap(name, flags):
        path.unlink()
        os.mkfifo(path)
        return opened(name, flags)

    with monkeypatch.context() as patch, pytest.raises(UserError, match="is a pipe"):
        patch.setattr(os, "open", swap)
        open_untrusted(path, most=None)


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="no /proc")
def test_a_file_that_says_nothing_of_its_size_is_refused():
    refused("/proc/self/status", "does not say how large it is")
    refused("/proc/self/mem", "cannot read|does not say")


def test_size_is_bounded_before_anything_is_read(tmp_path):
    path = tmp_path / "sparse"
    path.touch()
    os.truncate(path, 20 * 2**30)
    refused(path, "has 21,474,836,480 bytes; such a file has 100 at most")
    with open_untrusted(path, most=None) as file:
        assert file.read(3) == b"\0\0\0"
    path.write_bytes(b"a" * 100)
    assert read_untrusted(path, most=100) == b"a" * 100
    path.write_bytes(b"")
    assert read_untrusted(path, most=0) == b""


def test_a_file_that_grows_is_read_as_it_was_opened(tmp_path, monkeypatch):
    path, fstat = tmp_path / "log", os.fstat
    path.write_bytes(b"a" * 90)

    def grow(descriptor):
        status = fstat(descriptor)
        with path.open("ab") as file:
            file.write(b"b" * 1000)
        return status

    with monkeypatch.context() as patch:
        patch.setattr(os, "fstat", grow)
        content = read_untrusted(path, most=100)
    assert content in (b"a" * 90, b"a" * 90 + b"b" * 10)


@pytest.mark.parametrize("reader", [open_weights, lambda name: expand([name])])
@pytest.mark.parametrize("name", ["x" * 300, "x/" * 3000, "~nobody-here/x", "loop/x", "a\0b"])
def test_names_that_no_file_can_have_are_refused(name, reader, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("loop").symlink_to("loop")
    with pytest.raises(UserError):
        reader(name)


def test_links_may_not_lead_out_of_the_folder(tmp_path):
    inside, outside = tmp_path / "in", tmp_path / "inner"
    for folder in (inside, outside):
        folder.mkdir()
        (folder / "file").write_bytes(b"a")
    links = {"down": "file", "out": "../inner/file", "absolute": outside / "file", "dir": outside}
    for name, target in links.items():
        (inside / name).symlink_to(target)
    assert read_untrusted(inside / "down", most=9, inside=inside) == b"a"
    assert read_untrusted(inside / "out", most=9) == b"a"
    for name in ("out", "absolute", "dir/file", "../inner/file"):
        refused(inside / name, "leads out of", inside=inside)
    # The folder itself may be a link.
    (tmp_path / "alias").symlink_to(inside)
    assert read_untrusted(inside / "file", most=9, inside=tmp_path / "alias") == b"a"


def test_no_descriptor_is_left_open(tmp_path):
    before = len(list(Path("/proc/self/fd").iterdir()))
    (tmp_path / "large").write_bytes(b"a" * 101)
    refused(tmp_path / "large", "has 101 bytes")
    assert len(list(Path("/proc/self/fd").iterdir())) == before


def read_sections(file):
    return Checkpoint(file.parent).read("params")


READERS = {
    "a.yaml": resolve,
    "b.yaml": foreign_files.read_yaml,
    "a.json": foreign_files.read_json,
    "truth.json": from_coco_json,
    "results.json": results_from_coco_json,
    "a.xml": foreign_files.read_xml,
    "a.csv": lambda file: list(foreign_files.read_csv(file)),
    "a.txt": foreign_files.read_lines,
    "head.txt": foreign_files.read_head,
    "ImageSets/Main/a.txt": lambda file: read_image_set(file.parents[2], "a"),
    "a.pbtxt": LabelMap.from_file,
    "a.record": RecordFile,
    "a.png": read_image,
    "a.mp4": Video,
    "a.npz": open_weights,
    "a.safetensors": open_weights,
    "a.pth": open_weights,
    "a.pb": open_weights,
    "a.tflite": open_weights,
    "model.json": open_weights,
    "a.unknown": open_weights,
    "a.index": Tf1Checkpoint,
    "b.index": lambda file: open_weights(file.with_suffix("")),
    "folder/checkpoint": lambda file: open_weights(file.parent),
    "export.json": lambda file: Manifest.read(file.parent),
    "export/saved_model.pb": lambda file: check_files(file.parent),
    "step/checkpoint.json": lambda file: Checkpoint(file.parent),
}
# Records, videos and what only the first bytes are read of are of any size; exports have folders.
TAKEN = {("sparse", "head.txt"), ("folder", "export/saved_model.pb")}
HOSTILE = {
    "pipe": os.mkfifo,
    "link to a pipe": lambda path: (os.mkfifo(f"{path}.pipe"), path.symlink_to(f"{path}.pipe")),
    "device": lambda path: path.symlink_to("/dev/zero"),
    "file of the system": lambda path: path.symlink_to("/proc/self/status"),
    "link to itself": lambda path: path.symlink_to(path.name),
    "folder": Path.mkdir,
    "sparse": lambda path: (path.touch(), os.truncate(path, 20 * 2**30)),
}


@pytest.mark.timeout(20)
@pytest.mark.parametrize("kind", HOSTILE)
@pytest.mark.parametrize("name", READERS)
def test_every_reader_refuses_what_is_no_bounded_regular_file(name, kind, tmp_path):
    path = tmp_path / name
    path.parent.mkdir(parents=True, exist_ok=True)
    HOSTILE[kind](path)
    if (kind, name) in TAKEN:
        return
    assert "Secret" not in str(refusal(READERS[name], path))


@pytest.mark.timeout(20)
@pytest.mark.parametrize("kind", HOSTILE)
def test_what_may_be_absent_does_not_block_either(kind, tmp_path):
    path = tmp_path / "downloads.json"
    HOSTILE[kind](path)
    assert read_receipt(tmp_path) == {}
    assert line_of(path, "text") == str(path)
    if kind == "sparse":
        with pytest.raises(UserError, match="has 21,474,836,480 bytes"):
            read_history(path)


@pytest.mark.timeout(20)
@pytest.mark.parametrize("kind", HOSTILE)
def test_sections_of_a_checkpoint_stay_in_its_folder(kind, tmp_path):
    step = tmp_path / "4"
    step.mkdir()
    write_checkpoint(step, 4, {"params": {"w": np.ones(3, np.float32)}}, {})
    real = step / "params.npz"
    content = real.read_bytes()
    assert list(read_sections(real)) == ["w"]
    real.unlink()
    HOSTILE[kind](real)
    with pytest.raises(UserError):
        read_sections(real)
    if kind == "pipe":
        real.unlink()
        (tmp_path / "other.npz").write_bytes(content)
        real.symlink_to("../other.npz")
        with pytest.raises(UserError, match="leads out of"):
            read_sections(real)


def test_data_of_a_tf1_checkpoint_that_is_a_pipe_is_refused(tmp_path):
    write_tf1(tmp_path / "model.ckpt", {"w": np.ones(3, np.float32)})
    (data,) = tmp_path.glob("*.data-*")
    checkpoint = Tf1Checkpoint(tmp_path / "model.ckpt")
    data.unlink()
    os.mkfifo(data)
    with pytest.raises(UserError, match="is a pipe"):
        checkpoint["w"]


def test_a_safetensors_file_that_is_cut_after_it_was_opened_is_refused(tmp_path):
    path = tmp_path / "a.safetensors"
    save_file({"a": np.ones(50_000, np.float32), "b": np.ones(50_000, np.float32)}, path)
    file = SafetensorsFile(path)
    os.truncate(path, 1000)
    with pytest.raises(UserError, match="was cut off after it was opened"):
        file["b"]


@pytest.mark.parametrize(
    "header",
    [
        {"a": {"dtype": "F32", "shape": [2**40], "data_offsets": [0, 2**42]}},
        {"a": {"dtype": "F32", "shape": [2], "data_offsets": [0, 4]}},
        {"a": {"dtype": "F32", "shape": [-1], "data_offsets": [0, 4]}},
        {"a": {"dtype": "F32", "shape": [1], "data_offsets": [-4, 0]}},
        {"a": {"dtype": "F32", "shape": [1], "data_offsets": [4, 0]}},
        {"a": {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]},
         "b": {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]}},
        {"a": {"dtype": "F32", "shape": [1.5], "data_offsets": [0, 6]}},
        {"a": {"dtype": "F32", "shape": [[1]], "data_offsets": [0, 4]}},
        {"a": {"dtype": "F32", "shape": [1], "data_offsets": [0]}},
        {"a": {"dtype": "F32", "shape": [2], "data_offsets": [0.0, 8.0]}},
        {"a": {"dtype": "F32", "shape": [1], "data_offsets": ["0", "4"]}},
        {"a": []},
        [],
        7,
    ],
)  # fmt: skip
def test_a_safetensors_header_that_lies_is_refused(header, tmp_path):
    text = json.dumps(header).encode()
    path = tmp_path / "a.safetensors"
    path.write_bytes(len(text).to_bytes(8, "little") + text + b"\0" * 8)
    with pytest.raises(UserError, match=r"damaged or no \.safetensors"):
        SafetensorsFile(path)


# Modules that read files of the package, of the system, or that the same command wrote.
TRUSTED = (
    "devices/process.py", "evaluation/html_page.py",
    "experiment/known_weights.py",
    "experiment/params_dict/command_line.py", "experiment/params_dict/keys.py",
    "experiment/pipeline_config/section.py", "experiment/recipes/__init__.py",
    "experiment/yaml_config.py", "extras.py",
    "inputs/processes.py", "machine_memory.py", "predicting/web_page.py", "serving/app.py",
    "serving/openapi.py", "system.py",
)  # fmt: skip
BY_OTHERS = {"read_bytes", "read_text", "fromfile", "memmap", "mmap", "loadtxt", "genfromtxt"}


def opens_to_read(call):
    name = call.func.attr if isinstance(call.func, ast.Attribute) else ast.unparse(call.func)
    first = [argument.value for argument in call.args if isinstance(argument, ast.Constant)][:1]
    is_ours = ast.unparse(call.func) in ("bundle.read_text", "read_text")
    return (name in BY_OTHERS and not is_ours) or (name == "open" and first in (["rb"], ["r"]))


def readers_of(package):
    """Returns the modules of a package that open files to read without `open_untrusted`."""
    folder, readers = Path(package.__file__).parent, set()
    for file in folder.rglob("*.py"):
        text = file.read_text(encoding="utf-8")
        # Parsing all of the package takes seconds.
        if any(mark in text for mark in ('"r"', '"rb"', *(f".{name}(" for name in BY_OTHERS))):
            calls = (node for node in ast.walk(ast.parse(text)) if isinstance(node, ast.Call))
            if any(map(opens_to_read, calls)):
                readers.add(file.relative_to(folder).as_posix())
    return readers


def test_no_other_module_opens_files_to_read():
    assert readers_of(stillbox) == set(TRUSTED)


def images_opened_by(package):
    """Returns the lines of a package that open an image with Pillow."""
    files = Path(package.__file__).parent.rglob("*.py")
    lines = [line for file in files for line in file.read_text(encoding="utf-8").splitlines()]
    return [line for line in lines if "Image.open(" in line]


def test_pillow_opens_no_file_without_a_list_of_formats():
    assert images_opened_by(stillbox)
    assert [line for line in images_opened_by(stillbox) if "formats=" not in line] == []


def tflite(ids, name=LABEL_IDS, method=zipfile.ZIP_STORED):
    """Returns a model that is no model, and label ids behind it."""
    file = io.BytesIO(b"model" * 9)
    with zipfile.ZipFile(file, "a", method) as archive:
        archive.writestr(name, ids)
    return file.getvalue()


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (tflite(b" " * (2**21 + 1), method=zipfile.ZIP_DEFLATED), "more than 2,097,152 bytes"),
        (tflite(b"1\n", method=zipfile.ZIP_LZMA), "is compressed by method 14"),
        (tflite(b"1\n", name="labels.txt"), "no item named 'label_ids.txt'"),
        (tflite(b"1\none\n"), "2 numbers, not all from 0"),
        (tflite(b"1\n-1\n"), "2 numbers, not all from 0 to 2147483647"),
        (tflite(b"9" * 5000), "1 number, not all from 0"),
        (tflite(b"9" * 400), "1 number, not all"),
        (tflite(b""), "0 numbers"),
        (tflite(b"1\n2\n")[:-30], "File is not a zip file"),
        (tflite(b"1\n2\n").replace(b"1\n2\n", b"1\n3\n"), "Bad CRC-32"),
        (b"model", "File is not a zip file"),
    ],
    # Archives hold the time: their bytes differ between the processes that collect the tests.
    ids=lambda value: value if isinstance(value, str) else "file",
)
def test_label_ids_of_a_tflite_file_are_read_or_refused(content, said):
    assert label_ids(tflite(b"1\n90\n0\n"), "m.tflite") == [1, 90, 0]
    with pytest.raises(UserError, match=said) as caught:
        label_ids(content, "m.tflite")
    assert caught.value.where == "m.tflite, label_ids.txt"
    assert "export the model again" in caught.value.fix


ROOT = Path(__file__).resolve().parents[1]
PAGE = (ROOT / "docs" / "security.md").read_text(encoding="utf-8")


@pytest.fixture
def photos(tmp_path):
    """A folder of images beside a secret, and a link in it that leads there."""
    Image.fromarray(np.zeros((8, 6, 3), np.uint8)).save(tmp_path / "secret.jpg")
    folder = tmp_path / "photos"
    folder.mkdir()
    (folder / "a.jpg").write_bytes((tmp_path / "secret.jpg").read_bytes())
    (folder / "link.jpg").symlink_to(tmp_path / "secret.jpg")
    return folder


OUTSIDE = ["../secret.jpg", "x/../../secret.jpg", "..\\secret.jpg", "{root}/secret.jpg", "link.jpg"]


@pytest.mark.parametrize("name", OUTSIDE)
def test_an_annotation_names_no_image_outside_of_its_folder(photos, name):
    name = name.format(root=photos.parent)
    coco = {
        "images": [{"id": 1, "file_name": name, "height": 8, "width": 6}],
        "annotations": [{"id": 1, "image_id": 1, "category_id": 1, "bbox": [1, 1, 2, 2]}],
        "categories": [{"id": 1, "name": "dog"}],
    }
    (photos / "x.json").write_text(json.dumps(coco))
    with pytest.raises(UserError, match="leads out of the folder"):
        read_coco(photos / "x.json", photos, ConversionLog())
    box = "<xmin>1</xmin><ymin>1</ymin><xmax>3</xmax><ymax>3</ymax>"
    files = {
        "x.json": json.dumps(coco),
        "x.xml": f"<annotation><filename>{name}</filename><object><name>dog</name><bndbox>{box}"
        "</bndbox></object></annotation>",
        "c.xml": f"<annotations><image name='{name}'><box label='dog' xtl='1' ytl='1' xbr='3' "
        "ybr='3'/></image></annotations>",
    }
    for file, content in files.items():
        (photos / "x.json").unlink(missing_ok=True)
        (photos / file).write_text(content)
        data = DataFolder(photos)
        recognised = recognise(data)
        with pytest.raises(UserError, match="leads out of the folder"):
            recognised.format.read(data, recognised.files, ConversionLog())
        (photos / file).unlink()


@pytest.mark.timeout(20)
def test_pipes_among_the_files_are_not_opened(photos):
    os.mkfifo(photos / "pipe.jpg")
    os.mkfifo(photos / "x.json")
    os.mkfifo(photos / "x.xml")
    with pytest.raises(UserError, match=r"x\.json: it is a pipe"):
        read_coco(photos / "x.json", photos, ConversionLog())
    with pytest.raises(UserError, match="no XML file names an object"):
        read_voc(photos, photos, ConversionLog())
    item = labelled(photos / "pipe.jpg", "", [], []).image
    with pytest.raises(OSError, match="is a pipe"):
        item.content()


ENTITIES = {
    "external": '<!ENTITY x SYSTEM "file://{secret}">',
    "multiplied": '<!ENTITY a "{ten}">' + "".join(
        f'<!ENTITY {name} "{10 * f"&{former};"}">'
        for former, name in zip("abcdefghi", "bcdefghij", strict=True)
    ) + '<!ENTITY x "&j;">',
}  # fmt: skip


@pytest.mark.parametrize("encoding", ["utf-8", "utf-16"])
@pytest.mark.parametrize("kind", ENTITIES)
def test_entities_of_xml_are_not_followed(tmp_path, kind, encoding):
    secret = tmp_path / "secret"
    secret.write_text("a secret")
    entities = ENTITIES[kind].format(secret=secret, ten="lollollol!")
    text = f"<!DOCTYPE annotation [{entities}]><annotation><filename>&x;</filename></annotation>"
    (tmp_path / "a.xml").write_bytes(text.encode(encoding))
    assert "secret" not in refusal(read_xml, tmp_path / "a.xml").what


@pytest.mark.parametrize("name", ["../x", "/x", "x/y", "..", "a\0b"])
def test_a_set_is_written_into_its_folder_only(tmp_path, name):
    with pytest.raises(UserError, match="is not the name of a set"), sharded_writer(tmp_path, name):
        pytest.fail("written")


def test_a_section_of_a_checkpoint_is_a_file_of_its_folder(tmp_path):
    manifest = {"format": 1, "step": 3, "metadata": {}, "sections": {"../../weights": 1}}
    (tmp_path / "checkpoint.json").write_text(json.dumps(manifest))
    with pytest.raises(UserError, match="list of the checkpoint's sections is damaged"):
        Checkpoint(tmp_path)


def test_a_config_imports_nothing(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "parts.py").write_text("open('marker', 'w')")
    (tmp_path / "e.yaml").write_text("imports: [parts.py, parts]\nrecipe: demo_scenes\n")
    resolve("e.yaml")
    assert not (tmp_path / "marker").exists()


def test_every_test_that_the_page_names_exists():
    named = re.findall(r"`(tests/\S+\.py)::(\w+)`", PAGE)
    assert len(named) > 20
    for file, name in named:
        assert f"def {name}(" in (ROOT / file).read_text(encoding="utf-8"), name


@pytest.mark.parametrize("options", [{}, {"data": "photos"}])
def test_an_unknown_service_makes_no_folder_of_its_name(options):
    error = refusal(stillbox.train, "demo_scenes", model_directory="s4://bucket/run", **options)
    assert error.where == "s4://bucket/run"
    assert "nothing is known of s4://" in error.what and not Path("s4:").exists()


def test_the_page_has_the_limits_of_the_readers():
    limits = {
        "configuration": [yaml_tree.MAX_BYTES],
        "label map": [label_map.MAX_LABEL_MAP_BYTES],
        "annotations in JSON": [foreign_files.MAX_ANNOTATION_BYTES],
        "annotations in XML": [foreign_files._MOST_XML_BYTES],
        "CSV": [foreign_files._MOST_CSV_BYTES, foreign_files._LONGEST_ROW],
        "lists of images": [foreign_files.MAX_LIST_BYTES],
        "YOLO labels of an image": [yolo._MOST_LABEL_BYTES],
        "parquet": [tables._MOST_PARQUET_BYTES],
        "image": [image_files.MAX_IMAGE_BYTES],
        "record": [tfrecord.MAX_RECORD_BYTES],
        "weights": [
            *(files.MAX_WEIGHTS_BYTES, tensorflow._MOST_BYTES, tfjs._MOST_JSON_BYTES),
            tf1._MOST_INDEX_BYTES,
        ],
    }
    assert tflite_graph._MOST_BYTES == tensorflow._MOST_BYTES
    _, _, section = PAGE.partition("\n## Limits\n")
    rows = re.findall(r"^\| (.*?) \| (.*?) \|", section.partition("\n## ")[0], re.MULTILINE)[1:]
    units = {"KiB": 2**10, "MiB": 2**20, "GiB": 2**30}
    written = {
        name: [int(size) * units[unit] for size, unit in re.findall(r"(\d+) ([KMG]iB)", text)]
        for name, text in rows
    }
    assert [next(row for row in written if row.startswith(name)) for name in limits] == [*written]
    assert list(written.values()) == list(limits.values())
    assert f"{yaml_tree.MAX_VALUES:,} values of YAML" in section
    assert f"as bytes, or {tables._LEAST_VALUES:,}" in section


def test_the_page_has_the_numbers_of_the_code():
    server, connection = ServeSettings(), ConnectionLimits(seconds=1.0, most=1)
    mebibyte = 2**20
    for text in (
        f"at most {tf2._MOST_OBJECTS:,} objects",
        f"over {record_file._MOST_COMPRESSION} times as large as its gzip file",
        f"to at most {tables._MOST_GROWTH} times the file",
        f"or {tables._LEAST_GROUP // mebibyte} MiB | ",
        f"at most {metadata._MOST_LABEL_BYTES // mebibyte} MiB |",
        f"refused beyond {annotations._MOST_FOLDERS} folders",
        f"refused beyond {numerals._LONGEST} characters",
        f"bytes of a request | {server.max_body // mebibyte} MiB",
        f"by its header | {server.max_pixels // 10**6} million",
        f"images of a request | {server.max_images} ",
        f"images in progress | {server.queue} ",
        f"reading, each | {server.timeout:g} s",
        f"inputs in progress | {server.max_memory // 2**30} GiB",
        f"have not read | {connection.unread // mebibyte} MiB",
        f"while the server stops | {connection.body:g} s",
        f"connections | {connections._MOST:,},",
        f"KiB and {turns._MOST_LINES} lines",
        f"chunks of a body | {turns._FREE_CHUNKS:,}, and one for every {turns._CHUNK} bytes",
        f"looks at all connections | {1000 * turns._SECONDS:g} ms",
        f"JSON | {decoding.MOST_STRINGS:,} strings, {decoding.MOST_OTHER // 2**10} KiB without",
        f"over {decoding._LONGEST_SIDE:,} pixels on a side",
    ):
        assert text in PAGE
