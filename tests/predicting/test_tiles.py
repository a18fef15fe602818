"""A model with tiles: evaluation, prediction, exports and the server find the same."""

import pytest

from stillbox.evaluation.tiling import Tiling

TILES = {"side": 90, "overlap": 0.3, "whole_image": True}
OWN = Tiling(tile=90, overlap=0.3)


@pytest.fixture
def model_directory(trained):
    """The trained model with tiles in its experiment, 10 to 20 for a scene."""
    path = trained / "experiment.yaml"
    for file in (path, *trained.glob("checkpoints/*/experiment.yaml")):
        text = file.read_text()
        assert "\n  tiles: null\n" in text
        tiles = "".join(f"\n    {name}: {value}" for name, value in TILES.items())
        file.write_text(text.replace("\n  tiles: null\n", f"\n  tiles:{tiles.lower()}\n"))
    return trained
