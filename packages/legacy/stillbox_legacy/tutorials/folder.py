"""The folder of `stillbox tutorial`: scripts and modules under the names that tutorials run.

Its files are a few lines each over the programs and modules of stillbox; it is laid out like
`models/research` of github.com/tensorflow/models.
"""

import os
from collections.abc import Iterator, Mapping
from pathlib import Path

from stillbox import __version__
from stillbox.errors import UserError
from stillbox.records.files import write_whole
from stillbox.records.label_map import LabelMap
from stillbox.untrusted import read_untrusted
from stillbox_legacy.tutorials.absent import REPLACEMENTS
from stillbox_legacy.tutorials.protos import MODULES

_API = "object_detection"
_PROGRAMS: Mapping[str, tuple[str, ...]] = {
    "model_main_tf2.py": ("model_main", "--checkpoint_format=tf2", "--checkpoint_every_n=1000"),
    "model_main.py": ("model_main", "--checkpoint_format=tf1"),
    "train.py": ("legacy_train",),
    "eval.py": ("legacy_eval",),
    "legacy/train.py": ("legacy_train",),
    "legacy/eval.py": ("legacy_eval",),
    "exporter_main_v2.py": ("exporter_main_v2",),
    "export_inference_graph.py": ("export_inference_graph",),
    "export_tflite_graph_tf2.py": ("export_tflite_graph_tf2",),
    "export_tflite_ssd_graph.py": ("export_tflite_ssd_graph",),
    "builders/model_builder_tf1_test.py": ("model_builder_tf1_test",),
    "builders/model_builder_tf2_test.py": ("model_builder_tf2_test",),
    "dataset_tools/create_pascal_tf_record.py": ("create_pascal_tf_record",),
    "dataset_tools/create_coco_tf_record.py": ("create_coco_tf_record",),
    "dataset_tools/create_pet_tf_record.py": ("create_pet_tf_record",),
}
"""Words that come before the words of the command line, by the place in `object_detection`."""
_HELPERS = (
    *("generate_tfrecord", "create_tfrecord", "xml_to_csv", "create_csv", "partition_dataset"),
    "train_val_test_split",
)
"""Tutorials look for these scripts in the folder itself and in `object_detection`."""
_MODULES = {
    "utils/config_util.py": "config_util",
    "utils/dataset_util.py": "dataset_util",
    "utils/label_map_util.py": "label_map_util",
    "utils/visualization_utils.py": "visualization_utils",
    "utils/ops.py": "ops",
    "utils/np_box_ops.py": "np_box_ops",
    "builders/model_builder.py": "model_builder",
    "core/standard_fields.py": "standard_fields",
    "dataset_tools/tf_record_creation_util.py": "tf_record_creation_util",
    "metrics/coco_evaluation.py": "coco_evaluation",
}
"""Modules of `stillbox_legacy.tutorials` by the place in `object_detection`."""
_PACKAGES = (
    *("", "builders", "core", "data_decoders", "dataset_tools", "legacy", "meta_architectures"),
    *("metrics", "protos", "utils"),
)

