import pytest

from stillbox.experiment.pipeline_config.reader import merged_text, read_pipeline_config
from tests.experiment.sample import FASTER_RCNN, SAMPLE
from tests.small import SHARED, needs_shared


def experiment_of(text, **options):
    return read_pipeline_config(text, "p.config", **options).experiment


@pytest.mark.parametrize("text", [SAMPLE, FASTER_RCNN])
@pytest.mark.parametrize("override", ["", "train_config { batch_size: 7 }"])
def test_a_written_message_reads_back_as_the_merged_one(text, override):
    written = merged_text(text, "p.config", override)
    assert experiment_of(written) == experiment_of(text, override=override)
    # Each field is once in it, as protobuf's own reader demands.
    assert merged_text(written, "p.config", "") == written


def test_texts_numbers_and_words_keep_their_form():
    override = (
        'train_input_reader { label_map_path: "a\\"b\\\\c\\n\\303\\251" shuffle: true } '
        "train_config { fine_tune_checkpoint_version: 2 num_steps: 010 "
        "gradient_clipping_by_norm: 1e-8 }"
    )
    written = merged_text("", "p.config", override)
    assert r'  label_map_path: "a\"b\\c\né"' in written
    assert "  shuffle: true\n" in written
    assert "  fine_tune_checkpoint_version: V2\n" in written
    assert "  num_steps: 8\n" in written
    assert "  gradient_clipping_by_norm: 1e-08\n" in written


@needs_shared
def test_every_config_of_the_zoo_is_written_as_it_reads():
    for path in sorted((SHARED / "configs" / "pipeline").glob("ssd*.config"))[:30]:
        text = path.read_text()
        assert experiment_of(merged_text(text, "p", "")) == experiment_of(text), path
