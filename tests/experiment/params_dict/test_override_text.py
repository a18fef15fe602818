"""The forms of an override (goldens I.* of ops.json)."""

import pytest

from stillbox.errors import UserError
from stillbox.experiment.params_dict.merging import read_layer
from stillbox.experiment.params_dict.override_text import read_text


def values(text):
    layer = read_layer(read_text(text, "--params_override"))
    return {path: entry.value for path, entry in layer.items()}


def refusal(text):
    with pytest.raises(UserError) as error:
        values(text)
    return str(error.value)


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


@pytest.mark.parametrize(
    "pattern",
    [
        "/data/train-*",
        "/data/train*.tfrecord",
        "*.tfrecord",
        "/data/train-?????-of-00256.tfrecord",
        "/data/train-[0-9]*.tfrecord",
        "/data/{a,b}/train-*.tfrecord",
        "&here/train",
        "%here/train-*",
        "!here/train",
        "gs://bucket/train-*",
        "s3://bucket/train-*",
        ":here",
    ],
)
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


def test_json():
    assert values('{"train": {"total_steps": 5, "transpose_input": false}, "model_dir": "a*"}') == {
        "train.total_steps": 5,
        "train.transpose_input": False,
        "model_dir": "a*",
    }


def test_yaml_in_several_lines():
    assert values("train:\n  total_steps: 5  # few\n  learning_rate: {warmup_steps: 2}\n") == {
        "train.total_steps": 5,
        "train.learning_rate.warmup_steps": 2,
    }


def test_a_file(tmp_path):
    file = tmp_path / "mine.yaml"
    file.write_text("train:\n  total_steps: 5\n")
    layer = read_layer(read_text(str(file), "--params_override"))
    assert layer["train.total_steps"].value == 5
    assert layer["train.total_steps"].where == f"{file}:2:3"


def test_an_empty_text_gives_nothing():
    assert values("") == values("  ") == values("{}") == {}
    # A shell turns a variable that is not set into this.
    assert values("{ train: { train_file_pattern: , total_steps: 4 } }") == {
        "train.train_file_pattern": "",
        "train.total_steps": 4,
    }


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("1e-4", 0.0001),
        ("-1.e-3", -0.001),
        ("+0.001", 0.001),
        ("1e+3", 1000.0),
        ("-1.5E-3", -0.0015),
        (".5", 0.5),
        ("3", 3.0),
    ],
)
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
        found = values(form)["train.l2_weight_decay"]
        assert found == number and isinstance(found, float), form
    assert values(f"{{anchor: {{aspect_ratios: [{text}]}}}}")["anchor.aspect_ratios"] == (number,)


def test_whole_numbers_stay_whole():
    assert values("train.total_steps=9e4") == {"train.total_steps": 90000}
    assert "is a whole number, not 1.5" in refusal("train.total_steps=1.5")
    assert "is a number, not '1e'" in refusal("anchor.anchor_size=1e")
    assert "is a number, not inf" in refusal("{anchor: {anchor_size: .inf}}")


def test_text_takes_what_was_typed():
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


def test_an_empty_section_is_accepted(tmp_path):
    file = tmp_path / "mine.yaml"
    file.write_text("train:\n  # total_steps: 5\neval:\n  suffix: b\n")
    assert values(str(file)) == {"eval.suffix": "b"}


def test_the_place_of_a_mistake(tmp_path):
    file = tmp_path / "mine.yaml"
    file.write_text("train:\n  learning_rate:\n    warmup_step: 5\n")
    assert refusal(str(file)).startswith(f"{file}:3:5: train.learning_rate has no key")
