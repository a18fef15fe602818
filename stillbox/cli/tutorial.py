"""`stillbox tutorial`: write a folder in which tutorials of the Object Detection API run.

It takes the place of `models/research`: scripts under the names that people run, and modules for
`import object_detection`. Put it on PYTHONPATH for the latter.
"""

import argparse
import shlex
import sys
from pathlib import Path


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the verb's arguments."""
    parser.add_argument("folder", type=Path, metavar="DIR", help="folder, such as models/research")
    parser.add_argument(
        "--overwrite", action="store_true", help="write into a folder that is not empty"
    )


def run(arguments: argparse.Namespace) -> int:
    """Writes the folder and prints what to do with it."""
    from stillbox.tutorials.folder import write_folder

    folder: Path = arguments.folder
    count = write_folder(folder, overwrite=arguments.overwrite)
    test = folder / "object_detection" / "builders" / "model_builder_tf2_test.py"
    print(f"{folder}: {count} files in place of models/research")
    print(f"export PYTHONPATH={shlex.quote(str(folder.resolve()))}")
    print(f"python {shlex.quote(str(test))}")
    return 0


def add_model_builder_tf2_test(parser: argparse.ArgumentParser) -> None:
    """`model_builder_tf2_test.py`: checks the installation; exit code 1 if something is wrong."""


def run_model_builder_tf2_test(arguments: argparse.Namespace) -> int:
    """Runs the checks."""
    from stillbox.devices.setup import prepare_process
    from stillbox.tutorials.installation import check_installation

    prepare_process()
    return 0 if check_installation(sys.stderr) else 1


add_model_builder_tf1_test, run_model_builder_tf1_test = (
    add_model_builder_tf2_test,
    run_model_builder_tf2_test,
)
