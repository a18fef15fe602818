"""The time of a step by published figures of a chip."""

import pytest

from stillbox.devices.chips import CHIPS
from stillbox.devices.roofline import estimate


def test_each_part_of_the_roofline_is_limited_by_its_peak():
    roof = estimate(CHIPS["v5e"], flops=197e12 / 100, traffic=819e9 / 50, collective=1e9, devices=8)
    assert roof.products == pytest.approx(0.01)
    assert roof.memory == pytest.approx(0.02)
    # 7/8 of a gigabyte twice, at 200 GB/s.
    assert roof.network == pytest.approx(1.75 / 200)
    assert (roof.seconds, roof.bound) == (roof.memory, "memory")
    assert roof.to_dict()["bound"] == "memory"


def test_a_core_has_half_the_peak_of_its_chip():
    roof = estimate(CHIPS["v3"], flops=123e12, traffic=0, collective=0, devices=8)
    assert roof.products == pytest.approx(2)


def test_one_device_needs_no_network():
    assert estimate(CHIPS["v5e"], flops=0, traffic=0, collective=1e9, devices=1).network == 0
