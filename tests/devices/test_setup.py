"""The cache of compiled programs, memory of the process, and the versions in a checkpoint.

Peak memory of devices or of the process.
"""

import gc
import os
import re
import resource
import stat
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import jax
import pytest
from jax.experimental.compilation_cache import compilation_cache

from stillbox import __version__
from stillbox.cli.overrides import changes_of
from stillbox.devices import setup
from stillbox.devices.mesh import build_mesh
from stillbox.devices.setup import (
    collection_paused,
    compilation_cache_folder,
    peak_memory,
    prune,
    use_compilation_cache,
    versions,
)
from stillbox.evaluation.program import predict_program
from stillbox.experiment.resolve import resolve
from stillbox.training.plan import plan_training
from stillbox.training.program import train_program
from tests.helpers import refused


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
    monkeypatch.setenv("XDG_CACHE_HOME", "")
    assert compilation_cache_folder() == Path.home() / ".cache/stillbox/xla"
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


def program_name(letter):
    return f"jit_{letter}-{'0' * 64}-cache"


@pytest.fixture
def cache(monkeypatch, tmp_path, settings):
    """The folder of compiled programs, which is not made yet."""
    monkeypatch.setenv("STILLBOX_CACHE", str(tmp_path / "home"))
    jax.config.update("jax_compilation_cache_dir", None)
    return tmp_path / "home/xla"


def test_the_environment_limits_the_cache(monkeypatch, cache):
    cache.mkdir(parents=True)
    for letter in "ab":
        (cache / program_name(letter)).write_bytes(bytes(2**20))
    monkeypatch.setenv("STILLBOX_CACHE_GIB", str(1.5 / 1024))
    use_compilation_cache()
    assert len(list(cache.iterdir())) == 1


def test_a_program_that_another_process_removes_leaves_the_cache_in_use(monkeypatch, cache):
    def removed_already(folder, limit):
        raise FileNotFoundError(folder / program_name("a"))

    monkeypatch.setattr(setup, "prune", removed_already)
    use_compilation_cache()
    assert jax.config.jax_compilation_cache_dir == str(cache)


@pytest.mark.parametrize("text", ["much", "0", "-1", "nan", "inf", ""])
def test_a_limit_that_is_no_size_is_refused(text, monkeypatch, cache):
    monkeypatch.setenv("STILLBOX_CACHE_GIB", text)
    with refused("STILLBOX_CACHE_GIB") as caught:
        use_compilation_cache()
    assert caught.value.where == "STILLBOX_CACHE_GIB"
    assert jax.config.jax_compilation_cache_dir is None


def test_the_cache_is_the_user_s_alone(cache):
    cache.mkdir(parents=True)
    cache.chmod(0o755)
    use_compilation_cache()
    assert stat.S_IMODE(cache.stat().st_mode) == 0o700
    assert jax.config.jax_compilation_cache_dir == str(cache)


def of_somebody_else(cache, monkeypatch):
    monkeypatch.setattr(os, "geteuid", lambda: cache.stat().st_uid + 1)


def a_link_of_somebody_else(cache, monkeypatch):
    cache.rename(cache.parent / "private")
    cache.symlink_to("private")
    if os.geteuid() == 0:
        os.chown(cache, 4321, -1, follow_symlinks=False)
    else:
        pytest.skip("only root can give files away")


@pytest.mark.parametrize(
    ("make", "fault"),
    [
        (lambda cache, patch: cache.chmod(0o777), "others can write"),
        (lambda cache, patch: cache.chmod(0o770), "others can write"),
        (lambda cache, patch: cache.parent.chmod(0o777), "others can put"),
        (of_somebody_else, "belongs to another user"),
        (a_link_of_somebody_else, "belongs to another user"),
    ],
    ids=["open", "open to the group", "replaceable", "of another", "link of another"],
)
def test_a_cache_that_others_can_fill_is_not_used(make, fault, cache, monkeypatch, capsys):
    cache.mkdir(parents=True)
    make(cache, monkeypatch)
    planted = cache / program_name("a")
    planted.write_bytes(bytes(2**20))
    monkeypatch.setenv("STILLBOX_CACHE_GIB", "1e-6")
    use_compilation_cache()
    assert jax.config.jax_compilation_cache_dir is None
    assert planted.exists()
    said = capsys.readouterr().err
    assert f"warning: {cache}: " in said
    assert fault in said
    assert "STILLBOX_CACHE" in said


