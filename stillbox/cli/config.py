"""`stillbox config`: the resolved experiment, as YAML that is itself a CONFIG."""

import argparse

from stillbox.cli.arguments import add_config, resolve_config


def add_parser(verbs: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Adds the verb."""
    parser = verbs.add_parser(
        "config", help="print the resolved experiment as YAML", description=__doc__
    )
    add_config(parser)
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Prints the experiment; a config that cannot be used has raised by then."""
    from stillbox.experiment.yaml_config import to_yaml

    resolved = resolve_config(arguments)
    print(to_yaml(resolved.experiment, resolved.origins), end="")
    return 0
