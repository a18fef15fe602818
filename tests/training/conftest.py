"""A detector so small that a run of a few steps takes seconds."""

import pytest

from stillbox.experiment.resolve import resolve
from stillbox.records.scenes import write_scenes

# 64 x 64 pixels, an eighth of the width, two maps: everything is there, nothing is large.
SMALL = (
    "model.resizer.height=64",
    "model.resizer.width=64",
    "model.backbone.depth_multiplier=0.125",
    "model.backbone.min_depth=8",
    "model.neck.taps=[conv_3_pointwise, conv_5_pointwise]",
    "model.neck.extra_depths=[]",
    "model.anchors.num_layers=2",
    "model.anchors.scales=[0.2, 0.4]",
    "model.head.kernel_size=1",
    "train.batch_size=4",
    "train.steps=4",
    "train.log_every=1",
    "train.checkpoint_every=2",
    "train.evaluate_every=0",
    "train.optimizer.schedule.kind=constant",
    "evaluation.batch_size=4",
    "data.cache_images=false",
)


@pytest.fixture(scope="session")
def scenes(tmp_path_factory):
    folder = tmp_path_factory.mktemp("scenes")
    write_scenes(folder, train=10, val=6, seed=1)
    return folder


@pytest.fixture
def experiment(scenes):
    """Returns the function from overrides to the small experiment."""

    def make(*overrides, evaluated=True):
        paths = [
            f"data.train.paths={scenes}/train.record-*",
            f"data.train.label_map={scenes}/label_map.pbtxt",
            f"data.evaluation.paths={scenes}/val.record-*"
            if evaluated
            else "data.evaluation.paths=[]",
            f"data.evaluation.label_map={scenes}/label_map.pbtxt",
        ]
        return resolve("demo_scenes", [*SMALL, *paths, *overrides]).experiment

    return make
