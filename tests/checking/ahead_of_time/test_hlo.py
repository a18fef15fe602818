"""Compiled programs: their arrays and loops."""

import pytest

from stillbox.checking.ahead_of_time.hlo import Instruction, Message
from tests.checking.ahead_of_time.made import message, shape_proto
from tests.checking.ahead_of_time.programs import PROGRAM


def read_arrays(shape):
    return Instruction("a", "add", proto=Message(message((3, shape_proto(shape))))).arrays


@pytest.mark.parametrize(
    ("shape", "nbytes", "values"),
    [
        ("f32[]", 4, 4),
        ("f32[3,5]{1,0}", 60, 60),
        # Tiles of 128 numbers: one is filled up.
        ("f32[100]{0:T(128)}", 512, 400),
        ("s32[]{:T(128)}", 512, 4),
        # From minor to major 0, 2, 1: 4 and 4096 are the last two, and both fill their tiles.
        ("f32[4096,100,4]{0,2,1:T(4,128)}", 6_553_600, 6_553_600),
        # The same with the four coordinates last: 128 lanes for 4 numbers, 104 rows for 100.
        ("f32[4096,100,4]{2,1,0:T(8,128)}", 4096 * 104 * 128 * 4, 6_553_600),
        # 3 x 3 times [16, 358] in tiles of 8 x 128, which makes [16, 384].
        ("f32[3,3,358,16]{2,3,1,0:T(8,128)}", 9 * 16 * 384 * 4, 9 * 16 * 358 * 4),
        ("bf16[16,80]{1,0:T(8,128)(2,1)}", 16 * 128 * 2, 16 * 80 * 2),
        ("pred[7]{0:T(512)(128)(4,1)}", 512, 7),
        ("u8[10]", 10, 10),
    ],
)
def test_an_array_fills_whole_tiles(shape, nbytes, values):
    (array,) = read_arrays(shape)
    assert (array.nbytes, array.value_bytes, array.on_chip) == (nbytes, values, False)


def test_arrays_on_the_chip_are_distinguished():
    first, second = read_arrays("(f32[4]{0:S(1)}, f32[4]{0:T(128)})")
    assert (first.on_chip, second.on_chip) == (True, False)


def test_loops_are_followed_as_often_as_they_run():
    assert PROGRAM.entry == "main"
    rounds = {computation.name: times for computation, times in PROGRAM.executed()}
    assert rounds["reduced"] == 3
    assert rounds["f"] == 1
    # The parts of a fusion run within it.
    assert "half" not in rounds
