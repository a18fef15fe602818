"""The forms of an override (goldens I.* of ops.json).

Files, overrides, templates, and the dictionary that is saved.
"""

import pytest

from stillbox.cli.overrides import changes_of
from stillbox.experiment.params_dict import read_params, resolved_text
from stillbox.experiment.params_dict.command_line import TEMPLATES, read_text
from stillbox.experiment.params_dict.merging import read_layer
from stillbox.experiment.resolve import resolve
from stillbox.experiment.values import differences
from stillbox.references import Parameter
from tests.helpers import refusal as user_error
from tests.helpers import refused
from tests.small import SHARED, needs_shared


def values(text):
    layer = read_layer(read_text(text, "params_override"))
    return {path: entry.value for path, entry in layer.items()}


def refusal(text):
    error = user_error(values, text)
    return str(error)


def test_the_line_of_the_page():
    # As the page writes it, after the shell has put paths in place of its variables.
    text = (
        "{ type: retinanet, train: { checkpoint: { path: gs://cloud/resnet/model.ckpt-112602, "
        "prefix: resnet50/ }, train_file_pattern: /data/train-* }, "
        "eval: { val_json_file: /data/val2017.json, eval_file_pattern: /data/val*.tfrecord } }"
    )
    assert values(text) == {
        "type": "retinanet",
        "train.checkpoint.path": "gs://cloud/resnet/model.ckpt-112602",
        "train.checkpoint.prefix": "resnet50/",
        "train.train_file_pattern": "/data/train-*",
        "eval.val_json_file": "/data/val2017.json",
        "eval.eval_file_pattern": "/data/val*.tfrecord",
    }


@pytest.mark.parametrize("pattern", [
    "/data/train-*", "/data/train*.tfrecord", "*.tfrecord", "/data/train-?????-of-00256.tfrecord",
    "/data/train-[0-9]*.tfrecord", "/data/{a,b}/train-*.tfrecord", "&here/train", "%here/train-*",
    "!here/train", "gs://bucket/train-*", "s3://bucket/train-*", ":here",
])  # fmt: skip
@pytest.mark.parametrize(
    "form",
    [
        "{{train: {{train_file_pattern: {}}}}}",
        "{{ train: {{ train_file_pattern: {} }} }}",
        "{{ train: {{ train_file_pattern: {}, total_steps: 7 }}, eval: {{suffix: b}} }}",
        "train.train_file_pattern={}",
        "train.train_file_pattern={}, train.total_steps=7",
    ],
)
def test_a_pattern_needs_no_quotes(form, pattern):
    assert values(form.format(pattern))["train.train_file_pattern"] == pattern


def test_pairs():
    # I.csv gives num_scales 3, aspect_ratios [1.0, 2.0] and keeps what is not named.
    assert values("anchor.num_scales=3, anchor.aspect_ratios=[1.0, 2.0]") == {
        "anchor.num_scales": 3,
        "anchor.aspect_ratios": (1.0, 2.0),
    }
    assert values("model_dir='x, y',eval.suffix=\"a=b\"") == {
        "model_dir": "x, y",
        "eval.suffix": "a=b",
    }
    assert values("train.total_steps=10,") == {"train.total_steps": 10}


def test_json_yaml_and_files_are_read(tmp_path):
    assert values('{"train": {"total_steps": 5, "transpose_input": false}, "model_dir": "a*"}') == {
        "train.total_steps": 5,
        "train.transpose_input": False,
        "model_dir": "a*",
    }
    assert values("train:\n  total_steps: 5  # few\n  learning_rate: {warmup_steps: 2}\n") == {
        "train.total_steps": 5,
        "train.learning_rate.warmup_steps": 2,
    }
    file = tmp_path / "mine.yaml"
    file.write_text("train:\n  total_steps: 5\n")
    layer = read_layer(read_text(str(file), "params_override"))
    assert layer["train.total_steps"].value == 5
    assert layer["train.total_steps"].where == f"{file}:2:3"


def test_an_empty_text_gives_nothing():
    assert values("") == values("  ") == values("{}") == {}
    # A shell turns a variable that is not set into this.
    assert values("{ train: { train_file_pattern: , total_steps: 4 } }") == {
        "train.train_file_pattern": "",
        "train.total_steps": 4,
    }


