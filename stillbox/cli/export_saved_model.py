"""`stillbox export_saved_model`: the export of "Object Detection Models on TPU" with its flags.

`stillbox export DIR --signature tpu` does the same with stillbox's own options.
"""

import argparse
from pathlib import Path
from typing import Any

from stillbox.cli.arguments import add_option, add_overrides, add_switch, note, show_remarks
from stillbox.cli.export import image_size, show_export
from stillbox.devices.announcing import say_aside
from stillbox.errors import UserError
from stillbox.experiment.params_dict import read_params
from stillbox.experiment.resolve import resolve_reading

_INPUT_TYPES = {
    "image_bytes": "encoded_image_string_tensor",
    "image_tensor": "image_tensor",
    "raw_image_tensor": "raw_image_tensor",
    "tf_example": "tf_example",
}
_PARAMS = "params.yaml"


def add_export_saved_model(parser: argparse.ArgumentParser) -> None:
    """`stillbox export_saved_model`: the export of "Object Detection Models on TPU" with its flags.

    `stillbox export DIR --signature tpu` does the same with stillbox's own options.
    """
    _add_model(parser)
    _add_input(parser)
    add_switch(parser, "output_image_info", "the output image_info (default: true)")
    add_switch(parser, "output_normalized_coordinates", "boxes in 0..1 of the original image")
    add_switch(parser, "cast_num_detections_to_float", "num_detections as float32")
    add_switch(parser, "cast_detection_classes_to_float", "detection_classes as float32")
    parser.set_defaults(output_image_info=True)


def _add_model(parser: argparse.ArgumentParser) -> None:
    about = "model whose defaults the parameters have"
    add_option(parser, "--model", "retinanet", about, "NAME")
    parser.add_argument(
        "--export_dir", type=Path, required=True, metavar="DIR", help="folder of the SavedModel"
    )
    parser.add_argument(
        "--checkpoint_path",
        required=True,
        metavar="PATH",
        help="a model directory, or a TF1 checkpoint",
    )
    parser.add_argument("--config_file", default="", metavar="YAML", help="parameters")
    parser.add_argument(
        "--params_override", default="", metavar="TEXT", help="parameters that differ from those"
    )
    add_switch(parser, "use_tpu", "accepted: the artefact runs on CPU, GPU and TPU in any case")
    add_switch(parser, "override_export_dir", "replace an existing export")
    add_overrides(parser)


def _add_input(parser: argparse.ArgumentParser) -> None:
    add_option(parser, "--batch_size", 1, "images at a time; -1: any")
    parser.add_argument("--input_type", choices=tuple(_INPUT_TYPES), default="image_bytes")
    about = "name of the input"
    add_option(parser, "--input_name", "input", about, "NAME")
    about = "size of the network input"
    add_option(parser, "--input_image_size", "640,640", about, "HEIGHT,WIDTH")


def run_export_saved_model(arguments: argparse.Namespace) -> int:
    """Exports a SavedModel into exactly --export_dir."""
    from stillbox.api import export

    if arguments.use_tpu:
        note("--use_tpu: the artefact runs on CPU, GPU and TPU in any case")
    size = image_size(arguments.input_image_size, "--input_image_size")
    assert size is not None  # it has a default
    show_export(
        export(
            **_model(arguments, size),
            output=arguments.export_dir,
            overwrite=arguments.override_export_dir,
            say=say_aside,
            format="saved_model",
            signature="tpu",
            input_type=_INPUT_TYPES[arguments.input_type],
            input_name=arguments.input_name,
            image_size=size if arguments.input_type == "image_tensor" else None,
            batch_size=max(arguments.batch_size, 0),
            image_info=arguments.output_image_info,
            normalized_coordinates=arguments.output_normalized_coordinates,
            float_count=arguments.cast_num_detections_to_float,
            float_classes=arguments.cast_detection_classes_to_float,
        )
    )
    return 0


def _model(arguments: argparse.Namespace, size: tuple[int, int]) -> dict[str, Any]:
    """Returns the arguments of `stillbox.export` that select a model."""
    overrides = [
        f"model.resizer.height={size[0]}",
        f"model.resizer.width={size[1]}",
        *arguments.overrides,
    ]
    directory = Path(arguments.checkpoint_path)
    own = directory / "experiment.yaml"
    if own.is_file() and not arguments.config_file and not arguments.params_override:
        return {"source": directory, "overrides": overrides}
    if own.is_file() and not arguments.config_file and not (directory / _PARAMS).is_file():
        raise UserError(
            "this model directory was not trained from a parameter dictionary",
            where="--params_override",
            fix="leave it out and write --set FIELD=VALUE",
        )
    reading = read_params(
        config_file=arguments.config_file or (str(directory / _PARAMS) if own.is_file() else ""),
        params_override=arguments.params_override,
        model=arguments.model,
    )
    source = arguments.config_file or "--params_override"
    resolved = resolve_reading(reading, overrides, source)
    show_remarks(resolved, resolved.warnings)
    return {"source": resolved.experiment, "weights": arguments.checkpoint_path}
