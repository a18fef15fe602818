"""`kill -9` loses no finished checkpoint; images cut among devices teach what whole ones do."""

import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from stillbox.checkpoints.model_directory import ModelDirectory
from tests.training.eight_devices import see

pytestmark = [pytest.mark.proof, pytest.mark.slow]

_SIZE = 200_000
# Says what it finished before it begins the next, so that the test knows what may not be lost.
_WRITER = """
import sys
import numpy as np
from stillbox.checkpoints.model_directory import ModelDirectory
from tests.proofs.test_runs import state

directory = ModelDirectory.create(
    sys.argv[1], experiment="name: killed", label_map="", versions={}, keep=2
)
step = (directory.latest_step() or 0) + 1
while True:
    directory.save(step, state(step), {"step": step})
    if step % 5 == 0:
        directory.mark_best(step, "AP", step / 1e6)
    print(step, flush=True)
    step += 1
"""


def state(step):
    """A training state that its step determines."""
    generator = np.random.default_rng(step)
    return {
        "params": {f"w{i}": generator.standard_normal(_SIZE, np.float32) for i in range(4)},
        "optimizer": {"momentum": generator.integers(0, 2**32, _SIZE, np.uint32)},
        "step": np.asarray(step),
    }


def _write_and_kill(path, seconds):
    """Lets a process write checkpoints, kills it, and returns the last step that it finished."""
    command = [sys.executable, "-c", _WRITER, str(path)]
    root = Path(__file__).resolve().parents[2]
    with subprocess.Popen(command, cwd=root, stdout=subprocess.PIPE, text=True) as process:
        first = process.stdout.readline()
        time.sleep(seconds)
        process.send_signal(signal.SIGKILL)
        return int((first + process.stdout.read()).split()[-1])


# `tests/training/test_signals.py` kills less often.
def test_a_killed_run_leaves_its_last_finished_checkpoint_whole(tmp_path):
    generator = random.Random(0)
    path = tmp_path / "run"
    leftovers, marked = 0, False
    for _ in range(10):
        finished = _write_and_kill(path, generator.uniform(0.0, 0.3))
        directory = ModelDirectory.open(path)
        latest = directory.latest_step()
        # The kill may fall between the rename and the word about it.
        assert latest in (finished, finished + 1)
        for step in directory.steps():
            restored = directory.restore(step, state(0))
            for left, right in zip(_leaves(restored), _leaves(state(step)), strict=True):
                assert left.tobytes() == right.tobytes()
            assert directory.read_metadata(step) == {"step": step}
        # The kill may fall between a checkpoint and its mark; a mark, once made, is never lost.
        best = directory.best()
        assert best is not None or not marked
        if best is not None:
            assert directory.checkpoint("best").step == best.step
            assert best.step % 5 == 0
            marked = True
        leftovers += any(entry.name[0] == "." for entry in (path / "checkpoints").iterdir())
    assert leftovers, "no kill fell into the writing of a checkpoint: the test proved nothing"


def _leaves(tree):
    return [*tree["params"].values(), tree["optimizer"]["momentum"], tree["step"]]


@pytest.fixture(scope="module")
def seen(tmp_path_factory):
    """Takes five minutes of a processor: programs for two axes are slow to compile."""
    return see("spatial", tmp_path_factory.mktemp("devices") / "seen.pickle")


# Maps of 3 rows on 2 and 4 devices, and of 2 on 4: what XLA divides unevenly goes wrong in its
# gradients alone, and only where the batch is divided as well.
@pytest.mark.parametrize("grid", ["1 x 2", "1 x 4", "4 x 2", "2 x 4"])
@pytest.mark.parametrize("detector", ["resnet", "pyramid"])
def test_an_image_in_pieces_is_the_whole_image(seen, detector, grid):
    whole, pieces = seen[f"{detector} 1 x 1"], seen[f"{detector} {grid}"]
    names = {name for name in whole if name[:2] in ("1 ", "3 ")}
    assert len(names) > 100
    for name in sorted(names):
        np.testing.assert_allclose(pieces[name], whole[name], rtol=1e-5, atol=1e-5, err_msg=name)
    assert pieces["compilations"] == 1
    assert pieces["exchanges"] != []
