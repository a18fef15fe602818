import pytest


@pytest.fixture(autouse=True)
def indexes_in_sight(cache_folder):
    """Indexes of read-only folders and decompressed copies go where a test can see them."""
