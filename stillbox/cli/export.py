"""Models as files: for other runtimes, or one small file of stillbox's own."""

import argparse
import textwrap
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING, get_args

from stillbox import numerals
from stillbox.cli.arguments import (
    add_bool,
    add_images,
    add_imports,
    add_option,
    parse_step,
    say_next,
)
from stillbox.cli.running import add_model, model_arguments
from stillbox.devices.announcing import say_aside
from stillbox.errors import UserError
from stillbox.exporting.manifest import EXPIRES
from stillbox.exporting.settings import (
    FORMATS,
    FRIGATE,
    INPUT_TYPES,
    ExportSettings,
    Postprocess,
    Quantize,
)
from stillbox.untrusted import read_untrusted

if TYPE_CHECKING:
    from stillbox.exporting.export import Exported


# Of the lines for another program, which are a few.
_MOST_CONFIG_BYTES = 2**16
# The same inputs in "Object Detection Models on TPU" and by their types.
_ALIASES = {
    "image_bytes": "encoded_image_string_tensor",
    "uint8": "image_tensor",
    "float32": "float_image_tensor",
}


def add_export(parser: argparse.ArgumentParser) -> None:
    """`stillbox export`: write a model for other runtimes, and compare it with its checkpoint."""
    add_model(parser, "best, latest or a number", exports=False)
    add_option(parser, "--format", "saved_model", ", ".join(FORMATS), "FORMAT")
    about = "folder of the artefact (default: DIR/export/FORMAT, or export/FORMAT for a CONFIG)"
    parser.add_argument("--output", type=Path, metavar="FOLDER", help=about)
    add_bool(parser, "--overwrite", "replace an existing export")
    about = "onnx: add the network alone, its decoding in numpy and images to calibrate on"
    add_bool(parser, "--raw", about)
    _add_input(parser)
    _add_outputs(parser)
    _add_conversion(parser)


def _add_input(parser: argparse.ArgumentParser) -> None:
    about = f"{', '.join((*INPUT_TYPES, *_ALIASES))} (default: image_tensor)"
    parser.add_argument(
        "--input-type", "--input", default="image_tensor", metavar="TYPE", help=about
    )
    about = "name of the input (default: that of the signature)"
    parser.add_argument("--input-name", default="", metavar="NAME", help=about)
    about = (
        "size of the input images (default: any; tflite, stablehlo: the network input's, if "
        "the resizer keeps it)"
    )
    parser.add_argument("--image-size", metavar="HEIGHT,WIDTH", help=about)
    about = "stablehlo: images of any size; each new size compiles the program anew"
    add_bool(parser, "--any-size", about)
    add_option(parser, "--batch-size", 1, "images at a time; 0: any")


def _add_outputs(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--signature",
        choices=("detection_api", "tpu"),
        help="names and units of the outputs (default: export.signature of the experiment)",
    )
    parser.add_argument(
        "--max-detections", type=int, metavar="K", help="(default: that of the experiment)"
    )
    for name, default, about in (
        ("normalized-coordinates", False, "boxes in 0..1 of the original image"),
        ("image-info", True, "the output image_info"),
        ("float-count", False, "num_detections as float32"),
        ("float-classes", False, "detection_classes as float32"),
    ):
        parser.add_argument(
            f"--{name}",
            action=argparse.BooleanOptionalAction,
            default=default,
            help=f"signature tpu: {about} (default: {'yes' if default else 'no'})",
        )


def _add_conversion(parser: argparse.ArgumentParser) -> None:
    add_images(parser, "compare, and calibrate, on these (default: records of the evaluation)")
    about = "platforms of a SavedModel or StableHLO"
    add_option(parser, "--platforms", "cpu,cuda,tpu", about, "NAMES")
    about = (
        "tflite: int8, calibrated on --images; dynamic, 8 bit weights; float16, half weights "
        "(default: none)"
    )
    parser.add_argument("--quantize", choices=get_args(Quantize), default="none", help=about)
    parser.add_argument(
        "--postprocess",
        choices=get_args(Postprocess),
        default="built_in",
        help="tflite: detection_op ends in TFLite_Detection_PostProcess, for Coral, Frigate and "
        "mobile clients of the Object Detection API; onnx: frigate_ssd and frigate_yolonas have "
        "the output of Frigate's OpenVINO and ONNX detectors (default: built_in)",
    )


def run_export(arguments: argparse.Namespace) -> int:
    """Exports, and prints the difference of the artefact from the checkpoint."""
    from stillbox.api import export

    settings = {
        field.name: value
        for field in fields(ExportSettings)
        if (value := getattr(arguments, field.name, None)) is not None
    }
    settings["input_type"] = _ALIASES.get(arguments.input_type, arguments.input_type)
    settings["image_size"] = image_size(arguments.image_size, "--image-size")
    settings["platforms"] = tuple(arguments.platforms.split(","))
    exported = export(
        **model_arguments(arguments),
        output=arguments.output,
        images=arguments.images,
        overwrite=arguments.overwrite,
        say=say_aside,
        **settings,
    )
    show_export(exported)
    say_next("serve", exported.folder)
    return 0


def show_export(exported: "Exported") -> None:
    """Prints the files of an artefact, its requirements and its verification."""
    manifest = exported.manifest
    print(f"{exported.folder}: {manifest.settings.format}")
    for name, about in manifest.files.items():
        print(f"  {name}: {about}")
    for name, version in manifest.needs.items():
        print(f"  {name} {version}" if name == EXPIRES else f"  needs {name} {version}")
    if manifest.settings.format == "tflite" and manifest.settings.postprocess == "built_in":
        print("  in a browser: docs/browser.md has a page that runs it")
    if manifest.settings.postprocess in FRIGATE:
        from stillbox.exporting.onnx.frigate import CONFIG

        lines = read_untrusted(exported.folder / CONFIG, most=_MOST_CONFIG_BYTES).decode()
        print(textwrap.indent(lines, "    "), end="")
    print(f"  {exported.verification.render()}")


def image_size(text: str | None, where: str) -> tuple[int, int] | None:
    """Parses `HEIGHT,WIDTH`.

    Raises:
        UserError: the text has another form.
    """
    if text is None:
        return None
    match [numerals.count(side) for side in text.split(",")]:
        case [int(height), int(width)] if height and width:
            return height, width
    raise UserError(f"{text!r} is no size", where=where, fix="for example 640,640")


def add_pack(parser: argparse.ArgumentParser) -> None:
    """`stillbox pack`: write a trained model into one small file or folder that every verb reads.

    It holds the weights that evaluation uses, the experiment and the label map, and no state of the
    optimizer and no records.
    """
    parser.add_argument(
        "directory", type=Path, metavar="DIR", help="a model directory, or one of its checkpoints"
    )
    about = "a new file whose name ends in .stillbox, or a new folder"
    parser.add_argument("target", type=Path, metavar="TARGET", help=about)
    about = "checkpoint of DIR: best, latest or a number (default: %(default)s)"
    parser.add_argument("--step", default="best", help=about)
    add_bool(parser, "--overwrite", "replace the target")
    add_imports(parser)


def run_pack(arguments: argparse.Namespace) -> int:
    """Packs the model and prints its size."""
    from stillbox.checkpoints.packed import pack_model

    step = parse_step(arguments.step)
    packed = pack_model(
        arguments.directory, arguments.target, step=step, overwrite=arguments.overwrite
    )
    print(packed.render())
    return 0
