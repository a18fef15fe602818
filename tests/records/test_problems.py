import threading

import pytest

from stillbox.errors import UserError
from stillbox.records.conversion import ConversionReport
from stillbox.records.problems import ConversionLog, ProblemLog


def test_cases_are_counted_by_reason_and_outcome():
    log = ProblemLog()
    for box in range(7):
        log.add("no area", f"a.record: record {box}", "ymin 1", action="box dropped")
    log.add("no area", "b.record: record 0", action="box kept")
    log.add("inverted", "a.record: record 1", action="box fixed")
    kinds = [(problem.reason, problem.action, problem.count) for problem in log]
    assert kinds == [
        ("no area", "box dropped", 7),
        ("inverted", "box fixed", 1),
        ("no area", "box kept", 1),
    ]
    assert next(iter(log)).examples == [f"a.record: record {box}: ymin 1" for box in range(5)]


def test_a_report_shows_every_kind_and_the_number_of_cases_left_out():
    log = ProblemLog()
    for box in range(7):
        log.add("no area", f"[red]{box}", action="box dropped")
    log.add("inverted", "a.jpg", "ymin 1")
    assert ConversionReport(name="train", problems=list(log)).to_text().splitlines()[-10:] == [
        "Special or wrong",
        "  7 x no area, box dropped",
        *(f"    [red]{box}" for box in range(5)),
        "    ... and 2 more",
        "  1 x inverted",
        "    a.jpg: ymin 1",
    ]


def test_a_log_is_extended_by_another():
    left, right = ProblemLog(), ProblemLog()
    for log, name in ((left, "left"), (right, "right")):
        for number in range(3):
            log.add("x", f"{name} {number}")
    left.extend(right)
    (problem,) = left
    assert problem.count == 6
    assert problem.examples == ["left 0", "left 1", "left 2", "right 0", "right 1"]
    assert [problem.count for problem in right] == [3]


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
    assert {p.reason: p.count for p in log} == {"x": 4000}


def test_a_conversion_log_counts_or_stops():
    mild = ConversionLog()
    mild.bad_record("unreadable", "a.jpg")
    mild.bad_box("no area", "a.xml, box 1", "ymin 3")
    assert [(p.reason, p.action) for p in mild] == [
        ("no area", "box dropped"),
        ("unreadable", "image left out"),
    ]
    strict = ConversionLog("fail", "fail")
    with pytest.raises(UserError, match=r"a\.jpg: unreadable: why\n  fix: .*--bad-records drop"):
        strict.bad_record("unreadable", "a.jpg", "why")
    with pytest.raises(UserError, match=r"a\.xml: no area\n  fix: .*--bad-boxes fix"):
        strict.bad_box("no area", "a.xml")
