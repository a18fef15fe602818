"""Where the shared folder of real data lies, for the tests that use it."""

from pathlib import Path

import pytest

SHARED = Path(__file__).resolve().parents[2] / "shared"
needs_shared = pytest.mark.skipif(
    not SHARED.is_dir(), reason="the folder ../shared (real data, weights, goldens) is absent"
)
