"""`stillbox data augmentations`: a picture of augmented images and boxes."""

import argparse
from pathlib import Path

from stillbox.cli.arguments import (
    add_config,
    add_option,
    add_records,
    resolve_config,
    with_records,
)
from stillbox.errors import UserError


def add_augmentations(parser: argparse.ArgumentParser) -> None:
    """Adds the arguments of `data augmentations`."""
    add_config(parser)
    add_records(parser)
    about = "the picture, .png or .jpg"
    add_option(parser, "--output", Path("augmentations.png"), about, "FILE")
    add_option(parser, "--images", 4, "number of images")
    shown = parser.add_mutually_exclusive_group()
    add_option(shown, "--epochs", 5, "number of epochs, from the first")
    shown.add_argument(
        "--operations",
        type=float,
        metavar="LEVEL",
        help="show each operation of AutoAugment at this level, 0 to 10, instead of the config's "
        "augmentations",
    )


def run_augmentations(arguments: argparse.Namespace) -> int:
    """Writes the picture."""
    from stillbox.checking.augmentation_sheet import epochs_sheet, operations_sheet
    from stillbox.evaluation.pictures import save_picture
    from stillbox.experiment.schema import AutoAugment
    from stillbox.inputs.dataset import open_dataset

    _check_ranges(arguments)
    experiment = with_records(resolve_config(arguments).experiment, arguments)
    data, steps = experiment.data, experiment.train.augmentations
    dataset = open_dataset(data, data.train, experiment.model)
    if arguments.operations is not None:
        chosen = next((step for step in steps if isinstance(step, AutoAugment)), AutoAugment())
        picture = operations_sheet(
            dataset,
            seed=data.seed,
            images=arguments.images,
            level=arguments.operations,
            contrast=chosen.contrast,
        )
    else:
        picture = epochs_sheet(
            dataset, steps, seed=data.seed, images=arguments.images, epochs=arguments.epochs
        )
    print(f"picture: {save_picture(picture, arguments.output)}")
    return 0


def _check_ranges(arguments: argparse.Namespace) -> None:
    for option in ("images", "epochs"):
        if getattr(arguments, option) < 1:
            raise UserError("there is nothing to show", where=f"--{option}", fix="give 1 or more")
    level = arguments.operations
    if level is not None and not 0 <= level <= 10:
        raise UserError(f"there is no level {level:g}", where="--operations", fix="give 0 to 10")
