"""Tests that need the compiler of TPUs skip, saying so, where it is not installed."""

import importlib.util

import pytest

needs_libtpu = pytest.mark.skipif(
    not importlib.util.find_spec("libtpu"),
    reason="libtpu is not installed: pip install 'stillbox[tpu]'",
)