@pytest.mark.parametrize(("text", "number"), [
    ("1e-4", 0.0001), ("-1.e-3", -0.001), ("+0.001", 0.001), ("1e+3", 1000.0), ("-1.5E-3", -0.0015),
    (".5", 0.5), ("3", 3.0),
])  # fmt: skip
def test_a_number_is_a_number_everywhere(text, number, tmp_path):
    # I.exp_float_file: the original's files leave 1e-4 a text.
    file = tmp_path / "mine.yaml"
    file.write_text(f"train:\n  l2_weight_decay: {text}\n")
    for form in (
        f"{{train: {{l2_weight_decay: {text}}}}}",
        f"train.l2_weight_decay={text}",
        f"{{train: {{l2_weight_decay: {text}, train_file_pattern: a-?}}}}",
        str(file),
    ):
        number_read = values(form)["train.l2_weight_decay"]
        assert number_read == number and isinstance(number_read, float), form
    assert values(f"{{anchor: {{aspect_ratios: [{text}]}}}}")["anchor.aspect_ratios"] == (number,)


def test_numbers_and_texts_take_the_type_of_their_key():
    assert values("train.total_steps=9e4") == {"train.total_steps": 90000}
    assert "is a whole number, not 1.5" in refusal("train.total_steps=1.5")
    assert "is a number, not '1e'" in refusal("anchor.anchor_size=1e")
    assert "is a number, not inf" in refusal("{anchor: {anchor_size: .inf}}")
    assert values("spinenet.model_id=49") == values("{spinenet: {model_id: 49}}")
    assert values("spinenet.model_id=49") == {"spinenet.model_id": "49"}
    # A date in YAML, but meant as the name of a folder.
    assert values("model_dir=2020-04-02") == {"model_dir": "2020-04-02"}


@pytest.mark.parametrize(
    ("text", "said"),
    [
        # I.unknown_key and I.unknown_nested; the second is a typo of the original's own guide.
        ("{foo: 1}", "the dictionary has no key 'foo'"),
        ("{train: {learnin_rate: {type: step}}}", "did you mean 'learning_rate'?"),
        ("train.learning_rate.warmup_step=3", "did you mean 'warmup_steps'"),
        ("{train: {resnet_depth: 18}}", "did you mean 'resnet.resnet_depth'?"),
        # I.missing_file.
        ("/nonexistent.yaml", "there is no file /nonexistent.yaml"),
        ("gs://bucket/mine.yaml", "is not a local file"),
        # I.dict_over_scalar ends in Python's words there, I.scalar_over_dict in a broken model.
        ("anchor.anchor_size.x=4", "anchor.anchor_size is a number and has nothing in it"),
        ("anchor=3", "anchor is a section and cannot be 3"),
        ("{anchor: [3]}", "anchor is a section and cannot be a list"),
        ("anchor.aspect_ratios=1", "anchor.aspect_ratios is a list of numbers, not 1"),
        ("anchor.aspect_ratios=[1, a]", "anchor.aspect_ratios.1 is a number, not 'a'"),
        ("train.transpose_input=yess", "train.transpose_input is true or false, not 'yess'"),
        ("train.total_steps=null", "train.total_steps is a whole number, not null"),
        ("{model_dir: [a]}", "model_dir is text, not a list"),
        ("model_dir=a,model_dir=b", "'model_dir' is given twice"),
        ("{model_dir: a, model_dir: b*}", "'model_dir' is given twice"),
        ("{model_dir: a-?, model_dir: b}", "given twice"),
        ("anchor.num_scales=3,anchor.num_scales.b=2", "given twice"),
        ("{train: {train_file_pattern: /a,/b}}", "put the value in quotes"),
        ("{train: {total_steps: ", "a comma or } is expected before the end"),
        ("{train: {train_file_pattern: a-? b: c}", "a comma or } is expected before the end"),
        ("model_dir='a", "a closing ' is expected"),
        ("model_dir=a, b", "name=value is expected before 'b'"),
        ("[1]", "holds no names and values"),
        ("{rpn_head: {num_convs: 1}}", "Mask R-CNN is a detector of two stages"),
    ],
)
def test_what_is_refused(text, said):
    message = refusal(text)
    assert said in message
    assert "fix:" in message or "is " in message


