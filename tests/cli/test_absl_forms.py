import pytest

from stillbox.cli.main import build_parser, main, verb_options
from stillbox.cli.original_flags import explain_flags
from stillbox.cli.parsing import with_two_dashes

NEEDED = {
    "model_main": ["--pipeline_config_path=c", "--model_dir=m"],
    "retinanet": ["--model_dir=m"],
    "ssd_resnet34": ["--model_dir=m"],
    "export_saved_model": ["--export_dir=e", "--checkpoint_path=c"],
    "exporter_main_v2": ["--trained_checkpoint_dir=c", "--output_directory=o"],
    "export_tflite_graph_tf2": ["--trained_checkpoint_dir=c", "--output_directory=o"],
    "legacy_train": ["--train_dir=t", "--pipeline_config_path=c"],
}


def pytest_generate_tests(metafunc):
    """Tests take the verbs of their module; stillbox-legacy has a module with its own."""
    if "needed" in metafunc.fixturenames:
        verbs = metafunc.module.NEEDED
        metafunc.parametrize(("verb", "needed"), verbs.items(), ids=verbs)


def parse(verb, words):
    given = with_two_dashes(words, verb_options(verb))
    return build_parser(verb).parse_args([verb, *given])


def test_one_dash_is_two(verb, needed):
    twice = [word[1:] for word in needed]
    apart = [part for word in twice for part in word.split("=")]
    whole = vars(parse(verb, needed))
    for words in (twice, apart):
        assert vars(parse(verb, words)) == whole


@pytest.mark.parametrize(
    "words",
    [
        ("--alsologtostderr",),
        ("--nologtostderr", "--stderrthreshold=info"),
        ("-alsologtostderr=true", "--verbosity=1"),
        ("--v=1", "--log_dir=/tmp/x", "--noshowprefixforinfo"),
        ("--verbosity", "-1"),
    ],
)
def test_flags_of_absl_itself_are_taken_in_silence(verb, needed, words, capsys):
    explain_flags(parse(verb, [*needed, *words]), ())
    assert capsys.readouterr().err == ""


def test_the_short_verbosity_has_its_value_behind_an_equals_sign(verb, needed):
    parsed = parse(verb, [*needed, "-v=1"])
    # In SSD ResNet-34's script it is another flag.
    assert (parsed.log_step_count_steps if verb == "ssd_resnet34" else int(parsed.v)) == 1


@pytest.mark.parametrize("flag", ["--flagfile=f.txt", "-flagfile=f.txt", "--undefok=a,b"])
def test_what_absl_reads_elsewhere_is_refused_by_name(verb, needed, flag, capsys):
    assert main([verb, *needed, flag]) == 2
    said = capsys.readouterr().err
    assert f"--{flag.partition('=')[0].lstrip('-')} is not supported" in said
    assert "$(cat FILE)" in said or "leave out" in said


@pytest.mark.parametrize(
    ("verb", "words", "name"),
    [
        ("model_main", ["--nouse_tpu"], "use_tpu"),
        ("model_main", ["-nouse_tpu"], "use_tpu"),
        ("model_main", ["--norecord_summaries"], "record_summaries"),
        ("retinanet", ["--nouse_tpu"], "use_tpu"),
        ("retinanet", ["--noskip_host_call"], "skip_host_call"),
        ("export_saved_model", ["--nolog_model_flops_and_params"], "log_model_flops_and_params"),
        ("exporter_main_v2", ["--nouse_side_inputs"], "use_side_inputs"),
        (
            "exporter_main_v2",
            ["--centernet_include_keypoints=false"],
            "centernet_include_keypoints",
        ),
        ("legacy_train", ["--noclone_on_cpu"], "clone_on_cpu"),
    ],
)
def test_a_switch_is_switched_off_by_no(verb, words, name, capsys):
    parsed = parse(verb, [*NEEDED[verb], *words])
    assert getattr(parsed, name) is False


def test_a_switch_that_is_refused_is_refused_only_if_it_is_on(capsys):
    words = ["model_main", *NEEDED["model_main"]]
    assert main([*words, "--use_tpu"]) == 2
    assert "--use_tpu is not supported" in capsys.readouterr().err
    assert main([*words, "--nouse_tpu"]) == 2
    assert "use_tpu" not in capsys.readouterr().err


def test_the_long_helps_are_help(capsys):
    for flag in ("--helpfull", "--helpshort", "-helpfull"):
        with pytest.raises(SystemExit) as stop:
            main(["model_main.py", flag])
        assert stop.value.code == 0
        assert "--pipeline_config_path" in capsys.readouterr().out
