"""Decoded images in memory: what is kept, and how much room is left to others."""

import pytest

from stillbox.experiment import schema
from stillbox.inputs import memory
from stillbox.inputs.memory import SampleCache, available_memory
from stillbox.printing import size_text
from tests.inputs.helpers import dataset, example

GIB = 2**30


def test_a_cached_image_is_decoded_once(tmp_path, monkeypatch):
    data = dataset(tmp_path, [example(0), example(1)], data=schema.Data(cache_images=True))
    first = data.load(0)
    monkeypatch.setattr(data.source, "example", None)  # would fail if it were called
    assert data.load(0) is first
    assert len(data.cache) == 1
    assert data.cache.nbytes == first.nbytes > 40 * 60 * 3


def test_without_a_cache_nothing_is_kept(tmp_path):
    data = dataset(tmp_path, [example(0)])
    assert data.load(0) is not data.load(0)


@pytest.fixture
def samples(tmp_path):
    data = dataset(tmp_path, [example(number) for number in range(4)])
    return [data.load(number) for number in range(4)]


def test_a_full_cache_adds_nothing_and_reports_it(samples):
    small = SampleCache(limit=2 * samples[0].nbytes + 10)
    assert "full" not in small.describe()
    for number, sample in enumerate(samples):
        small.add(number, sample)
    assert [small.get(number) is not None for number in range(4)] == [True, True, False, False]
    assert small.nbytes <= small.limit
    assert small.describe().startswith("2 decoded images in memory, 14 KiB of at most 14 KiB; full")


@pytest.mark.parametrize(
    ("free", "limit"),
    [
        (100 * GIB, 80 * GIB),  # a fifth is left alone
        (5 * GIB, 3 * GIB),  # 2 GiB at least
        (1 * GIB, 0),
    ],
)
def test_the_limit_is_the_free_memory_less_the_reserve(monkeypatch, free, limit):
    monkeypatch.setattr(memory, "available_memory", lambda: free)
    assert SampleCache().limit == pytest.approx(limit, abs=1)
    assert f"{size_text(limit)} at most" in SampleCache().promise()


def test_two_caches_together_leave_the_reserve_of_one(samples, monkeypatch):
    """Training's and evaluation's data, or two processes: each could take all of it alone."""
    size, one = samples[0].nbytes, samples[0]
    free = 20 * size
    # 20 images fit into the free memory; four of them, a fifth, are reserved.
    monkeypatch.setattr(memory, "_MIN_RESERVED", 0)
    monkeypatch.setattr(memory, "_MEASURE_EVERY", size)
    caches = []
    monkeypatch.setattr(
        memory, "available_memory", lambda: free - sum(each.nbytes for each in caches)
    )
    caches += [SampleCache(), SampleCache()]
    assert [each.limit // size for each in caches] == [16, 16]
    for number in range(20):
        for each in caches:
            each.add(number, one)
    assert all(each.full for each in caches)
    # 17 and not 16: memory is measured before the last image is added.
    assert 16 <= sum(len(each) for each in caches) <= 17


@pytest.fixture
def group(tmp_path):
    """The function that writes the files of a control group."""

    def write(path, limit, used, names=memory._V2, page_cache=0):
        folder = tmp_path / path
        folder.mkdir(parents=True, exist_ok=True)
        (folder / names.limit).write_text(f"{limit}\n")
        (folder / names.used).write_text(f"{used}\n")
        (folder / "memory.stat").write_text(f"anon 7\n{names.page_cache[0]} {page_cache}\n")

    return write


def free_in_groups(tmp_path, membership):
    (tmp_path / "self").write_text(membership)
    return min(memory._groups(memory._free_in_group, tmp_path / "self", tmp_path), default=None)


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
    group("memory/job", 1000, 300, names=memory._V1)
    assert free_in_groups(tmp_path, "5:cpu:/\n4:memory:/job\n0::/\n") == 700


def test_pages_of_files_count_as_free(tmp_path, group):
    """Whoever has read 250 bytes of records may still take them: the kernel gives them back."""
    group("", 1000, 300, page_cache=250)
    assert free_in_groups(tmp_path, "0::/\n") == 950


def test_something_is_free_on_this_machine():
    assert 2**20 < available_memory() < 2**60
