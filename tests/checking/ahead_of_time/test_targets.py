"""The names of slices, and what is said where there is no compiler or no device."""

import math

import pytest

from stillbox.checking.ahead_of_time import targets
from stillbox.checking.ahead_of_time.chips import CHIPS
from stillbox.checking.ahead_of_time.targets import find_target, parse_slice
from stillbox.errors import UserError
from tests.checking.ahead_of_time.libtpu import needs_libtpu


@pytest.mark.parametrize(
    ("name", "meant"),
    [
        ("v5e:2x4", "v5e:2x4"),
        ("V5E:2X4", "v5e:2x4"),
        ("tpu-v5e:2x2", "v5e:2x2"),
        # Accelerator types of v5e and v6e count chips,
        ("v5litepod-8", "v5e:2x4"),
        ("v5litepod-128", "v5e:8x16"),
        ("v6e-1", "v6e:1x1"),
        ("trillium-16", "v6e:4x4"),
        # the others cores, two on each chip.
        ("v2-8", "v2:2x2"),
        ("v3-32", "v3:4x4"),
        ("v4-8", "v4:2x2x1"),
        ("v5p-256", "v5p:4x4x8"),
    ],
)
def test_spellings_that_people_use(name, meant):
    chip, sides = parse_slice(name)
    assert f"{chip.generation}:{sides}" == meant


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("v5e:3x3", "one of v5e:1x1, v5e:2x2"),
        ("v5e", "one of v5e:1x1, v5e:2x2"),
        ("v3-7", "one of v3:2x2"),
        ("v5f:2x4", "did you mean"),
        ("cudda", "did you mean 'cuda'"),
        ("v7:2x4", "did you mean"),
        ("some chips", "TPU v2, v3, v4, v5e, v5p, v6e as"),
    ],
)
def test_other_names_lead_to_valid_ones(name, said):
    with pytest.raises(UserError) as refusal:
        parse_slice(name)
    assert refusal.value.where == "--target"
    assert said in refusal.value.fix


def test_slices_reach_128_chips():
    for chip in CHIPS.values():
        sizes = [math.prod(map(int, sides.split("x"))) for sides in chip.slices]
        assert sizes == sorted(sizes)
        assert sizes[-1] == 128


def test_without_the_compiler_the_extra_is_named(monkeypatch):
    monkeypatch.setattr(targets.importlib.util, "find_spec", lambda name: None)
    monkeypatch.delenv("TPU_LIBRARY_PATH", raising=False)
    with pytest.raises(UserError, match=r"pip install 'stillbox\[tpu\]'"):
        find_target("v5e:2x2")


def test_what_is_here_is_a_target():
    target = find_target("cpu")
    assert target.describe() == "cpu, 1 device (cpu)"
    assert target.usable_bytes > 2**30


def test_what_is_not_here_is_refused(monkeypatch):
    monkeypatch.setattr(targets, "_devices_here", lambda platform: ())
    with pytest.raises(UserError, match="there is no cuda device in this machine"):
        find_target("cuda")


@needs_libtpu
def test_the_compiler_knows_every_slice():
    for chip in CHIPS.values():
        for sides in chip.slices:
            target = find_target(f"{chip.generation}:{sides}")
            chips = math.prod(map(int, sides.split("x")))
            assert len(target.devices) == chips * chip.devices, target.name
