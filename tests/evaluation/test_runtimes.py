"""The table of runtimes: as text, as untrusted JSON, and on the page of a report."""

import json
from dataclasses import replace

import pytest

from stillbox.evaluation import runtimes
from stillbox.evaluation.analysis import analyse
from stillbox.evaluation.report import Report, render_page
from stillbox.evaluation.scores import score
from tests.evaluation.builders import result, truth
from tests.helpers import refusal

CHECKPOINT = runtimes.RuntimeRow(
    name="checkpoint",
    runtime="jax 0.10.0",
    bytes=16_518_972,
    load_seconds=4.0,
    memory_bytes=421_773_312,
    p50_ms=13.0,
    p99_ms=15.25,
    resizing_ms=2.0,
    images_per_second=75.5,
    runs=200,
    scores={"AP": 0.2224, "AP50": 0.3839, "APs": None},
)
ONNX = replace(
    CHECKPOINT,
    name="onnx",
    runtime="onnxruntime 1.31.1",
    p50_ms=26.0,
    compared=412,
    found=410,
    box_difference=0.012,
    score_difference=2e-06,
)
ABSENT = runtimes.RuntimeRow(
    name="onnx", runtime="openvino", state="not installed", message="pip install '.[openvino]'"
)
TABLE = runtimes.RuntimeTable(
    model="runs/owls, step 9",
    images=50,
    scored=True,
    machine={"processor": "AMD EPYC", "threads": "2"},
    min_score=0.3,
    rows=(CHECKPOINT, ONNX, ABSENT),
    notes=("other programs kept this machine busy",),
)


def test_the_text_has_a_row_for_each_runtime():
    lines = TABLE.render().splitlines()
    assert lines[:2] == ["runs/owls, step 9", "processor AMD EPYC; threads 2"]
    table = lines[3:7]
    assert [" ".join(line.split()) for line in table[:3]] == [
        "artefact runtime size load p50 ms p99 ms images/s AP found box score memory",
        "checkpoint jax 0.10.0 16.5 MB 4.00 s 13.00 15.25 75.5 0.2224 - - - 422 MB",
        "onnx onnxruntime 1.31.1 16.5 MB 4.00 s 26.00 15.25 75.5 0.2224 410/412 0.012 2e-06 422 MB",
    ]
    assert table[3].split(None, 2)[2] == "not installed: pip install '.[openvino]'"
    assert len({len(line) for line in table[:3]}) == 1
    assert lines[-1] == "other programs kept this machine busy"


def test_without_scores_and_a_checkpoint_nothing_is_said_of_them():
    alone = replace(TABLE, rows=(replace(CHECKPOINT, scores={}), ABSENT), scored=False)
    text = alone.render()
    assert "AP" not in text
    assert "found: " not in text


def test_the_file_reads_back_as_the_same_table(tmp_path):
    path = tmp_path / runtimes.BENCHMARK
    path.write_text(TABLE.to_json())
    assert runtimes.read_runtimes(path) == TABLE


def without(*names):
    content = json.loads(TABLE.to_json())
    inner = content
    for name in names[:-1]:
        inner = inner[name]
    del inner[names[-1]]
    return content


def changed(value, *names):
    content = json.loads(TABLE.to_json())
    inner = content
    for name in names[:-1]:
        inner = inner[name]
    inner[names[-1]] = value
    return content


@pytest.mark.parametrize(
    "content",
    [
        [],
        without("version"),
        changed(2, "version"),
        changed({"threads": 2}, "machine"),
        changed("onnx", "rows"),
        changed([[]], "rows"),
        without("rows", 0, "scores"),
        changed({"AP": "high"}, "rows", 0, "scores"),
        changed(10**400, "rows", 0, "bytes"),
        changed(float("nan"), "rows", 0, "p50_ms"),
        changed("running", "rows", 0, "state"),
        changed(1, "rows", 0, "speed"),
    ],
    ids=str,
)
def test_another_content_is_refused(tmp_path, content):
    path = tmp_path / runtimes.BENCHMARK
    path.write_text(json.dumps(content))
    assert str(path) in str(refusal(runtimes.read_runtimes, path))


def test_a_damaged_table_is_left_out_of_a_report_with_a_warning(tmp_path):
    said = []
    assert runtimes.find_runtimes(tmp_path, said.append) is None
    assert said == []
    (tmp_path / runtimes.FOLDER).mkdir()
    (tmp_path / runtimes.FOLDER / runtimes.BENCHMARK).write_text("{")
    assert runtimes.find_runtimes(tmp_path, said.append) is None
    assert "left out of the report" in said[0]


def test_the_page_of_a_report_has_the_table():
    truths, results = [truth("a", [[0, 0, 9, 9]])], [result("a", [[0, 0, 9, 9]], [0.9])]
    report = Report(
        title="owls",
        scores=score(truths, results, {1: "owl"}),
        analysis=analyse(truths, results, {1: "owl"}),
    )
    page = render_page(report, {})
    assert "<h2>Runtimes</h2>" not in page
    evil = replace(ABSENT, name="<script>", message="<b>bold</b>")
    page = render_page(replace(report, runtimes=replace(TABLE, rows=(CHECKPOINT, ONNX, evil))), {})
    section = page.partition("<h2>Runtimes</h2>")[2].partition("</section>")[0]
    assert "onnxruntime 1.31.1" in section
    assert "Measured with runs/owls, step 9; processor AMD EPYC; threads 2." in section
    assert "&lt;script&gt; in openvino: not installed: &lt;b&gt;bold&lt;/b&gt;" in section
    head, _, body = section.partition("<tbody>")
    row = body.partition("</tr>")[0]
    # A sortable table needs a head for each cell.
    cells = [text.count("<th") - text.count("<thead") + text.count("<td") for text in (head, row)]
    assert cells == [12, 12]


def test_a_table_without_rows_has_no_section():
    assert runtimes.runtime_section(runtimes.RuntimeTable()) == ""
