"""`stillbox data augmentations`: pictures of what training makes of images and boxes."""

import argparse
from pathlib import Path

from stillbox.cli.arguments import add_config, resolve_config
from stillbox.cli.records import add_records, with_records
from stillbox.errors import UserError


def add_verb(verbs: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Adds the verb to `stillbox data`."""
    parser = verbs.add_parser(
        "augmentations", help="look at augmented images and boxes", description=__doc__
    )
    add_config(parser)
    add_records(parser)
    parser.add_argument(
        "--output",
        type=Path,
        default=Path("augmentations.png"),
        metavar="FILE",
        help="the picture, .png or .jpg (default: augmentations.png)",
    )
    parser.add_argument("--images", type=int, default=4, help="how many images (default: 4)")
    shown = parser.add_mutually_exclusive_group()
    shown.add_argument(
        "--epochs", type=int, default=5, help="of how many epochs (default: the first 5)"
    )
    shown.add_argument(
        "--operations",
        type=float,
        metavar="LEVEL",
        help="show each operation of AutoAugment at this level, 0 to 10, instead of the config's "
        "augmentations",
    )
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Writes the picture."""
    from stillbox.checking.augmentation_sheet import epochs_sheet, operations_sheet
    from stillbox.evaluation.pictures import save_picture
    from stillbox.experiment.schema import AutoAugment
    from stillbox.inputs.dataset import open_dataset

    _refuse_what_is_out_of_range(arguments)
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


def _refuse_what_is_out_of_range(arguments: argparse.Namespace) -> None:
    for option in ("images", "epochs"):
        if getattr(arguments, option) < 1:
            raise UserError("there is nothing to show", where=f"--{option}", fix="give 1 or more")
    level = arguments.operations
    if level is not None and not 0 <= level <= 10:
        raise UserError(f"there is no level {level:g}", where="--operations", fix="give 0 to 10")
