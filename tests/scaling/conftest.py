"""A predictor with fresh weights, some photographs, and Ray with two processors."""

import secrets
import shutil

import pytest

from stillbox.checkpoints.trained import TrainedModel
from stillbox.models.build import build_detector
from stillbox.models.variables import split_detector
from stillbox.predicting.checkpoint_backend import CheckpointBackend
from stillbox.predicting.predictor import Predictor
from stillbox.records.label_map import LabelMap
from tests.small import small_experiment


@pytest.fixture(scope="session")
def predictor(scenes):
    # Fresh weights score low; with a threshold they would find nothing.
    experiment = small_experiment(scenes, "model.postprocessing.nms.score_threshold=0")
    _, params, stats = split_detector(build_detector(experiment.model))
    model = TrainedModel(
        experiment=experiment,
        label_map=LabelMap.from_file(scenes / "label_map.pbtxt"),
        params=params,
        stats=stats,
        source="fresh weights",
    )
    return Predictor(CheckpointBackend(model), batch_size=2)


@pytest.fixture
def photos(scenes, tmp_path):
    """A folder of ten images in two depths, with two that are none and a text file."""
    folder = tmp_path / "photos"
    shutil.copytree(scenes / "images" / "train", folder / "deep")
    (folder / "broken.jpg").write_bytes(b"no image")
    (folder / "empty.png").touch()
    (folder / "notes.txt").write_text("no image, and not called one")
    return folder


@pytest.fixture(scope="session")
def ray_cluster(tmp_path_factory, caches):
    """Starts Ray with two processors, once."""
    ray = pytest.importorskip("ray")
    # Otherwise Ray writes a token into the home folder.
    token = tmp_path_factory.mktemp("ray") / "token"
    token.write_text(secrets.token_hex(32))
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RAY_AUTH_TOKEN_PATH", str(token))
        patch.setenv("RAY_USAGE_STATS_ENABLED", "0")
        context = ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False)
        yield context.address_info["address"]
        ray.shutdown()
