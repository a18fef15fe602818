"""Whatever a file holds, its reader answers or raises `UserError`; `tools/fuzz` searches on."""

import contextlib
import json
import random
import resource
import zlib

import pytest

from stillbox.errors import UserError
from tests.fuzz.corpus import FAILURES
from tools.fuzz.costs import Budget, cost_of
from tools.fuzz.mutations import mutate_bytes, mutate_json
from tools.fuzz.readers import _OPEN_IMAGES, _SHAPE, _VOC_CSV, READERS

# For readers that take longer than a millisecond.
TRIES = {
    **dict.fromkeys(("pipeline_config", "yaml", "params_dict"), 15),
    **dict.fromkeys(("checkpoint", "coco", "object_graph", "tf_example", "tfrecord"), 50),
    **dict.fromkeys(("tf1_index", "voc", "voc_image_set"), 50),
    **dict.fromkeys([name for name in READERS if name.startswith("folder_")], 20),
}
MEMORY_BYTES = 1 << 30


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    return tmp_path


@pytest.fixture
def little_memory():
    """A gigabyte more than this process has."""
    with open("/proc/self/statm") as file:  # noqa: PTH123
        in_use = int(file.read().split()[0]) * resource.getpagesize()
    before = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (in_use + MEMORY_BYTES, before[1]))
    yield
    resource.setrlimit(resource.RLIMIT_AS, before)


# Pillow warns of TIFF files that it cannot read to the end.
@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize("name", READERS)
def test_changed_files_are_read_or_refused(folder, name):
    reader, rng = READERS[name], random.Random(zlib.crc32(name.encode()))
    (folder / "seeds").mkdir()
    seeds = reader.seeds(folder / "seeds")
    reader.read(seeds[0], folder)
    for number in range(TRIES.get(name, 200)):
        seed = rng.choice(seeds)
        changed = (mutate_json(seed, rng) if number % 3 else None) or mutate_bytes(seed, rng)
        try:
            reader.read(changed, folder)
        except UserError:
            continue
        except Exception as error:
            pytest.fail(f"{error!r} for {changed!r}")


@pytest.mark.timeout(20)
@pytest.mark.parametrize(
    ("name", "content"), FAILURES, ids=[f"{name}-{n}" for n, (name, _) in enumerate(FAILURES)]
)
@pytest.mark.filterwarnings("ignore")
def test_former_failures_are_read_or_refused(folder, little_memory, name, content):
    try:
        READERS[name].read(content, folder)
    except UserError as error:
        assert len(str(error)) < 4000


def _many(reader):
    """Files that use something once stated many times, or state much of one kind."""
    if reader == "folder_hugging_face":
        # The table of their keys would have the square of their number.
        rows = ",".join(
            f'{{"k{number}":1,"bbox":[1,1,9,9],"label":"x"}}' for number in range(2_000)
        )
        yield f'{{"file_name":"a.png","objects":[{rows}]}}\n'.encode()
    elif reader == "folder_label_studio":
        value = {"x": 1, "y": 1, "width": 5, "height": 5}
        region = _SHAPE | {"value": value | {"rectanglelabels": [f"c{n}" for n in range(60)]}}
        annotations = [{"result": [region] * 60}]
        # Each folder of a name is looked up on the disk.
        for image in ("a.jpg", "a/" * 2_000 + "a.jpg"):
            task = {"id": 1, "data": {"image": image}, "annotations": annotations}
            yield json.dumps([task] * 20).encode()
    elif reader == "folder_voc_csv":
        header, row = _VOC_CSV.splitlines()
        more = b"".join(b",c%d" % number for number in range(1_000))
        yield b"\n".join([header + more, *([row + b"," * 1_000] * 100)])
    else:
        header, row, _ = _OPEN_IMAGES.splitlines()
        yield b"\n".join([header, *([row + b","] * 2_000)])
        yield b"\n".join([header, *([row] * 2_000)])


TABLES = ("hugging_face", "label_studio", "voc_csv", "open_images")


@pytest.mark.parametrize("name", [f"folder_{table}" for table in TABLES])
def test_what_multiplies_takes_what_its_bytes_allow(folder, name):
    reader = READERS[name]
    (folder / "seeds").mkdir()
    sound = reader.seeds(folder / "seeds")[0]
    reader.read(sound, folder)  # imports modules
    seed = cost_of(lambda: reader.read(sound, folder))

    def read(content):
        with contextlib.suppress(UserError):
            reader.read(content, folder)

    for content in _many(name):
        cost = cost_of(lambda content=content: read(content))
        assert not Budget([seed]).excess(len(content), cost)
