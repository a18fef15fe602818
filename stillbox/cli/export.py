"""`stillbox export`: a model for other runtimes. It is loaded and compared before it appears."""

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from stillbox.cli.models import add_model, model_arguments
from stillbox.cli.running import say_aside
from stillbox.errors import UserError
from stillbox.exporting.settings import FORMATS, INPUT_TYPES

if TYPE_CHECKING:
    from stillbox.exporting.export import Exported

# The TPU page's word for the same input.
_ALIASES = {"image_bytes": "encoded_image_string_tensor"}


def add_parser(verbs: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Adds the verb."""
    parser = verbs.add_parser("export", help="a model for other runtimes", description=__doc__)
    add_model(parser, "best, latest or a number", exports=False)
    parser.add_argument(
        "--format",
        default="saved_model",
        metavar="FORMAT",
        help=", ".join(FORMATS) + " (default: saved_model)",
    )
    parser.add_argument(
        "--output",
        type=Path,
        metavar="FOLDER",
        help="where the artefact goes (default: DIR/export/FORMAT, or export/FORMAT for a CONFIG)",
    )
    parser.add_argument("--overwrite", action="store_true", help="replace an export that is there")
    _add_input(parser)
    _add_outputs(parser)
    _add_making(parser)
    parser.set_defaults(run=run)


def _add_input(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--input-type",
        default="image_tensor",
        metavar="TYPE",
        help=", ".join((*INPUT_TYPES, *_ALIASES)) + " (default: image_tensor)",
    )
    parser.add_argument(
        "--input-name",
        default="",
        metavar="NAME",
        help="name of the input (default: that of the signature)",
    )
    parser.add_argument(
        "--image-size",
        metavar="HEIGHT,WIDTH",
        help="size of the images that it takes (default: any; tflite, stablehlo: the network "
        "input's)",
    )
    parser.add_argument(
        "--any-size",
        action="store_true",
        help="stablehlo: images of any size; each new size compiles the program anew",
    )
    parser.add_argument(
        "--batch-size", type=int, default=1, metavar="N", help="images at a time; 0: any"
    )


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


def _add_making(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--images",
        nargs="+",
        default=(),
        type=Path,
        metavar="IMAGE",
        help="compare, and calibrate, on these (default: records of the evaluation)",
    )
    parser.add_argument(
        "--platforms",
        default="cpu,cuda,tpu",
        metavar="NAMES",
        help="what a SavedModel or StableHLO is compiled for (default: cpu,cuda,tpu)",
    )
    parser.add_argument(
        "--quantize",
        choices=("none", "int8"),
        default="none",
        help="tflite: int8, calibrated on --images (default: none)",
    )


def run(arguments: argparse.Namespace) -> int:
    """Exports and prints how far the artefact is from the checkpoint."""
    from stillbox.api import export

    changes = {} if arguments.signature is None else {"signature": arguments.signature}
    show_export(
        export(
            **model_arguments(arguments),
            output=arguments.output,
            images=arguments.images,
            overwrite=arguments.overwrite,
            say=say_aside,
            format=arguments.format,
            input_type=_ALIASES.get(arguments.input_type, arguments.input_type),
            input_name=arguments.input_name,
            image_size=image_size(arguments.image_size, "--image-size"),
            any_size=arguments.any_size,
            batch_size=arguments.batch_size,
            max_detections=arguments.max_detections,
            image_info=arguments.image_info,
            normalized_coordinates=arguments.normalized_coordinates,
            float_count=arguments.float_count,
            float_classes=arguments.float_classes,
            platforms=tuple(arguments.platforms.split(",")),
            quantize=arguments.quantize,
            **changes,
        )
    )
    return 0


def show_export(exported: "Exported") -> None:
    """Prints what was written, what it needs, and how it was verified."""
    manifest = exported.manifest
    print(f"{exported.folder}: {manifest.settings.format}")
    for name, about in manifest.files.items():
        print(f"  {name}: {about}")
    for name, version in manifest.needs.items():
        print(f"  needs {name} {version}")
    print(f"  {exported.verification.render()}")


def image_size(text: str | None, where: str) -> tuple[int, int] | None:
    """Reads `HEIGHT,WIDTH`.

    Raises:
        UserError: it is something else.
    """
    if text is None:
        return None
    sides = text.split(",")
    if len(sides) != 2 or not all(side.strip().isdecimal() and int(side) for side in sides):
        raise UserError(f"{text!r} is no size", where=where, fix="for example 640,640")
    return int(sides[0]), int(sides[1])
