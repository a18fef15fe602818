"""The cache of compiled programs, memory of the process, and the versions in a checkpoint."""

import gc
import os
from dataclasses import replace
from pathlib import Path

import jax
import pytest
from jax.experimental.compilation_cache import compilation_cache

from stillbox import __version__
from stillbox.devices.mesh import build_mesh
from stillbox.devices.setup import (
    collection_paused,
    compilation_cache_folder,
    prune,
    use_cache_of,
    use_compilation_cache,
    versions,
)
from stillbox.evaluation.program import predict_program
from stillbox.experiment.resolve import resolve
from stillbox.experiment.schema import Devices
from stillbox.training.program import train_program


@pytest.fixture
def settings():
    """Puts back what a test changes."""
    names = ("jax_compilation_cache_dir", "jax_persistent_cache_min_compile_time_secs")
    before = {name: getattr(jax.config, name) for name in names}
    yield
    for name, value in before.items():
        jax.config.update(name, value)
    compilation_cache.reset_cache()


def test_the_cache_folder_follows_the_environment(monkeypatch):
    monkeypatch.setenv("STILLBOX_CACHE", "/a")
    monkeypatch.setenv("XDG_CACHE_HOME", "/b")
    assert compilation_cache_folder() == Path("/a/xla")
    monkeypatch.delenv("STILLBOX_CACHE")
    assert compilation_cache_folder() == Path("/b/stillbox/xla")
    monkeypatch.delenv("XDG_CACHE_HOME")
    assert compilation_cache_folder() == Path.home() / ".cache/stillbox/xla"


def test_the_cache_folder_is_created_and_used(monkeypatch, tmp_path, settings):
    monkeypatch.setenv("STILLBOX_CACHE", str(tmp_path / "new"))
    use_compilation_cache()
    assert (tmp_path / "new/xla").is_dir()
    assert jax.config.jax_compilation_cache_dir == str(tmp_path / "new/xla")


@pytest.mark.parametrize(("given", "expected"), [(None, 0.3), ("0.1", 0.25)])
def test_programs_that_compile_for_long_are_cached_unless_the_environment_says_otherwise(
    given, expected, monkeypatch, tmp_path, settings
):
    name = "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS"
    monkeypatch.setenv("STILLBOX_CACHE", str(tmp_path))
    monkeypatch.delenv(name, raising=False)
    if given:
        monkeypatch.setenv(name, given)
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.25)
    use_compilation_cache()
    assert jax.config.jax_persistent_cache_min_compile_time_secs == expected


def test_a_cache_folder_that_cannot_be_created_is_not_used(monkeypatch, tmp_path, settings):
    (tmp_path / "file").write_text("")
    before = jax.config.jax_compilation_cache_dir
    monkeypatch.setenv("STILLBOX_CACHE", str(tmp_path / "file"))
    use_compilation_cache()
    assert jax.config.jax_compilation_cache_dir == before


def test_a_field_moves_the_cache_and_limits_its_size(monkeypatch, tmp_path, settings):
    monkeypatch.setenv("STILLBOX_CACHE", str(tmp_path / "default"))
    use_compilation_cache()
    use_cache_of(Devices(program_cache=str(tmp_path / "own")))
    assert jax.config.jax_compilation_cache_dir == str(tmp_path / "own")
    for name in ("a-cache", "b-cache"):
        (tmp_path / "own" / name).write_bytes(bytes(2**20))
    use_cache_of(Devices(program_cache=str(tmp_path / "own"), program_cache_gib=1.5 / 1024))
    assert len(list((tmp_path / "own").iterdir())) == 1


def test_a_cache_of_the_caller_is_left_as_it_is(tmp_path, settings):
    jax.config.update("jax_compilation_cache_dir", str(tmp_path))
    (tmp_path / "a-cache").write_bytes(bytes(2**20))
    use_cache_of(Devices(program_cache_gib=1e-6))
    assert jax.config.jax_compilation_cache_dir == str(tmp_path)
    assert (tmp_path / "a-cache").exists()


def test_programs_used_least_recently_are_removed_down_to_the_limit(tmp_path):
    for name, used in (("b", 20), ("a", 30), ("c", 10)):
        program = tmp_path / f"{name}-cache"
        program.write_bytes(bytes(100))
        os.utime(program, (used, used))
    prune(tmp_path, 300)
    assert len(list(tmp_path.iterdir())) == 3
    prune(tmp_path, 150)
    assert [path.name for path in tmp_path.iterdir()] == ["a-cache"]


def test_versions_of_packages_and_platform():
    found = versions()
    assert found["stillbox"] == __version__
    assert found["jax"] == jax.__version__
    assert found["platform"] == "cpu"
    assert found.keys() >= {"python", "jaxlib", "flax", "optax", "numpy"}


def test_the_collector_pauses_and_goes_on_after_an_error_too():
    with collection_paused():
        assert not gc.isenabled()
        with collection_paused():
            pass
        assert not gc.isenabled()
    assert gc.isenabled()
    with pytest.raises(KeyError), collection_paused():
        raise KeyError
    assert gc.isenabled()


def test_nothing_is_collected_while_programs_are_traced():
    experiment = resolve("demo_scenes", ["train.batch_size=2"]).experiment
    mesh = build_mesh(2, experiment.devices)
    seen = []

    def watched(*arguments):
        seen.append(gc.isenabled())
        return arguments[0], arguments[1].true_sizes

    def shapes(*arguments):
        seen.append(gc.isenabled())
        return arguments[3]

    replace(train_program(experiment, mesh), function=watched).lower()
    replace(predict_program(experiment, mesh), function=shapes).lower()
    # Detection is traced for the kernels that it prepares, too.
    assert seen == [False, False, False]
