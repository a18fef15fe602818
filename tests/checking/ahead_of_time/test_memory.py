"""The memory of a program by use."""

from types import SimpleNamespace

from stillbox.checking.ahead_of_time.compiling import measure_memory
from tests.checking.ahead_of_time.programs import PROGRAM

# [2, 9, 9, 3] with the images last: 9 x 3 times [9, 2] in tiles of 2 x 128, which makes [10, 128].
IMAGES = 9 * 3 * 10 * 128 * 4
ANALYSIS = SimpleNamespace(
    argument_size_in_bytes=4096 + 512 + 4096 + IMAGES + 100,
    output_size_in_bytes=9000,
    alias_size_in_bytes=8000,
    temp_size_in_bytes=70_000,
    generated_code_size_in_bytes=500,
)


def test_arguments_are_counted_by_use():
    memory = measure_memory(ANALYSIS, PROGRAM, 1_000_000)
    assert memory.parameters == 4096
    assert memory.optimizer == 512
    assert memory.average == 4096
    # 100 bytes that the text does not explain go with the batch: nothing is left out.
    assert memory.batch == IMAGES + 100
    assert memory.results == 1000
    assert memory.total == ANALYSIS.argument_size_in_bytes + 1000 + 70_000 + 500
    assert memory.left == 1_000_000 - memory.total
    assert memory.to_dict()["total"] == memory.total


def test_too_little_memory_leaves_a_negative_rest():
    assert measure_memory(ANALYSIS, PROGRAM, 80_000).left < 0
