"""Fixtures of all tests: caches outside the home folder, and small data, experiments and models."""

import contextlib
import os
import shutil
import time
from functools import partial
from pathlib import Path

# Before jax is imported: its loader of cached programs prints pages about tuning flags.
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
# Tests compile the same small programs many times, in this process and in those that they start.
os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", "0.02")
# Otherwise the folder's name is part of the keys, and another session finds nothing.
os.environ.setdefault("JAX_PERSISTENT_CACHE_ENABLE_XLA_CACHES", "none")

import jax
import pytest

from stillbox.cli.main import main
from stillbox.devices.libtpu import silence_libtpu
from stillbox.records.scenes import write_scenes
from tests.small import small_experiment, small_overrides

# Before devices are started: two workers with the extra [tpu] would fight for its lock.
silence_libtpu()


KEPT_SECONDS = 14 * 24 * 3600


@pytest.fixture(scope="session", autouse=True)
def caches(tmp_path_factory, request):
    """Moves all caches into the session's folder; compiled programs are kept between sessions.

    JAX writes entries in place, so processes must not share a folder while they run. Each worker
    starts with a copy of the kept programs and adds its own to them at the end of the session.
    """
    folder = tmp_path_factory.mktemp("cache")
    programs = folder / "stillbox" / "xla"
    kept = request.config.cache.mkdir("xla")
    copy_missing(kept, programs)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(folder))
        patch.setenv("STILLBOX_CACHE", str(folder / "stillbox"))
        jax.config.update("jax_compilation_cache_dir", str(programs))
        yield folder
    # After a failure the folder may hold half an entry of a process that was killed.
    if not request.session.testsfailed:
        copy_missing(programs, kept)
    for entry in kept.iterdir():
        with contextlib.suppress(FileNotFoundError):
            if time.time() - entry.stat().st_mtime > KEPT_SECONDS:
                entry.unlink()


def copy_missing(source: Path, target: Path) -> None:
    """Copies cache entries that `target` lacks; each appears complete, by a rename."""
    target.mkdir(parents=True, exist_ok=True)
    for entry in source.glob("*-cache"):
        if not (target / entry.name).exists():
            partial_copy = target / f"{entry.name}.{os.getpid()}"
            shutil.copyfile(entry, partial_copy)
            partial_copy.replace(target / entry.name)


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
