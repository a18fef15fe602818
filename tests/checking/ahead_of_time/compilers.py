"""Marks of tests that are skipped without a compiler."""

import importlib.util

import pytest

needs_libtpu = pytest.mark.skipif(
    not importlib.util.find_spec("libtpu"),
    reason="libtpu is not installed: pip install 'stillbox[tpu]'",
)
needs_cuda_plugin = pytest.mark.skipif(
    not importlib.util.find_spec("jax_cuda13_plugin"),
    reason="the plugin for CUDA is not installed: pip install 'stillbox[cuda]'",
)
