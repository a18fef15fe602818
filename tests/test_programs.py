"""The folder of compiled programs that workers of the tests share."""

import zlib

from tests.programs import Programs


def names(folder):
    return {entry.name for entry in folder.iterdir()}


def test_two_workers_and_the_next_session_share_what_is_complete(tmp_path):
    kept = tmp_path / "kept"
    kept.mkdir()
    one, other = (Programs(tmp_path / name, kept) for name in ("one", "other"))
    whole = zlib.compress(b"a program")
    (one.own / "jit_step-1-cache").write_bytes(whole)
    (one.own / "jit_step-2-cache").write_bytes(whole[:-2])  # the process was killed
    one.exchange()
    other.exchange()
    assert names(other.own) == names(kept) == {"jit_step-1-cache"}
    assert (other.own / "jit_step-1-cache").read_bytes() == whole

    (other.own / "jit_step-2-cache").write_bytes(whole)
    other.exchange()
    assert names(kept) == {"jit_step-1-cache", "jit_step-2-cache"}
