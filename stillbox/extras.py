"""Imports packages of extras, and gives the command that installs an extra."""

import importlib
import json
import platform
import shlex
import shutil
import sys
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType
from typing import Any
from urllib.parse import urlsplit
from urllib.request import url2pathname

from stillbox import __version__
from stillbox.errors import UserError

_SOURCE = Path(__file__).resolve().parents[1]
_LEGACY = "packages/legacy"


class NotInstalledError(UserError):
    """A package of an extra is not installed; the remedy is the command that installs it."""


# Packages of extras that have no wheels for some systems and Pythons, and where they have them.
_HOMES = {
    "jax_cuda13_plugin": "Linux, which Windows runs as WSL2",
    "libtpu": "Linux on x86-64",
    "litert_converter": "Linux on x86-64 and macOS on arm64",
    "tensorflow": "Python 3.11 to 3.13",
}


def homes(module: str) -> str:
    """Returns where a package of an extra can be installed; empty if it can be here."""
    place = platform.system(), platform.machine()
    here = {
        "jax_cuda13_plugin": place[0] == "Linux",
        "libtpu": place == ("Linux", "x86_64"),
        "litert_converter": place in (("Linux", "x86_64"), ("Darwin", "arm64")),
        "tensorflow": sys.version_info < (3, 14),
    }
    return "" if here.get(module, True) else _HOMES[module]


def not_installed(module: str, extra: str) -> NotInstalledError:
    """Returns the error for a module of an extra."""
    package = module.replace("_", "-")
    if elsewhere := homes(module):
        here = f"{platform.system()} on {platform.machine()}, Python {platform.python_version()}"
        fix = f"it is there for {elsewhere}"
        return NotInstalledError(f"there is no {package} for {here}", fix=fix)
    return NotInstalledError(f"{package} is not installed", fix=install_command(extra))


def import_extra(module: str, extra: str) -> ModuleType:
    """Returns a module of an extra.

    Raises:
        NotInstalledError: it is not installed.
        UserError: it is, and cannot be imported.
    """
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        raise not_installed(module, extra) from error
    except ImportError as error:
        problem = f"{module} is installed and cannot be imported: {error}"
        fix = f"`{shlex.quote(sys.executable)} -c 'import {module}'` shows where it fails"
        raise UserError(problem, fix=fix) from error


def install_command(extra: str) -> str:
    """Returns the command that adds an extra to this installation, from where it came.

    A bare `stillbox[tpu]` would ask an index of packages for the name, where another project may
    have taken it.
    """
    if (_SOURCE / "pyproject.toml").is_file():
        return f"{_pip_install()} -e {shlex.quote(f'{_SOURCE}[{extra}]')}"
    return f"{_pip_install()} {shlex.quote(_requirement(extra))}"


def install_legacy_command() -> str:
    """Returns the command that installs stillbox-legacy from where stillbox came."""
    folder = _SOURCE / _LEGACY
    if (folder / "pyproject.toml").is_file():
        return f"{_pip_install()} -e {shlex.quote(str(folder))}"
    return f"{_pip_install()} {shlex.quote(_legacy_requirement())}"


def _legacy_requirement() -> str:
    """Returns what pip installs: the folder or address, or the wheel beside stillbox's."""
    origin = _origin()
    url = origin.get("url", "")
    if vcs := origin.get("vcs_info"):
        address = f"{vcs['vcs']}+{url}@{vcs['commit_id']}"
        return f"stillbox-legacy @ {address}#subdirectory={_LEGACY}"
    if (local := Path(url2pathname(urlsplit(url).path))).is_dir() and url.startswith("file:"):
        return str(local / _LEGACY)
    name = f"stillbox_legacy-{__version__}-py3-none-any.whl"
    return str(local.with_name(name)) if url.startswith("file:") else f"./{name}"


def install_package_command(requirement: str) -> str:
    """Returns the command that adds a package of PyPI to this environment."""
    return f"{_pip_install()} {shlex.quote(requirement)}"


def _pip_install() -> str:
    """Returns the command for this environment; the first pip of PATH may be another's."""
    pip = shutil.which("pip")
    if pip and Path(pip).parent == Path(sys.executable).parent:
        return "pip install"
    python = shlex.quote(sys.executable)
    return f"{python} -m pip install" if find_spec("pip") else f"uv pip install --python {python}"


def _requirement(extra: str) -> str:
    """Returns what pip installs: the wheel or folder, the address, or this version.

    pip keeps an installed package of the version that is asked for, so that the last asks no index
    for stillbox.
    """
    origin = _origin()
    url = origin.get("url", "")
    if url.startswith("file:") and (local := Path(url2pathname(urlsplit(url).path))).exists():
        return f"{local}[{extra}]"
    if url and not url.startswith("file:"):
        if vcs := origin.get("vcs_info"):
            url = f"{vcs['vcs']}+{url}@{vcs['commit_id']}"
        return f"stillbox[{extra}] @ {url}"
    return f"stillbox[{extra}]=={__version__}"


def _origin() -> dict[str, Any]:
    """Returns `direct_url.json` of PEP 610; empty for a package of an index."""
    try:
        text = metadata.distribution("stillbox").read_text("direct_url.json")
    except metadata.PackageNotFoundError:
        text = None
    return json.loads(text) if text else {}
