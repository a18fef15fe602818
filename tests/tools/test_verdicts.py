"""The page of verdicts: which batch a row is about, and that a stopped run goes on."""

import json
from pathlib import Path

import pytest

from stillbox.checking.ahead_of_time.compiling import Memory, StepCheck
from stillbox.findings import Finding
from stillbox.profiling.costs import Roofline
from tools import verdicts

TPU = verdicts.PAGES["v5e:2x4"]
TOO_LARGE = Finding("error", "train.batch_size", "too large")
DOCS = Path(__file__).resolve().parents[2] / "docs"

MEMORY = Memory(
    parameters=2**20,
    optimizer=0,
    average=0,
    batch=2**20,
    results=0,
    temporaries=2**30,
    code=0,
    usable=2**31,
)


def verdict(images=32, **changes):
    roofline = Roofline(products=0.001, memory=0.002, network=0.0)
    train = StepCheck(
        step="train",
        images=images,
        devices=8,
        memory=MEMORY,
        flops=4e9,
        roofline=roofline,
        collectives={"all-reduce": 3 * 2**20},
        **changes,
    )
    evaluate = StepCheck(step="evaluate", images=24, devices=8, memory=MEMORY)
    predict = StepCheck(step="predict", images=1, devices=1, memory=MEMORY)
    steps = [step.to_dict() for step in (train, evaluate, predict)]
    return {"usable_bytes_per_device": 2**31, "steps": steps}


@pytest.fixture(autouse=True)
def two_recipes(monkeypatch):
    monkeypatch.setattr(verdicts, "in_order", lambda: ["demo_scenes", "retinanet"])
    monkeypatch.setattr(verdicts.metadata, "version", lambda name: "0.0.40")


def test_a_row_is_about_the_recipes_batch_in_bfloat16():
    asked = []
    row = verdicts.make_row("demo_scenes", TPU, lambda *words: asked.append(words) or verdict())
    ((recipe, words),) = asked
    assert recipe == "demo_scenes"
    # The recipe scores 20 at once, and 24 is the next multiple of 8.
    assert words[:2] == ["--target", "v5e:2x4"]
    assert {"train.batch_size=32", "evaluation.batch_size=24", "train.precision=bfloat16"} < set(
        words
    )
    assert (row["own_batch"], row["input"]) == (32, [160, 160])
    assert row["compiler"] == "libtpu 0.0.40"


def test_where_it_does_not_fit_a_smaller_batch_is_tried():
    tried = []

    def check(recipe, words):
        tried.extend(word for word in words if word.startswith("train.batch_size="))
        # Twice the memory that there is, at 32; at 16 it fits.
        return verdict(failure=TOO_LARGE, needed=2**32) if len(tried) == 1 else verdict(16)

    row = verdicts.make_row("demo_scenes", TPU, check)
    assert tried == ["train.batch_size=32", "train.batch_size=16"]
    page = verdicts.write_page({"demo_scenes": row}, TPU)
    assert "| `demo_scenes` | 160 x 160 | 32 -> 16 | 1.00 GiB | 1,022 MiB | 2.0 | 3 MiB |" in page
    # 16 images in 2 ms.
    assert "| 8,000 | 24, 1.00 GiB |" in page
    assert "Not yet compiled: `retinanet`." in page


def test_what_fits_nowhere_is_said():
    row = verdicts.make_row("demo_scenes", TPU, lambda *_: verdict(failure=TOO_LARGE, needed=2**32))
    page = verdicts.write_page({"demo_scenes": row}, TPU)
    assert "| does not fit |" in page
    assert "`demo_scenes`, train: too large." in page


def test_a_stopped_run_goes_on(tmp_path, monkeypatch):
    page, done = tmp_path / "page.md", []

    def make_row(recipe, subject):
        if recipe == "retinanet" and not done[1:]:
            done.append(recipe)
            raise RuntimeError("killed")
        done.append(recipe)
        return {
            "recipe": recipe,
            "input": [1, 1],
            "own_batch": 32,
            "asked_batch": 32,
            "date": "2026-01-01",
            "jax": "0",
            "compiler": "libtpu 0",
            "verdict": verdict(),
        }

    monkeypatch.setattr(verdicts, "make_row", make_row)
    with pytest.raises(RuntimeError):
        verdicts.main(page, TPU)
    assert list(json.loads(page.with_suffix(".json").read_text())) == ["demo_scenes"]
    assert "Not yet compiled: `retinanet`." in page.read_text()
    verdicts.main(page, TPU)
    assert done == ["demo_scenes", "retinanet", "retinanet"]
    assert "Not yet" not in page.read_text()
    verdicts.main(page, TPU, again=["demo_scenes"])
    assert done[3:] == ["demo_scenes"]


@pytest.mark.parametrize(
    ("page", "target"), [("tpu_verdicts.md", "v5e:2x4"), ("gpu_verdicts.md", "h200:8")]
)
def test_the_pages_agree_with_their_rows(monkeypatch, page, target):
    monkeypatch.undo()
    rows = json.loads((DOCS / page).with_suffix(".json").read_text())
    assert (DOCS / page).read_text() == verdicts.write_page(rows, verdicts.PAGES[target])
