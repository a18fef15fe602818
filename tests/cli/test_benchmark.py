"""`stillbox benchmark`: options, what is printed, exit codes. The measuring is tested elsewhere."""

import json
from pathlib import Path

import pytest

from stillbox.evaluation.runtimes import RuntimeRow, RuntimeTable
from stillbox.exporting.benchmarking import runner
from stillbox.exporting.benchmarking.runner import Benchmark
from stillbox.exporting.benchmarking.subjects import BenchmarkSettings

ROW = RuntimeRow(name="checkpoint", runtime="jax 0.10.0", p50_ms=13.0)
ABSENT = RuntimeRow(name="onnx", runtime="openvino", state="not installed", message="pip install x")
FAILED = RuntimeRow(name="onnx", runtime="onnxruntime", state="failed", message="it was killed")


@pytest.fixture
def asked(monkeypatch):
    """What a command line asks for; nothing is measured. Its rows and its end can be set."""
    calls = {"rows": (ROW,), "interrupted": False}

    def benchmark(source, **arguments):
        calls.update(arguments, source=source)
        table = RuntimeTable(model="owls", rows=calls["rows"])
        return Benchmark(table, Path("out/benchmark.html"), calls["interrupted"])

    monkeypatch.setattr(runner, "benchmark", benchmark)
    return calls


def test_all_options_reach_the_benchmark(stillbox, trained, asked):
    code, out, err = stillbox(
        *("benchmark", trained, "--step", "2", "--set", "evaluation.metrics=[pascal_voc]"),
        *("--formats", "onnx,tflite_int8", "--exports", "kept", "--image-size", "48,80"),
        *("--images", "a.jpg", "b.jpg", "--limit", "9", "--no-ap", "--min-score", "0.5"),
        *("--warmup", "3", "--repeats", "50", "--threads", "1", "--output", "out"),
    )
    assert code == 0, err
    assert asked["settings"] == BenchmarkSettings(
        formats=("onnx", "tflite_int8"),
        limit=9,
        scored=False,
        min_score=0.5,
        warmup=3,
        repeats=50,
        threads=1,
        image_size=(48, 80),
    )
    assert (asked["source"], asked["step"]) == (str(trained), 2)
    assert asked["overrides"] == ["evaluation.metrics=[pascal_voc]"]
    assert asked["images"] == [Path("a.jpg"), Path("b.jpg")]
    assert (asked["exports"], asked["output"]) == (Path("kept"), Path("out"))
    assert out.startswith("owls\n")
    assert "page: out/benchmark.html" in err


def test_the_defaults_are_those_of_the_function(stillbox, trained, asked):
    code, _, err = stillbox("benchmark", trained)
    assert code == 0
    assert asked["settings"] == BenchmarkSettings()
    # Whose report shows the table.
    assert err.endswith(f"next: stillbox evaluate {trained}\n")


def test_json_is_all_of_standard_output(stillbox, trained, asked):
    code, out, _ = stillbox("benchmark", trained, "--json")
    assert code == 0
    assert json.loads(out)["rows"][0]["p50_ms"] == 13.0


@pytest.mark.parametrize(
    "rows, interrupted, code",
    [((ROW, ABSENT), False, 0), ((ROW, FAILED), False, 1), ((ROW,), True, 130)],
    ids=["absent", "failed", "interrupted"],
)
def test_the_exit_code(stillbox, trained, asked, rows, interrupted, code):
    asked.update(rows=rows, interrupted=interrupted)
    answer = stillbox("benchmark", trained)
    assert answer.code == code
    assert "checkpoint" in answer.out


@pytest.mark.parametrize(
    "words, message",
    [
        (("--formats", "onxn"), "did you mean 'onnx'?"),
        (("--image-size", "640"), "'640' is no size"),
        (("--repeats", "0"), "--repeats: 0 is out of range"),
        (("--images", "absent.jpg"), "absent.jpg"),
    ],
    ids=["format", "size", "repeats", "image"],
)
def test_wrong_words_are_refused(refused, trained, words, message):
    assert message in refused("benchmark", trained, *words)


def test_a_config_needs_weights(refused):
    assert "weights" in refused("benchmark", "demo_scenes")
