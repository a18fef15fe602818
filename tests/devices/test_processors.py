"""The processors of a process, alone and beside others on its machine."""

import os

import pytest

from stillbox.devices import processors
from stillbox.devices.launcher import ProcessInfo
from stillbox.devices.processors import binding_warning, input_threads, own_processors

FOUR_ON_THIS_MACHINE = {
    "OMPI_COMM_WORLD_SIZE": "8",
    "OMPI_COMM_WORLD_RANK": "5",
    "OMPI_COMM_WORLD_LOCAL_RANK": "1",
    "OMPI_COMM_WORLD_LOCAL_SIZE": "4",
    "PMIX_NAMESPACE": "prterun-node1-31159@1",
}


@pytest.fixture
def machine(monkeypatch):
    def machine(count, allowed, variables=()):
        monkeypatch.setattr(os, "cpu_count", lambda: count)
        monkeypatch.setattr(processors, "_allowed", lambda: allowed)
        for name, value in dict(variables).items():
            monkeypatch.setenv(name, value)

    return machine


def test_a_single_process_takes_all_allowed_processors(machine):
    machine(96, 96)
    assert own_processors() == 96
    machine(96, 12)
    assert own_processors() == 12


def test_processes_of_a_machine_share_its_processors(machine):
    machine(96, 96, FOUR_ON_THIS_MACHINE)
    # 96 / 4 = 24 of its own, bound or not; bound to one socket of two it may use 48.
    assert own_processors() == 24
    machine(96, 48)
    assert own_processors() == 24
    machine(96, 1)
    assert own_processors() == 1


def test_more_processes_than_processors_have_one_each(machine):
    machine(2, 2, FOUR_ON_THIS_MACHINE)
    assert own_processors() == 1


def test_an_incomplete_launcher_environment_leaves_the_whole_machine(machine):
    machine(96, 96, FOUR_ON_THIS_MACHINE | {"PMIX_NAMESPACE": ""})
    assert own_processors() == 96


def test_input_threads_are_as_configured_or_one_for_each_processor(machine):
    machine(96, 12)
    assert [input_threads(workers) for workers in (None, 0, 3, 64)] == [12, 0, 3, 64]
    machine(96, 96)
    assert input_threads(None) == 32


@pytest.mark.parametrize("allowed, warned", [(1, True), (23, True), (24, False), (96, False)])
def test_a_process_bound_to_less_than_its_part_is_warned_about(machine, allowed, warned):
    machine(96, allowed)
    place = ProcessInfo(0, 8, "node1:53000", local_index=0, local_count=4, launcher="Open MPI")
    warning = binding_warning(place)
    assert ("Open MPI" in warning and f"{allowed} of its 24 processors" in warning) == warned
    assert bool(warning) == warned


def test_own_processors_of_this_machine():
    assert 1 <= own_processors() <= os.cpu_count()
