"""Installs a wheel or an sdist as a user would, and uses it.

`python -m tools.smoke dist/stillbox-0.1.0-py3-none-any.whl python3.11 python3.12` makes a clean
environment with each of these Pythons, installs the file with the versions and hashes of
`constraints.txt`, and there, outside of the source, runs `COMMANDS`. Then it adds stillbox-legacy,
which lies beside the file, and runs `LEGACY_COMMANDS`. With `--here` it runs `COMMANDS` in the
environment of the Python that runs this file.
"""

import argparse
import subprocess
import sys
import tempfile
import time
from pathlib import Path

CONSTRAINTS = Path(__file__).resolve().parents[1] / "constraints.txt"
COMMANDS = (
    "--help",
    "doctor",
    "config retinanet",
    "data scenes --output demo/data --train 8 --val 4",
    "check demo_scenes",
    "train demo_scenes --model-dir model --set train.steps=2 --set train.batch_size=2",
    "evaluate model --output report",
    "predict model scene.png --min-score 0",
    "export model --format stablehlo --output exported",
)
LEGACY_COMMANDS = ("tutorial research", "model_garden --help")


def smoke(python: Path, folder: Path) -> None:
    """Runs `COMMANDS` in an empty folder, with the packages of a Python.

    Raises:
        subprocess.CalledProcessError: a command fails.
    """
    where = "import stillbox; print(stillbox.__version__, stillbox.__path__[0])"
    subprocess.run([python, "-c", where], cwd=folder, check=True)
    draw = "from PIL import Image; Image.new('RGB', (200, 160), 'teal').save('scene.png')"
    subprocess.run([python, "-c", draw], cwd=folder, check=True)
    run(COMMANDS, python, folder)


def run(commands: tuple[str, ...], python: Path, folder: Path) -> None:
    """Runs commands of stillbox in a folder, and prints their times.

    Raises:
        subprocess.CalledProcessError: a command fails.
    """
    for command in commands:
        begin = time.monotonic()
        words = [str(python.with_name("stillbox")), *command.split()]
        subprocess.run(words, cwd=folder, check=True, stdout=subprocess.PIPE)
        print(f"{time.monotonic() - begin:6.1f} s  stillbox {command}", flush=True)


def make_environment(python: str, folder: Path) -> Path:
    """Returns the Python of a new environment."""
    subprocess.run([python, "-m", "venv", folder], check=True)
    return folder / "bin" / "python"


def install(python: Path, package: Path) -> None:
    """Adds a package, and what it needs, to the environment of a Python."""
    uv = [sys.executable, "-m", "uv", "pip", "install", "--quiet", "--python", str(python)]
    pins = ["--constraint", str(CONSTRAINTS), "--build-constraints", str(CONSTRAINTS)]
    subprocess.run([*uv, *pins, str(package.resolve())], check=True)


def smoke_package(python: str, package: Path, place: Path, folder: Path) -> None:
    """Smokes a package in a new environment: alone, and with stillbox-legacy."""
    new = make_environment(python, place)
    install(new, package)
    smoke(new, folder)
    install(new, package.with_name(package.name.replace("stillbox-", "stillbox_legacy-")))
    run(LEGACY_COMMANDS, new, folder)


def main() -> None:
    """Smokes each environment; a failing command ends the program."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("package", type=Path, nargs="?", help="wheel or sdist")
    parser.add_argument("pythons", nargs="*", default=[sys.executable])
    parser.add_argument("--here", action="store_true", help="install nothing")
    arguments = parser.parse_args()
    for python in [sys.executable] if arguments.here else arguments.pythons:
        with tempfile.TemporaryDirectory() as temporary:
            folder = Path(temporary, "empty")
            folder.mkdir()
            if arguments.here:
                smoke(Path(sys.executable), folder)
            else:
                environment = Path(temporary, "environment")
                smoke_package(python, arguments.package, environment, folder)
        print(f"{python}: all passed", flush=True)


if __name__ == "__main__":
    main()
