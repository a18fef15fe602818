"""Sizes of an evaluation that exceed the memory of the machine are refused with a sentence."""

import jax
import pytest

from stillbox.devices import free_memory
from stillbox.devices.free_memory import refuse_program_shortage, refuse_shortage
from stillbox.evaluation.program import score_program
from stillbox.evaluation.scoring import open_evaluation, score_dataset
from tests.helpers import refused
from tests.small import small_experiment


def test_memory_that_the_process_has_freed_is_free(monkeypatch):
    free = [2**29]
    monkeypatch.setattr(free_memory, "available_memory", lambda: free[-1])
    monkeypatch.setattr(free_memory, "release_freed_memory", lambda: free.append(2**30))
    refuse_shortage(2**29, "it", where="here", fix="less")
    assert free == [2**29]
    refuse_shortage(2**30, "it", where="here", fix="less")
    assert free == [2**29, 2**30]


def test_every_device_of_a_cpu_needs_its_share(monkeypatch):
    monkeypatch.setattr(free_memory, "available_memory", lambda: 2**30 * jax.local_device_count())
    refuse_program_shortage(2**30, "it", where="here", fix="less")
    with refused("here"):
        refuse_program_shortage(2**30 + 2**28, "it", where="here", fix="less")


@pytest.mark.parametrize(
    "change", ["evaluation.batch_size=1000000", "model.postprocessing.nms.max_total=1000000"]
)
def test_a_batch_beyond_the_memory_is_refused_before_it_is_made(scenes, monkeypatch, change):
    # A million images of 64 x 64 pixels have 49 GB; a million detections of 4 images 96 MB.
    monkeypatch.setattr(free_memory, "available_memory", lambda: 90 * 10**6)
    experiment = small_experiment(scenes, change)

    def detect(*_):
        raise AssertionError("nothing is to be detected")

    with refused("evaluation.batch_size"):
        score_dataset(detect, experiment, open_evaluation(experiment))


def test_a_detector_beyond_the_memory_is_refused_once_it_is_compiled(scenes, monkeypatch):
    program = score_program(small_experiment(scenes))
    monkeypatch.setattr(free_memory, "available_memory", lambda: 2**10)
    with refused("model.postprocessing"):
        _ = program.compiled
