"""`stillbox doctor`: versions, devices, memory, and pairs of versions known not to work."""

import argparse


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds nothing: the verb has no arguments."""


def run(arguments: argparse.Namespace) -> int:
    """Prints the examination; returns 1 if something is wrong."""
    from stillbox.checking.doctor import examine

    examination = examine()
    print(examination.text())
    return 1 if examination.problems else 0
