"""The forms of absl's flags, in the verbs of this package."""

import tests.cli.test_absl_forms as forms

NEEDED = {
    "model_garden": ["--experiment=retinanet", "--mode=train", "--model_dir=m"],
    "create_pascal_tf_record": ["--data_dir=d", "--output_path=o"],
}

pytest_generate_tests = forms.pytest_generate_tests
test_one_dash_is_two = forms.test_one_dash_is_two
test_silence = forms.test_flags_of_absl_itself_are_taken_in_silence
test_short_verbosity = forms.test_the_short_verbosity_has_its_value_behind_an_equals_sign
test_refusals = forms.test_what_absl_reads_elsewhere_is_refused_by_name
