"""The files of a release, the first hour of a new user, shared programs, and the lint of prose."""

import hashlib
import io
import json
import re
import sys
import tarfile
import zipfile
import zlib
from pathlib import Path

import pytest

from stillbox import __version__
from stillbox.checking.ahead_of_time.compiling import Memory, StepCheck
from stillbox.devices.roofline import Roofline
from stillbox.experiment.params_dict import section as unused_keys
from stillbox.experiment.params_dict.keys import FINAL, KEYS, OLD
from stillbox.experiment.params_dict.reader import RENAMED, REPEATED
from stillbox.experiment.pipeline_config import section
from stillbox.experiment.pipeline_config.reader import read_pipeline_config
from stillbox.experiment.pipeline_config.section import NO_EFFECT, REFUSED, ROOT, load_schema
from stillbox.experiment.schema import Experiment
from stillbox.experiment.values import leaf_paths
from stillbox.findings import Finding
from tests.programs import Programs
from tools import distribution, params_dict, pipeline_config, prose, verdicts, walk
from tools.effects import Effect
from tools.fields import page as fields_page


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    pytest.importorskip("hatchling")
    pytest.importorskip("build")
    if not (distribution.ROOT / ".git").exists():
        pytest.skip("commits are built, and there is no repository")
    output = tmp_path_factory.mktemp("dist")
    for earlier in ("stillbox-0.0.1-py3-none-any.whl", "stillbox-0.0.1.tar.gz"):
        (output / earlier).touch()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "argv", ["distribution", str(output)])
        assert distribution.main() is None
    return output


def test_two_builds_have_the_same_bytes(built):
    sums = dict(
        reversed(line.split("  ")) for line in (built / "SHA256SUMS").read_text().splitlines()
    )
    assert sums == {
        name: hashlib.sha256((built / name).read_bytes()).hexdigest()
        for package in ("stillbox", "stillbox_legacy")
        for name in (f"{package}-{__version__}-py3-none-any.whl", f"{package}-{__version__}.tar.gz")
    }
    # Files of another version are gone.
    assert names(built) == {*sums, "SHA256SUMS"}


def test_data_files_are_in_the_wheel_and_tests_in_the_sdist(built):
    wheel = zipfile.ZipFile(next(built.glob("stillbox-*.whl"))).namelist()
    for kind in ("py.typed", ".pyi", ".yaml", ".css", ".pbtxt", ".html", "messages.txt"):
        assert any(name.endswith(kind) for name in wheel), kind
    assert not any(name.startswith(("tests", "tools", "docs")) for name in wheel)
    with tarfile.open(next(built.glob("stillbox-*.tar.gz"))) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    assert {"constraints.txt", "docs/README.md", "tests/test_extras.py", "LICENSE"} <= names


def test_a_file_that_the_wheel_lacks_is_named():
    empty = io.BytesIO()
    zipfile.ZipFile(empty, "w").close()
    missing = distribution.missing_files(empty.getvalue(), "stillbox")
    assert {"stillbox/py.typed", "stillbox/extras.py"} <= missing
    missing = distribution.missing_files(empty.getvalue(), "stillbox_legacy")
    assert "stillbox_legacy/tutorials/protos.txt" in missing


