import threading

import numpy as np

from stillbox.inputs.scratch import Scratch


def test_a_name_keeps_its_memory_until_more_is_needed():
    scratch = Scratch()
    first = scratch("a", (4, 5), np.float32)
    assert (first.shape, first.dtype) == ((4, 5), np.float32)
    assert np.shares_memory(first, scratch("a", (3, 2), np.uint8))
    assert not np.shares_memory(first, scratch("b", (4, 5), np.float32))
    assert scratch("a", (400, 5), np.float32).shape == (400, 5)
    assert scratch("a", (0, 5), np.float32).shape == (0, 5)


def test_threads_do_not_share():
    scratch, other = Scratch(), []
    mine = scratch("a", (8,), np.uint8)
    thread = threading.Thread(target=lambda: other.append(scratch("a", (8,), np.uint8)))
    thread.start()
    thread.join()
    assert not np.shares_memory(mine, other[0])
