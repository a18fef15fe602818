"""`stillbox doctor`: versions, devices, memory, and pairs of versions known not to work."""

import argparse


def add_parser(verbs: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Adds the verb."""
    parser = verbs.add_parser(
        "doctor", help="look at versions, devices and memory", description=__doc__
    )
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Prints the examination; 1 if something is wrong."""
    from stillbox.checking.doctor import examine

    examination = examine()
    print(examination.text())
    return 1 if examination.problems else 0
