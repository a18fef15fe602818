"""What holds for every test: no test writes into the home folder, and programs compile once."""

import contextlib
import os
from functools import partial

# Before jax is imported: its loader of cached programs prints pages about tuning flags.
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import jax
import pytest

from stillbox.cli.main import main
from stillbox.devices.libtpu import silence_libtpu
from stillbox.records.scenes import write_scenes
from tests.small import small_experiment, small_overrides

# Before devices are started: two workers with the extra [tpu] would fight for its lock.
silence_libtpu()


@pytest.fixture(scope="session", autouse=True)
def caches(tmp_path_factory):
    """Sends all caches into the session's folder, the one of compiled programs among them.

    The tests of training start the same small program again and again; compiling it takes most of
    their time.
    """
    folder = tmp_path_factory.mktemp("cache")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(folder))
        patch.setenv("STILLBOX_CACHE", str(folder / "stillbox"))
        jax.config.update("jax_compilation_cache_dir", str(folder / "stillbox" / "xla"))
        jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.5)
        yield folder


@pytest.fixture(scope="session")
def scenes(tmp_path_factory):
    """Ten scenes to train on and six to score; tests leave them as they are."""
    folder = tmp_path_factory.mktemp("scenes")
    write_scenes(folder, train=10, val=6, seed=1)
    return folder


@pytest.fixture(scope="session")
def documented_folder(tmp_path_factory, caches):
    """The folder in which commands of the documentation run; tests work in copies of it."""
    from tests.documented_folder import prepare

    folder = tmp_path_factory.mktemp("documented")
    with contextlib.chdir(folder):
        prepare()
    return folder


@pytest.fixture
def experiment(scenes):
    """The function from overrides to the small experiment."""
    return partial(small_experiment, scenes)


@pytest.fixture(scope="session")
def trained_once(scenes, tmp_path_factory):
    """A model directory with checkpoints of steps 1 and 2; tests leave it as it is."""
    directory = tmp_path_factory.mktemp("trained") / "model"
    # So few steps leave low scores, which differ only after a large rate.
    overrides = small_overrides(
        scenes,
        "train.steps=2",
        "train.checkpoint_every=1",
        "train.optimizer.schedule.learning_rate=0.1",
        "model.postprocessing.nms.score_threshold=0.001",
    )
    words = [word for override in overrides for word in ("--set", override)]
    assert main(["train", "demo_scenes", "--model-dir", str(directory), *words]) == 0
    return directory