@pytest.mark.slow
def test_every_step_shows_what_a_new_user_needs(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr("sys.argv", ["walk", str(tmp_path / "walk")])
    code = walk.main()
    assert code == 0, capsys.readouterr().out


def names(folder):
    return {entry.name for entry in folder.iterdir()}


def test_two_workers_and_the_next_session_share_what_is_complete(tmp_path):
    kept = tmp_path / "kept"
    kept.mkdir()
    first, other = (Programs(tmp_path / name, kept) for name in ("one", "other"))
    whole = zlib.compress(b"a program")
    (first.folder / "jit_step-1-cache").write_bytes(whole)
    (first.folder / "jit_step-2-cache").write_bytes(whole[:-2])  # the process was killed
    first.exchange()
    other.exchange()
    assert names(other.folder) == names(kept) == {"jit_step-1-cache"}
    assert (other.folder / "jit_step-1-cache").read_bytes() == whole

    (other.folder / "jit_step-2-cache").write_bytes(whole)
    other.exchange()
    assert names(kept) == {"jit_step-1-cache", "jit_step-2-cache"}


# ---- The page of verdicts: which batch a row is about, and that a stopped run goes on ------------


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


# ---- docs/fields.md, docs/params_dict.md and docs/pipeline_config.md are what the code does today


FIELDS_PAGE = Path(__file__).parents[2] / "docs" / "fields.md"


def test_the_page_of_all_fields_is_up_to_date():
    assert FIELDS_PAGE.read_text(encoding="utf-8") == fields_page(), (
        "python -m tools.fields > docs/fields.md"
    )


def test_every_field_is_listed_under_the_path_of_its_section():
    sections = {}
    for line in fields_page().splitlines():
        if line.startswith("## "):
            title = line
        elif line.startswith("| `"):
            sections.setdefault(title, set()).add(line.split("`")[1])
    for path in leaf_paths(Experiment()):
        section, _, name = path.rpartition(".")
        if name != "kind":
            assert any(
                name in names and (f"`{section}`" in title if section else "top" in title)
                for title, names in sections.items()
            ), path


PARAMS_PAGE = Path(__file__).parents[2] / "docs" / "params_dict.md"


def test_the_page_of_keys_is_what_the_reader_does_today():
    # `python -m tools.params_dict > docs/params_dict.md` mends it.
    assert PARAMS_PAGE.read_text(encoding="utf-8") == params_dict.page()


@pytest.mark.parametrize("path", KEYS)
def test_every_key_has_an_effect_a_note_or_a_refusal(path):
    effect = params_dict.effects()[path]
    assert effect.honoured or effect.ignored or effect.refused


def test_no_key_is_missing():
    text = PARAMS_PAGE.read_text(encoding="utf-8")
    sections = re.findall(r"^### (.*?)\n(.*?)(?=^##|\Z)", text, re.M | re.S)
    fields = {
        f"{title.strip('`')}.{key}".removeprefix("At the top.")
        for title, rows in sections
        for key in re.findall(r"^\| `(\w+)` \|", rows, re.M)
    }
    assert fields == set(FINAL)
    assert set(re.findall(r"^\| `([\w.]+\.\w+)` \|", text, re.M)) == set(OLD)


@pytest.mark.parametrize(
    ("key", "expected"),
    [
        ("train.train_batch_size", "train.batch_size"),
        ("anchor.num_scales", "model.anchors.scales_per_octave"),
        ("eval.val_json_file", "data.evaluation.annotations"),
        ("spinenet_mbconv.se_ratio", "model.backbone.se_ratio"),
        ("nasfpn.init_drop_connect_rate", "model.neck.drop_connect_rate"),
        ("retinanet_loss.normalizer_momentum", "model.loss.normalizer_momentum"),
        ("train.checkpoint.skip_variables_regex", "train.fine_tune.skip"),
        ("resnet.dropblock.dropblock_size", "model.backbone.drop_block.block_size"),
    ],
)
def test_an_honoured_key_changes_its_field(key, expected):
    assert expected in params_dict.effects()[key].honoured


def test_keys_without_effect_change_nothing():
    for path, reason in unused_keys.NO_EFFECT.items():
        assert not params_dict.effects()[path].honoured, path
        assert reason in params_dict.effects()[path].reasons(), path


def test_the_tables_name_real_keys():
    names = {
        *unused_keys.NO_EFFECT,
        *(label.partition("=")[0] for label in unused_keys.REFUSED),
        *RENAMED.values(),
    }
    names |= {*REPEATED, *RENAMED, *(path for copies in REPEATED.values() for path in copies)}
    assert names <= set(KEYS)


PIPELINE_PAGE = Path(__file__).parents[2] / "docs" / "pipeline_config.md"


def test_the_page_is_what_the_reader_does_today():
    # `python -m tools.pipeline_config > docs/pipeline_config.md` mends it.
    assert PIPELINE_PAGE.read_text(encoding="utf-8") == pipeline_config.page()


def reachable(message, messages):
    """The language as the tables have it, walked without the code that is tested."""
    if message in load_schema().messages and message not in messages:
        messages.add(message)
        for kind in load_schema().messages[message].fields.values():
            reachable(kind.type, messages)
    return messages


def test_no_field_of_the_language_is_missing():
    text = PIPELINE_PAGE.read_text(encoding="utf-8")
    parts = text.partition("## Messages that are not read")
    sections = {
        title: set(re.findall(r"^\| `(\w+)` \|", rows, re.MULTILINE))
        for title, rows in re.findall(r"^## (\S+)\n(.*?)(?=^## |\Z)", parts[0], re.M | re.S)
    }
    unread = dict(re.findall(r"^- `([\w.]+)` \(\d+ fields?\), through `(\S+)`$", parts[2], re.M))
    for name in reachable(ROOT, set()):
        if name in sections:
            assert sections[name] == set(load_schema().messages[name].fields), name
        else:
            owner, _, field = unread[name].rpartition(".")
            assert load_schema().messages[owner].fields[field].type == name
    assert not sections.keys() & unread.keys()


def test_messages_of_other_detectors_have_a_line_each():
    text = PIPELINE_PAGE.read_text(encoding="utf-8")
    assert re.search(
        r"^- `Context` \(\d+ fields\), through `FasterRcnn.context_config`$", text, re.M
    )
    assert "| `center_net` | message | refused |" in text


@pytest.mark.parametrize(
    ("message", "field", "expected"),
    [
        ("Ssd", "num_classes", "model.num_classes"),
        ("ArgMaxMatcher", "matched_threshold", "model.matcher.matched_threshold"),
        ("RandomCropImage", "min_area", "train.augmentations.0.min_area"),
        ("FeaturePyramidNetworks", "min_level", "model.neck.min_level"),
        ("FasterRcnn", "first_stage_atrous_rate", "model.proposals.dilation"),
        ("MaskRCNNBoxPredictor", "share_box_across_classes", "model.boxes.share_boxes"),
        ("GridAnchorGenerator", "scales", "model.proposals.anchors.scales"),
        ("Optimizer", "moving_average_decay", "train.ema_decay"),
        ("InputReader", "max_number_of_boxes", "data.train.max_boxes"),
        ("EvalConfig", "use_moving_averages", "evaluation.use_ema"),
    ],
)
def test_an_honoured_name_changes_its_field(message, field, expected):
    assert expected in pipeline_config.effects()[message][field].honoured


def test_fields_without_effect_change_nothing():
    for message, fields in NO_EFFECT.items():
        for name, reason in fields.items():
            effect = pipeline_config.effects()[message][name]
            assert not effect.honoured, (message, name)
            assert reason in effect.reasons(), (message, name)


def test_refused_fields_are_refused_for_the_listed_reason():
    for label, reason in REFUSED.items():
        message, _, field = label.rpartition(".")
        assert reason in pipeline_config.effects()[message][field].refused.values(), label


def test_a_field_that_is_no_longer_read_shows(monkeypatch):
    def effect():
        pipeline_config._read.cache_clear()
        kind = load_schema().messages["TrainConfig"].fields["sync_replicas"]
        seen = Effect()
        pipeline_config.probe(seen, pipeline_config.BASES[0], ("train_config",), kind)
        return seen

    assert effect().ignored
    monkeypatch.delitem(section.NO_EFFECT["TrainConfig"], "sync_replicas")
    assert list(effect().refused.values()) == ["has no counterpart in stillbox"]
    monkeypatch.undo()
    pipeline_config._read.cache_clear()


@pytest.mark.parametrize("base", pipeline_config.BASES)
def test_probes_start_from_sound_files(base):
    assert read_pipeline_config(base, "p").warnings == ()


def test_names_say_what_they_hold_and_no_sentence_leans_on_another_line():
    folders = [prose.ROOT / folder for folder in prose.FOLDERS]
    assert [remark for file in prose.files(folders) for remark in prose.remarks(file)] == []


BAD = '''
"""Its name."""

class Box:
    """A box, the area of which is that of its pixels."""

    thing: int
    """So is this."""

def own(what):
    # A first line
    # whose second line goes on.
    one, (found, *_) = what
    return one  # These are two.
'''


def test_each_kind_of_remark(monkeypatch, tmp_path):
    monkeypatch.setattr(prose, "ROOT", tmp_path.resolve())
    file = tmp_path / "bad.py"
    file.write_text(BAD)
    assert sorted(remark.line for remark in prose.remarks(file)) == [
        2, 5, 7, 8, 10, 10, 11, 13, 13, 14,
    ]  # fmt: skip
    file.write_text('"""A box: the area of its pixels."""\n\nwidth = 1  # Such as `x`.\n')
    assert list(prose.remarks(file)) == []
