"""Free memory of machines, and of containers and jobs with limits."""

import pytest

from stillbox import machine_memory
from stillbox.machine_memory import available_memory


@pytest.fixture
def group(tmp_path):
    """The function that writes the files of a control group."""

    def write(path, limit, used, names=machine_memory._V2, page_cache=0):
        folder = tmp_path / path
        folder.mkdir(parents=True, exist_ok=True)
        (folder / names.limit).write_text(f"{limit}\n")
        (folder / names.used).write_text(f"{used}\n")
        (folder / "memory.stat").write_text(f"anon 7\n{names.page_cache[0]} {page_cache}\n")

    return write


def free_in_groups(tmp_path, membership):
    (tmp_path / "self").write_text(membership)
    return min(
        machine_memory._groups(machine_memory._free_in_group, tmp_path / "self", tmp_path),
        default=None,
    )


def test_free_memory_is_that_of_a_limited_container(tmp_path, group):
    group("", 1000, 300)
    assert free_in_groups(tmp_path, "0::/\n") == 700
    group("", "max", 300)
    assert free_in_groups(tmp_path, "0::/\n") > 2**60


def test_the_limit_of_a_job_may_be_on_an_ancestor_group(tmp_path, group):
    group("jobs/job_7", 1000, 300)
    group("jobs/job_7/step_0", "max", 300)
    assert free_in_groups(tmp_path, "0::/jobs/job_7/step_0\n") == 700


def test_the_first_version_of_control_groups_is_understood(tmp_path, group):
    group("memory/job", 1000, 300, names=machine_memory._V1)
    assert free_in_groups(tmp_path, "5:cpu:/\n4:memory:/job\n0::/\n") == 700


def test_pages_of_files_count_as_free(tmp_path, group):
    """Whoever has read 250 bytes of records may still take them: the kernel gives them back."""
    group("", 1000, 300, page_cache=250)
    assert free_in_groups(tmp_path, "0::/\n") == 950


def test_something_is_free_on_this_machine():
    assert 2**20 < available_memory() < 2**60
