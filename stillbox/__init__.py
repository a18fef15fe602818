"""stillbox: anchor-based object detectors as fixed-shape XLA programs.

The names below are imported at their first use; importing stillbox starts no device.
"""

import os
from importlib import import_module

__version__ = "0.1.0"

_NAMES = {
    "BenchmarkSettings": "stillbox.exporting.benchmarking.subjects",
    "Detection": "stillbox.predicting.detections",
    "Detections": "stillbox.predicting.detections",
    "Experiment": "stillbox.experiment.schema",
    "ExportSettings": "stillbox.exporting.settings",
    "Predictor": "stillbox.predicting.predictor",
    "Selection": "stillbox.predicting.selection",
    "Tiling": "stillbox.evaluation.tiling",
    "UserError": "stillbox.errors",
    "audit": "stillbox.auditing",
    "benchmark": "stillbox.exporting.benchmarking.runner",
    "changed": "stillbox.experiment.resolve",
    "compare": "stillbox.comparing",
    "evaluate": "stillbox.api",
    "export": "stillbox.api",
    "import_parts": "stillbox.experiment.imports",
    "load": "stillbox.api",
    "read_experiment": "stillbox.experiment.resolve",
    "train": "stillbox.api",
}

__all__ = ["__version__", *_NAMES]


def __getattr__(name: str) -> object:
    # import_module, since an import statement would make this package depend on its upper layers.
    if name not in _NAMES:
        raise AttributeError(f"module 'stillbox' has no attribute {name!r}")
    # Set before jax is imported: its loader of cached programs prints pages of tuning flags.
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    return getattr(import_module(_NAMES[name]), name)


def __dir__() -> list[str]:
    return sorted(__all__)
