"""Records that take the place of a config's own."""

import argparse
from dataclasses import replace

from stillbox.experiment.schema import Experiment


def add_records(parser: argparse.ArgumentParser) -> None:
    """Adds RECORDS and --label-map."""
    parser.add_argument(
        "records",
        nargs="*",
        metavar="RECORDS",
        help="TFRecord files or patterns (default: the config's own training records)",
    )
    parser.add_argument(
        "--label-map",
        help="label map of RECORDS: a .pbtxt file, or coco (default: the config's)",
    )


def with_records(experiment: Experiment, arguments: argparse.Namespace) -> Experiment:
    """Returns the experiment with RECORDS and --label-map as its training records."""
    train = experiment.data.train
    train = replace(
        train,
        paths=tuple(arguments.records) or train.paths,
        label_map=arguments.label_map or train.label_map,
    )
    return replace(experiment, data=replace(experiment.data, train=train))
