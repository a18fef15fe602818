"""Tests that need a compiler skip, saying so, where it is not installed."""

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
