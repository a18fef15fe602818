"""`stillbox config`: the resolved experiment, as YAML that is itself a CONFIG."""

import argparse

from stillbox.cli.arguments import add_config as add_arguments
from stillbox.cli.arguments import resolve_config

__all__ = ["add_arguments", "run"]


def run(arguments: argparse.Namespace) -> int:
    """Prints the experiment."""
    from stillbox.experiment.yaml_config import to_yaml

    resolved = resolve_config(arguments, notes=True)
    print(to_yaml(resolved.experiment, resolved.origins), end="")
    return 0
