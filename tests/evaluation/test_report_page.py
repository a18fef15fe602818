"""The report in Chromium: sorted tables, enlarged figures, and the width of a phone."""

import numpy as np
import pytest

from stillbox.evaluation.analysis import analyse
from stillbox.evaluation.pictures import Mark
from stillbox.evaluation.report import Report, ReportPicture, write_report
from stillbox.evaluation.scores import score
from tests.evaluation.builders import random_set
from tests.serving.browser import KEYS, chromium, needs_chromium

pytestmark = [needs_chromium, pytest.mark.xdist_group("chromium")]

NAMES = {1: "zebra", 2: "<script>alert(1)</script>", 3: "\u732b", 4: "absent"}
_CLASSES = "[...document.querySelectorAll('table.sortable')].find(t => t.rows[0].cells.length > 8)"


@pytest.fixture(scope="module")
def page(tmp_path_factory):
    folder = tmp_path_factory.mktemp("report")
    truths, results = random_set(1)
    mark = Mark(box=(10, 10, 60, 90), text="\u732b 0.90", color=(200, 0, 0))
    report = Report(
        title="a report",
        scores=score(truths, results, NAMES),
        analysis=analyse(truths, results, NAMES),
        pictures=[
            ReportPicture(
                image=np.zeros((90, 120, 3), np.uint8),
                panels=[("truth", [mark]), ("prediction", [])],
                name="one",
                about="",
            )
        ],
    )
    path = write_report(report, folder)
    with chromium(folder) as browser:
        browser.resize(1100, 800)
        browser.open(path.as_uri())
        yield browser
        # The policy and the scripts report no error.
        assert browser.complaints() == []


def column(page, place):
    script = f"return [...{_CLASSES}.tBodies[0].rows].map(r => r.cells[{place}].textContent)"
    return page.run(script)


def test_tables_sort_by_their_heads(page):
    before = column(page, 0)
    assert before[-1] == "absent"
    click = f"{_CLASSES}.tHead.rows[0].cells[3].querySelector('button').click()"
    page.run(click)
    falling = column(page, 3)
    # The class without a precision stays at the end.
    assert falling[-1] == "\u2013"
    assert falling[:-1] == sorted(falling[:-1], reverse=True)
    page.run(click)
    assert column(page, 3) == [*falling[:-1][::-1], "\u2013"]
    page.run(click)
    assert column(page, 0) == before


def test_a_picture_enlarges_and_closes(page):
    page.run("document.querySelector('.figures svg').dispatchEvent(new MouseEvent('click'))")
    assert page.run("return document.querySelector('dialog').open")
    assert page.run("return document.querySelector('dialog svg').clientWidth") > 800
    page.press(KEYS["escape"])
    page.wait("return !document.querySelector('dialog').open")


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_the_page_fits_a_phone_in_both_schemes(page, scheme):
    page.resize(390, 800)
    page.prefer(scheme)
    assert page.run("return document.documentElement.scrollWidth") == 390
    ground = page.run("return getComputedStyle(document.querySelector('section')).backgroundColor")
    assert (ground == "rgb(255, 255, 255)") == (scheme == "light")
    page.resize(1100, 800)