def test_files_have_empty_sections_and_places_of_mistakes(tmp_path):
    file = tmp_path / "mine.yaml"
    file.write_text("train:\n  # total_steps: 5\neval:\n  suffix: b\n")
    assert values(str(file)) == {"eval.suffix": "b"}
    file = tmp_path / "mine.yaml"
    file.write_text("train:\n  learning_rate:\n    warmup_step: 5\n")
    assert refusal(str(file)).startswith(f"{file}:3:5: train.learning_rate has no key")


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_the_order_of_the_layers(folder):
    (folder / "mine.yaml").write_text(
        "train: {total_steps: 1, train_batch_size: 2, iterations_per_loop: 3}\n"
    )
    reading = read_params(
        config_file="mine.yaml",
        params_override="{model_dir: x, train: {train_batch_size: 4}}",
    )
    train = reading.experiment.train
    assert (train.steps, train.batch_size) == (1, 4)
    assert reading.origins["train.steps"] == "mine.yaml:1:9"
    assert reading.origins["train.batch_size"] == str(Parameter("params_override"))
    assert reading.params.value("model_dir") == "x"
    assert reading.experiment.name == "mine"
    said = "mine.yaml:1:46: train.iterations_per_loop has no effect here: "
    assert any(note.startswith(said) for note in reading.notes)


def test_overrides_replace_lists_merge_sections_and_can_be_files(folder):
    (folder / "mine.yaml").write_text("anchor: {aspect_ratios: [1.0, 3.0], num_scales: 2}\n")
    reading = read_params(config_file="mine.yaml", params_override="anchor.aspect_ratios=[2.0]")
    anchors = reading.experiment.model.anchors
    assert (anchors.aspect_ratios, anchors.scales_per_octave) == ((2.0,), 2)
    (folder / "mine.yaml").write_text("train: {total_steps: 1}\n")
    assert read_params(params_override="mine.yaml").experiment.train.steps == 1


def test_a_missing_file_is_named_with_its_neighbours(folder):
    (folder / "mine.yaml").write_text("train: {total_steps: 1}\n")
    with refused(Parameter("config_file"), "mime.yaml") as error:
        read_params(config_file="mime.yaml")
    assert "mine.yaml" in str(error.value)
    with refused(Parameter("config_file"), "gs://x/y.yaml"):
        read_params(config_file="gs://x/y.yaml")
    with refused(Parameter("config_file")):
        read_params(config_file=folder)


def test_a_recipe_is_named_where_there_is_neither_file_nor_template(folder):
    with refused(Parameter("config_file")):
        read_params(config_file="configs/ssd_resnet34.yaml")
    with refused(Parameter("config_file"), "retinanet_nasfpn.yaml"):
        read_params(config_file="retinanet_nas_fpn.yaml")


def test_a_template_is_taken_where_its_file_is_absent(folder):
    reading = read_params(
        config_file="configs/spinenet/spinenet49_retinanet.yaml",
        params_override="train.total_steps=7",
    )
    assert reading.experiment.model.backbone.kind == "spinenet"
    assert reading.experiment.train.steps == 7
    assert reading.origins["train.batch_size"] == "template spinenet49_retinanet"
    assert reading.notes[0].startswith(
        "there is no file configs/spinenet/spinenet49_retinanet.yaml"
    )


def test_a_file_goes_before_the_template_of_its_name(folder):
    (folder / "retinanet_nasfpn.yaml").write_text("train: {total_steps: 7}\n")
    experiment = read_params(config_file="retinanet_nasfpn.yaml").experiment
    assert (experiment.train.steps, experiment.model.neck.kind) == (7, "retinanet_fpn")


@pytest.mark.parametrize("name", [*TEMPLATES, "retinanet"])
def test_a_template_and_the_recipe_of_its_name_are_one(name):
    template = read_params(config_file=name if name in TEMPLATES else "").experiment
    recipe = resolve(name).experiment
    # A recipe says where weights come from once they are named, and scores every class.
    free = {"train.fine_tune.scope", "evaluation.per_category"}
    assert {path for path, _, _ in differences(template, recipe)} <= free


