"""Fixtures of the tests of both distributions.

Caches outside the home folder, and small data, experiments and models.
"""

import contextlib
import gc
import os
import shutil
from contextvars import ContextVar
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
from jax._src.lax import lax as jax_lax

import tests.shape_checks  # noqa: F401 - before stillbox  # isort: skip
from stillbox import lowering
from stillbox.checkpoints import pretrained
from stillbox.cli.main import main
from stillbox.devices.process import keep_fusions_whole, silence_libtpu
from stillbox.records.scenes import write_scenes
from tests.helpers import draw_nothing
from tests.programs import QUICK_COMPILER, Programs, as_flags
from tests.small import small_experiment, small_overrides

# Before devices are started: two workers with the extra [tpu] would fight for its lock.
silence_libtpu()


# Tests run in this order; short files come last, so that no worker ends early.
LONG_FIRST = (
    *("training", "test_documentation.py", "cli", "scaling", "serving", "exporting", "models"),
    *("devices", "boxes", "checking"),
)
# Folders and files whose tests are of the forms of operations, or have each of them once.
FORMS_MATTER = (
    *("models/layers", "models/two_stage", "models/test_detector.py"),
    *("models/test_rematerialization.py", "training/test_program.py", "devices", "proofs"),
    "checking/ahead_of_time",
)
_PLAIN = lowering.Lowering(portable=True)
# What threads begin with too.
PLAIN = ContextVar("plain lowering", default=_PLAIN)
PROGRAMS = pytest.StashKey[Programs]()


def is_quick(config):
    """Whether only tests run that are not slow."""
    return "not slow" in config.option.markexpr


def pytest_configure(config):
    """Compiles without optimisation: in the tests that are not slow, compiling takes longest.

    XLA's own passes, and with them its text and memory, stay the same. Processes that tests start
    inherit the flags; others that are given come behind them. Proofs and the demo are compiled as
    users compile.
    """
    flags, given = as_flags(QUICK_COMPILER), os.environ.get("XLA_FLAGS", "")
    if is_quick(config) and flags not in given:
        os.environ["XLA_FLAGS"] = f"{flags} {given}".strip()
    keep_fusions_whole()
    compile_nothing_for_arrays()
    gc.disable()  # until `pytest_collection_finish`: nothing that is imported is garbage


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items):
    """Sorts by `LONG_FIRST`."""
    order = {name: index for index, name in enumerate(LONG_FIRST)}
    items.sort(key=lambda item: order.get(_place(item.path).split("/")[0], len(order)))


def _place(path):
    """Returns the place of a file among the tests of its distribution."""
    place = path.relative_to(Path(__file__).parent).as_posix()
    return place.removeprefix("packages/legacy/").removeprefix("tests/")


def compile_nothing_for_arrays():
    """Arrays of NumPy become arrays of JAX as they are: jax 0.10 compiles a program for each shape.

    `jnp.asarray` does so where it is given no type.
    """
    if primitive := getattr(jax_lax, "stage_p", None):
        primitive.def_impl(lambda x: x if isinstance(x, jax.Array) else jax.device_put(x))


def pytest_collection_finish():
    """Collections of garbage pass over what lives as long as the session, and are rarer."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(100_000, 20, 100)
    gc.enable()


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config, log):
    """With `--dist loadgroup` workers get whole files, whose fixtures and traces are made once."""
    from xdist.scheduler import LoadGroupScheduling

    if config.option.dist != "loadgroup":
        return None

    class ByFile(LoadGroupScheduling):
        def _split_scope(self, nodeid):
            return super()._split_scope(nodeid).partition("::")[0]

    config.option.loadscopereorder = False
    return ByFile(config, log)


def pytest_runtest_teardown(item):
    """Other workers get what this test compiled."""
    if programs := item.config.stash.get(PROGRAMS, None):
        programs.exchange()


@pytest.fixture(scope="session", autouse=True)
def caches(tmp_path_factory, request):
    """Moves all caches into the session's folder; compiled programs are kept between sessions."""
    folder = tmp_path_factory.mktemp("cache")
    programs = Programs(folder / "stillbox" / "xla", request.config.cache.mkdir("xla"))
    programs.exchange()
    request.config.stash[PROGRAMS] = programs
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(folder))
        patch.setenv("STILLBOX_CACHE", str(folder / "stillbox"))
        jax.config.update("jax_compilation_cache_dir", str(programs.folder))
        yield folder
    programs.exchange()
    programs.remove_old()


@pytest.fixture(scope="module", autouse=True)
def default_forms(request):
    """Programs of quick tests have the default form of every operation, where forms do not matter.

    The forms for a CPU take three times as long to be traced and compiled. `FORMS_MATTER`, proofs
    and tests that are marked `slow` have them.
    """
    path = _place(request.path)
    with pytest.MonkeyPatch.context() as patch:
        if is_quick(request.config) and not path.startswith(FORMS_MATTER):
            patch.setattr(lowering, "_LOWERING", PLAIN)
        yield


@pytest.fixture(scope="session")
def empty_folder(tmp_path_factory):
    """The current folder of every test."""
    return tmp_path_factory.mktemp("empty")


@pytest.fixture
def no_installed_weights(monkeypatch):
    """Hides the packages of the extra `weights`."""
    monkeypatch.setattr(pretrained, "find_installed", lambda row: None)


@pytest.fixture(autouse=True)
def current_folder(empty_folder):
    """Runs a test in an empty folder, which it leaves empty.

    Recipes and many arguments name relative paths. A test that finds files by them creates the
    files in a folder of its own and changes into that folder.
    """
    with contextlib.chdir(empty_folder):
        yield
    left = sorted(path.name for path in empty_folder.iterdir())
    for name in left:
        path = empty_folder / name
        shutil.rmtree(path) if path.is_dir() else path.unlink()
    assert not left, f"the test wrote into the current folder: {', '.join(left)}"


@pytest.fixture(scope="session")
def scenes(tmp_path_factory):
    """Ten scenes to train on and six to score, of all classes; tests leave them as they are."""
    folder = tmp_path_factory.mktemp("scenes")
    write_scenes(folder, train=10, val=6, seed=14)
    return folder


@pytest.fixture(scope="session")
def documented_folder(tmp_path_factory, caches):
    """The folder in which commands of the documentation run; tests work in copies of it."""
    from tests.documented_folder import prepare

    folder = tmp_path_factory.mktemp("documented")
    with contextlib.chdir(folder), pytest.MonkeyPatch.context() as patch:
        _share_programs(patch)
        prepare()
    return folder


@pytest.fixture
def experiment(scenes):
    """The function from overrides to the small experiment."""
    return partial(small_experiment, scenes)


@pytest.fixture
def shared_programs(monkeypatch):
    """Runs get the programs that earlier runs in this process have compiled."""
    return _share_programs(monkeypatch)


def _share_programs(patch):
    from tests import shared_programs

    shared_programs.share(patch)
    return shared_programs


@pytest.fixture
def no_charts(monkeypatch):
    """Reports get empty charts, which otherwise take most of the time of a small evaluation."""
    draw_nothing(monkeypatch)


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
    with pytest.MonkeyPatch.context() as patch:
        _share_programs(patch)
        assert main(["train", "demo_scenes", "--model-dir", str(directory), *words]) == 0
    return directory


@pytest.fixture
def trained(trained_once, tmp_path):
    """A copy of the trained model with checkpoints of steps 1 and 2, which a test may spoil."""
    return shutil.copytree(trained_once, tmp_path / "model")


@pytest.fixture
def cache_folder(tmp_path, monkeypatch):
    """The cache of one test alone."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache" / "stillbox"