_MARK = "Written by `stillbox tutorial`, version "
_WRITTEN = f"{_MARK}{__version__}."
_MOST_BYTES = 2**20
_SCRIPT = '''"""{about}

{written} It runs the command `stillbox {verb}`.
"""

import sys

try:
    from stillbox.cli.main import command
except ModuleNotFoundError as error:
    if error.name != "stillbox":
        raise
    sys.exit(f"stillbox is not installed for {{sys.executable}}: install it with this Python's pip")

if __name__ == "__main__":
    sys.argv[1:1] = {words!r}
    sys.exit(command())
'''
_MODULE = '''"""`object_detection.{name}` over stillbox. {written}"""

import sys

from stillbox_legacy.tutorials import {module} as _module

# The same module: what is set in one is seen in the other.
sys.modules[__name__] = _module
'''
_ABSENT = '''"""`object_detection.{name}` is not in this folder. {written}"""

from stillbox_legacy.tutorials.absent import refusing

__getattr__ = refusing({name!r})
'''
_PROTO = '''"""`object_detection.protos.{name}_pb2`, made at run time. {written}"""

import sys

from stillbox_legacy.tutorials.protos import load_module

sys.modules[__name__] = load_module({name!r})
'''
_PACKAGE = f'"""{_WRITTEN}"""\n'
_SETUP = f'''"""{_WRITTEN}"""

import os
import sys

sys.exit(
    "There is nothing to install and nothing to compile. Put this folder on the path of modules: "
    f"export PYTHONPATH={{os.getcwd()}}, or in a notebook "
    f"import sys; sys.path.insert(0, {{os.getcwd()!r}})"
)
'''
_PETS = (
    *("Abyssinian", "american_bulldog", "american_pit_bull_terrier", "basset_hound", "beagle"),
    *("Bengal", "Birman", "Bombay", "boxer", "British_Shorthair", "chihuahua", "Egyptian_Mau"),
    *("english_cocker_spaniel", "english_setter", "german_shorthaired", "great_pyrenees"),
    *("havanese", "japanese_chin", "keeshond", "leonberger", "Maine_Coon", "miniature_pinscher"),
    *("newfoundland", "Persian", "pomeranian", "pug", "Ragdoll", "Russian_Blue", "saint_bernard"),
    *("samoyed", "scottish_terrier", "shiba_inu", "Siamese", "Sphynx"),
    *("staffordshire_bull_terrier", "wheaten_terrier", "yorkshire_terrier"),
)
_PASCAL = (
    *("aeroplane", "bicycle", "bird", "boat", "bottle", "bus", "car", "cat", "chair", "cow"),
    *("diningtable", "dog", "horse", "motorbike", "person", "pottedplant", "sheep", "sofa"),
    *("train", "tvmonitor"),
)


def folder_files() -> Iterator[tuple[Path, str]]:
    """Yields place and content of each file."""
    for package in _PACKAGES:
        yield Path(_API, package, "__init__.py"), _PACKAGE
    for place, words in _PROGRAMS.items():
        yield Path(_API, place), _script(place, words)
    for name in _HELPERS:
        for folder in (".", _API):
            yield Path(folder, f"{name}.py"), _script(f"{name}.py", (name,))
    for place, module in _MODULES.items():
        name = place.removesuffix(".py").replace("/", ".")
        yield Path(_API, place), _MODULE.format(name=name, module=module, written=_WRITTEN)
    for name in REPLACEMENTS:
        absent = Path(_API, *name.split(".")).with_suffix(".py")
        yield absent, _ABSENT.format(name=name, written=_WRITTEN)
    for name in MODULES:
        text = _PROTO.format(name=name, written=_WRITTEN)
        yield Path(_API, "protos", f"{name}_pb2.py"), text
    for generation in ("tf1", "tf2"):
        yield Path(_API, "packages", generation, "setup.py"), _SETUP
    for name, label_map in (
        ("pet", LabelMap.from_names(_PETS)),
        ("pascal", LabelMap.from_names(_PASCAL)),
        ("mscoco", LabelMap.from_file("coco")),
    ):
        yield Path(_API, "data", f"{name}_label_map.pbtxt"), f"# {_WRITTEN}\n{label_map.to_text()}"


def _script(place: str, words: tuple[str, ...]) -> str:
    about = f"`{place}` of the Object Detection API and its tutorials, over stillbox."
    return _SCRIPT.format(about=about, verb=words[0], words=list(words), written=_WRITTEN)


def _refuse_other_file(path: Path, text: str) -> None:
    """Refuses to replace a file of somebody else, such as a program of the original."""
    if not os.path.lexists(path):
        return
    try:
        there = read_untrusted(path, most=_MOST_BYTES).decode(errors="replace")
    except UserError:
        there = ""
    if there != text and _MARK not in there:
        sentence = "this file would be replaced, and `stillbox tutorial` did not write it"
        raise UserError(sentence, where=str(path), fix="move it away, or give another folder")


def write_folder(folder: Path, *, overwrite: bool) -> int:
    """Writes the files and returns their number.

    Args:
        folder: absent or empty.
        overwrite: write into a folder that holds anything too; other files stay.

    Raises:
        UserError: the folder holds something, or a file that would be replaced and is not one of
            these, or cannot be written.
    """
    if folder.exists() and not folder.is_dir():
        raise UserError("this is a file", where=str(folder), fix="give the name of a folder")
    if folder.is_dir() and any(folder.iterdir()) and not overwrite:
        raise UserError(
            "the folder is not empty",
            where=str(folder),
            fix="give another one, or write these files among its own with --overwrite",
        )
    files = list(folder_files())
    for place, text in files:
        _refuse_other_file(folder / place, text)
    for place, text in files:
        write_whole(folder / place, text.encode(), below=folder)
    return len(files)
