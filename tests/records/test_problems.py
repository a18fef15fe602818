import threading

import pytest
from rich.console import Console

from stillbox.errors import UserError
from stillbox.records.problems import ProblemLog, Verdicts


def test_cases_are_counted_by_reason_and_outcome():
    log = ProblemLog()
    for box in range(7):
        log.add("no area", f"a.record: record {box}", "ymin 1", action="box dropped")
    log.add("no area", "b.record: record 0", action="box kept")
    log.add("inverted", "a.record: record 1", action="box fixed")
    assert len(log) == 9
    assert log.counts() == {"no area": 8, "inverted": 1}
    first = next(iter(log))
    assert (first.reason, first.action, first.count) == ("no area", "box dropped", 7)
    assert first.examples == [f"a.record: record {box}: ymin 1" for box in range(5)]


def test_the_table_shows_every_kind_and_says_what_it_left_out():
    log = ProblemLog()
    for box in range(7):
        log.add("no area", f"[red]{box}", action="box dropped")
    console = Console(record=True, width=100)
    with console.capture() as shown:
        console.print(log.table())
    assert "[red]0" in shown.get()  # a path with brackets is no markup
    assert "and 2 more" in shown.get()


def test_one_log_takes_over_another():
    left, right = ProblemLog(), ProblemLog()
    for log, name in ((left, "left"), (right, "right")):
        for number in range(3):
            log.add("x", f"{name} {number}")
    left.extend(right)
    (problem,) = left
    assert problem.count == 6
    assert problem.examples == ["left 0", "left 1", "left 2", "right 0", "right 1"]
    assert len(right) == 3


def test_no_case_is_lost_between_threads():
    log = ProblemLog()
    threads = [
        threading.Thread(target=lambda: [log.add("x", "here") for _ in range(500)])
        for _ in range(8)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert log.counts() == {"x": 4000}


def test_verdicts_note_or_stop():
    mild = Verdicts()
    mild.bad_record("unreadable", "a.jpg")
    mild.bad_box("no area", "a.xml, box 1", "ymin 3")
    assert [(p["reason"], p["action"]) for p in mild.problems.to_list()] == [
        ("no area", "box dropped"),
        ("unreadable", "image left out"),
    ]
    strict = Verdicts("fail", "fail")
    with pytest.raises(UserError, match=r"a\.jpg: unreadable: why\n  fix: .*--bad-records drop"):
        strict.bad_record("unreadable", "a.jpg", "why")
    with pytest.raises(UserError, match=r"a\.xml: no area\n  fix: .*--bad-boxes fix"):
        strict.bad_box("no area", "a.xml")