@needs_shared
@pytest.mark.parametrize("name", TEMPLATES)
def test_a_template_and_the_published_file_are_one(name):
    file = SHARED / "configs" / "yaml" / f"{name}.yaml"
    assert read_params(config_file=name).experiment == read_params(config_file=file).experiment


def test_another_model_is_refused():
    with refused(Parameter("model"), "mask_rcnn"):
        read_params(model="mask_rcnn")
    with refused(Parameter("model"), "retinanet"):
        read_params(model="retinanets")


def test_what_the_caller_follows_itself_leaves_no_note():
    override = "eval.eval_timeout=60, eval.suffix=b"
    assert len(read_params(params_override=override).notes) == 3
    quiet = read_params(params_override=override, used=("eval.eval_timeout", "eval.suffix"))
    assert len(quiet.notes) == 1
    assert quiet.params.value("eval.eval_timeout") == 60


@pytest.mark.parametrize(
    "override",
    [
        "",
        "train.l2_weight_decay=1e-5, train.total_steps=9e4, model_dir='a: b # c'",
        "{architecture: {multilevel_features: nasfpn}, nasfpn: {block_fn: bottleneck}}",
        "fpn.batch_norm.batch_norm_momentum=0.9, retinanet_head.activation=swish",
        "resnet.batch_norm.batch_norm_trainable=false, retinanet_parser.use_autoaugment=true",
        "architecture.backbone=spinenet, architecture.multilevel_features=identity, "
        "spinenet.model_id=49S, spinenet.block_repeats=2, spinenet.batch_norm.use_sync_bn=true",
        "architecture.num_classes=4, train.train_file_pattern='a-*,b-?'",
    ],
)
def test_what_is_saved_reads_back_as_the_same_experiment(folder, override):
    first = read_params(params_override=override)
    text = resolved_text(first.params)
    (folder / "retinanet.yaml").write_text(text)
    second = read_params(config_file="retinanet.yaml")
    assert second.experiment == first.experiment
    assert resolved_text(second.params) == text
    # Every key is there, and every section once.
    assert text.count("\nretinanet_head:\n") == 1
    assert "\n  learning_rate:\n    type: step\n    warmup_learning_rate: 0.0067\n" in text


def test_what_is_saved_is_todays_dictionary():
    old = "retinanet_head.retinanet_head_num_filters=64, spinenet.block_repeats=2"
    text = resolved_text(read_params(params_override=old).params)
    assert "num_filters: 64\n" in text
    assert "retinanet_head_num_filters" not in text
    # The model has no SpineNet, and today's dictionary no such key.
    assert "block_repeats" not in text


@pytest.mark.parametrize(
    "text",
    [
        "type: retinanet\n",
        "train: {total_steps: 3}\n",
        "train: {total_steps: 3, gradient_clip_norm: 1}\n",
        "architecture: {backbone: resnet}\n",
        "# nothing but\nretinanet_head: {num_filters: 32}\n",
        "anchor: {min_level: 3}\n",
    ],
)
def test_a_yaml_file_with_these_names_is_a_config(folder, text):
    (folder / "mine.yaml").write_text(text)
    resolved = resolve("mine.yaml", changes_of(["train.batch_size=3"]))
    assert resolved.experiment.model.backbone.kind == "resnet"
    assert resolved.experiment.train.batch_size == 3
    assert resolved.experiment.name == "mine"


@pytest.mark.parametrize(
    "text",
    ["train: {steps: 3}\n", "model: {num_classes: 3}\n", "train: {batch_size: 2}\n", "", "name: x"],
)
def test_an_experiment_stays_one(folder, text):
    (folder / "mine.yaml").write_text(text)
    assert resolve("mine.yaml").experiment.model.backbone.kind == "mobilenet_v1"


def test_a_mistyped_dictionary_is_refused_as_one(folder):
    (folder / "mine.yaml").write_text("type: retinanet\ntrian: {total_steps: 3}\n")
    with refused("mine.yaml:2:1", "trian"):
        resolve("mine.yaml")
