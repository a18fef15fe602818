"""Marks of tests that are skipped without a compiler."""

import importlib.util
import os
from pathlib import Path

import pytest

if not Path("/dev/nvidiactl").exists():
    # Before other tests start the devices of this process, as `stillbox check` does it.
    os.environ.setdefault("JAX_SKIP_CUDA_CONSTRAINTS_CHECK", "1")

needs_libtpu = pytest.mark.skipif(
    not importlib.util.find_spec("libtpu"),
    reason="libtpu is not installed: pip install -e '.[tpu]'",
)
needs_cuda_plugin = pytest.mark.skipif(
    not importlib.util.find_spec("jax_cuda13_plugin"),
    reason="the plugin for CUDA is not installed: pip install -e '.[cuda]'",
)
