"""Importing a module of stillbox changes nothing of the process."""

import os
import subprocess
import sys

# The libraries below set variables and filters of their own.
COMPARE = """
import logging, os, pkgutil, signal, warnings
from importlib import import_module, util
from pathlib import Path

import cv2, jax, numpy

def names(folder, package):
    for module in pkgutil.iter_modules([str(folder)], package + "."):
        yield module.name
        if module.ispkg:
            yield from names(folder / module.name.rpartition(".")[2], module.name)

def process():
    return {
        "variables": dict(os.environ),
        "signals": [signal.getsignal(number) for number in signal.valid_signals()],
        "filters": list(warnings.filters),
        "logging": (logging.root.level, list(logging.root.handlers), logging.root.disabled),
        "jax": dict(jax.config.values),
    }

(folder,) = util.find_spec("stillbox").submodule_search_locations
modules = list(names(Path(folder), "stillbox"))
assert "stillbox.boxes.nms" in modules and "stillbox.cli.train" in modules
before = process()
for name in ["stillbox", *modules]:
    import_module(name)
    after = process()
    for part in before:
        assert after[part] == before[part], (name, part)
"""


def test_no_import_changes_variables_signals_filters_or_logging():
    kept = ("PATH", "PYTHONPATH")  # the tests themselves set others
    environment = {name: os.environ[name] for name in kept if name in os.environ}
    done = subprocess.run(
        [sys.executable, "-c", COMPARE], env=environment, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr


def test_an_experiment_is_read_and_checked_without_jax():
    code = """
import sys
from stillbox.experiment.resolve import resolve
resolve("demo_scenes")
sys.exit(str({"jax", "numpy"} & sys.modules.keys() or ""))
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.stderr.strip() == ""
