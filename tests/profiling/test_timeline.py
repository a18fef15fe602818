"""Shares of time, and arithmetic of spans."""

import pytest

from stillbox.profiling.timeline import Work, length, merged, share_out, within, without


def test_a_moment_is_divided_evenly_among_what_runs_in_it():
    # 0..10 a alone, 10..20 a and b, 20..30 b alone, 30..40 nothing, 40..50 a.
    works = [Work(0, 20, "a"), Work(10, 30, "b"), Work(40, 50, "a")]
    spent, hidden = share_out(works)
    assert spent == {"a": 10 + 5 + 10, "b": 5 + 10}
    assert hidden == {}


def test_background_work_has_the_moments_without_other_work():
    # The transfer has 20..30 to itself; 0..20 it hides behind a and b, which share 10..20.
    works = [Work(0, 20, "a"), Work(10, 20, "b"), Work(0, 30, "transfer", background=True)]
    spent, hidden = share_out(works)
    assert spent == {"a": 15, "b": 5, "transfer": 10}
    assert hidden == {"transfer": 20}


def test_adjacent_works_share_no_moment():
    spent, _ = share_out([Work(0, 10, "a"), Work(10, 20, "b"), Work(20, 20, "empty")])
    assert spent == {"a": 10, "b": 10}


def test_spans_are_merged_intersected_and_subtracted():
    spans = merged([(5, 7), (0, 2), (2, 3), (6, 9)])
    assert spans == [(0, 3), (5, 9)]
    assert within(spans, 1, 6) == [(1, 3), (5, 6)]
    assert within(spans, 3, 5) == []
    assert without(1, 12, spans) == [(3, 5), (9, 12)]
    assert without(5, 9, spans) == []
    assert length(spans) == pytest.approx(7)