def test_programs_used_least_recently_are_removed_down_to_the_limit(tmp_path):
    for letter, used in (("b", 20), ("a", 30), ("c", 10)):
        program = tmp_path / program_name(letter)
        program.write_bytes(bytes(100))
        os.utime(program, (used, used))
    prune(tmp_path, 300)
    assert len(list(tmp_path.iterdir())) == 3
    prune(tmp_path, 150)
    assert [path.name for path in tmp_path.iterdir()] == [program_name("a")]


def test_only_programs_are_removed(tmp_path):
    folder = tmp_path / "cache"
    folder.mkdir()
    (tmp_path / "outside").write_bytes(bytes(100))
    (folder / "thesis-cache").write_bytes(bytes(100))
    (folder / program_name("link")).symlink_to(tmp_path / "outside")
    (folder / program_name("folder")).mkdir()
    (folder / program_name("a")).write_bytes(bytes(100))
    prune(folder, 0)
    left = {path.name for path in folder.iterdir()}
    assert left == {"thesis-cache", program_name("link"), program_name("folder")}
    assert (tmp_path / "outside").exists()


def test_versions_of_packages_and_platform():
    named = versions()
    assert named["stillbox"] == __version__
    assert named["jax"] == jax.__version__
    assert named["platform"] == "cpu"
    assert named.keys() >= {"python", "jaxlib", "flax", "optax", "numpy"}


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
    experiment = resolve("demo_scenes", changes_of(["train.batch_size=2"])).experiment
    mesh = build_mesh(2, experiment.devices)
    seen = []

    def watched(*arguments):
        seen.append(gc.isenabled())
        return arguments[0], arguments[1].true_sizes

    def shapes(*arguments):
        seen.append(gc.isenabled())
        return arguments[3]

    replace(train_program(plan_training(experiment, mesh)), function=watched).lower()
    replace(predict_program(experiment, mesh), function=shapes, prepares_kernels=True).lower()
    # Detection is traced for the kernels that it prepares, too.
    assert seen == [False, False, False]


STATUS = Path("/proc/self/status")


class Device(SimpleNamespace):
    def memory_stats(self):
        return self.stats

    def __str__(self):
        return self.name


def test_the_device_with_the_highest_peak_is_named(monkeypatch):
    gib = 2**30
    devices = [
        Device(name="cuda:0", stats={"bytes_in_use": 9 * gib, "peak_bytes_in_use": 10 * gib}),
        Device(name="cuda:1", stats={"bytes_in_use": 1, "peak_bytes_in_use": 23 * gib // 2}),
    ]
    monkeypatch.setattr(jax, "local_devices", lambda: devices)
    assert peak_memory().device == "cuda:1"
    assert peak_memory().describe() == "peak memory on cuda:1: 11.50 GiB"


@pytest.mark.skipif(not STATUS.exists(), reason="only Linux tells it in a second place")
def test_without_counts_of_devices_the_process_is_measured(monkeypatch):
    peak = peak_memory()  # a processor keeps none
    (line,) = (text for text in STATUS.read_text().splitlines() if text.startswith("VmHWM"))
    resident = int(line.split()[1]) * 1024
    assert peak.device == ""
    assert peak.nbytes == pytest.approx(resident, rel=0.02)
    # The system counts the peak of the program that started this one, too.
    monkeypatch.setattr(resource, "getrusage", lambda who: SimpleNamespace(ru_maxrss=2**40))
    assert peak_memory().nbytes == pytest.approx(resident, rel=0.02)
    assert re.fullmatch(r"peak memory of the process: [\d.,]+ [GM]iB resident .*", peak.describe())
