"""What notebooks import from `object_detection`: messages, label maps, drawing."""

import numpy as np
import pytest

from stillbox.errors import UserError
from stillbox.experiment.pipeline_config import read_pipeline_config
from stillbox.experiment.values import section_to_plain
from stillbox_legacy.tutorials import config_util, label_map_util, protos
from stillbox_legacy.tutorials import visualization_utils as viz
from tests.small import SHARED, needs_shared

text_format = pytest.importorskip("google.protobuf.text_format")

CONFIG = """
model { ssd { num_classes: 90
  image_resizer { fixed_shape_resizer { height: 300 width: 300 } } } }
train_config { batch_size: 24 optimizer { momentum_optimizer { learning_rate {
  cosine_decay_learning_rate { learning_rate_base: 0.08 warmup_learning_rate: 0.02 } } } } }
train_input_reader { label_map_path: "a.pbtxt" tf_record_input_reader { input_path: "a.record" } }
eval_config { metrics_set: "coco_detection_metrics" }
eval_input_reader { label_map_path: "a.pbtxt" tf_record_input_reader { input_path: "b.record" } }
"""


@pytest.fixture
def config(tmp_path):
    path = tmp_path / "pipeline.config"
    path.write_text(CONFIG)
    return path


def test_a_notebook_edits_a_config_through_messages(imported, config):
    from object_detection.protos import pipeline_pb2
    from object_detection.utils import config_util as own

    configs = own.get_configs_from_pipeline_file(config)
    assert configs["eval_input_config"].label_map_path == "a.pbtxt"
    pipeline_config = pipeline_pb2.TrainEvalPipelineConfig()
    text_format.Merge(config.read_text(), pipeline_config)
    pipeline_config.model.ssd.num_classes = 2
    pipeline_config.train_config.fine_tune_checkpoint_type = "detection"
    pipeline_config.train_input_reader.tf_record_input_reader.input_path[:] = ["c.record"]
    pipeline_config.eval_input_reader[0].label_map_path = "c.pbtxt"
    config_text = text_format.MessageToString(pipeline_config)
    assert 'input_path: "c.record"' in config_text
    assert "num_classes: 2" in config_text
    assert pipeline_config.train_config.fine_tune_checkpoint_version == 1
    assert not pipeline_config.train_config.HasField("num_steps")


def test_modules_are_those_of_the_original(imported):
    from object_detection.protos import hyperparams_pb2, image_resizer_pb2, input_reader_pb2

    assert image_resizer_pb2.FixedShapeResizer().height == 300
    assert image_resizer_pb2.ResizeType.Name(image_resizer_pb2.BICUBIC) == "BICUBIC"
    assert hyperparams_pb2.Hyperparams.RELU_6 == 2
    assert input_reader_pb2.InputReader().max_number_of_boxes == 100
    with pytest.raises(ModuleNotFoundError):
        protos.load_module("nothing")


def test_numbers_are_the_original_s_where_they_are_known():
    fields = protos.load_module("eval").EvalConfig.DESCRIPTOR.fields_by_name
    assert fields["num_examples"].number == 2
    assert fields["batch_size"].number == 25
    # Without a published number in the table.
    assert fields["super_categories"].number >= 1000


def same(left, other):
    """Whether plain values are equal, numbers as float32 are: messages hold no others."""
    if isinstance(left, dict):
        return left.keys() == other.keys() and all(same(left[key], other[key]) for key in left)
    if isinstance(left, list | tuple):
        return len(left) == len(other) and all(map(same, left, other))
    return np.float32(left) == np.float32(other) if isinstance(left, float) else left == other


@needs_shared
def test_real_configs_survive_the_messages():
    read = 0
    for path in sorted((SHARED / "configs" / "pipeline").glob("*.config")):
        if path.name.startswith("lstm_ssd"):  # extensions of another program
            continue
        message = protos.load_module("pipeline").TrainEvalPipelineConfig()
        text_format.Merge(path.read_text(), message)
        text = text_format.MessageToString(message)
        try:
            before = read_pipeline_config(path.read_text(), "x", name="x").experiment
        except UserError:
            continue
        after = read_pipeline_config(text, "x", name="x").experiment
        assert same(section_to_plain(before), section_to_plain(after)), path.name
        read += 1
    assert read > 20


def test_parameters_are_merged_by_name_and_by_path(config, tmp_path):
    configs = config_util.get_configs_from_pipeline_file(config, "train_config { num_steps: 7 }")
    config_util.merge_external_params_with_configs(
        configs,
        kwargs_dict={
            "batch_size": 8,
            "learning_rate": 0.04,
            "train_input_path": ["x.record", "y.record"],
            "label_map_path": "b.pbtxt",
            "eval_input_configs[0].shuffle": True,
            "model.ssd.num_classes": 3,
            "train_steps": None,
        },
    )
    schedule = configs["train_config"].optimizer.momentum_optimizer.learning_rate
    assert schedule.cosine_decay_learning_rate.learning_rate_base == pytest.approx(0.04)
    assert schedule.cosine_decay_learning_rate.warmup_learning_rate == pytest.approx(0.01)
    pipeline = config_util.create_pipeline_proto_from_configs(configs)
    config_util.save_pipeline_config(pipeline, tmp_path / "saved")
    again = config_util.get_configs_from_pipeline_file(tmp_path / "saved" / "pipeline.config")
    assert again["train_config"].batch_size == 8
    assert again["train_config"].num_steps == 7
    assert config_util.get_number_of_classes(again["model"]) == 3
    resizer = config_util.get_image_resizer_config(again["model"])
    assert config_util.get_spatial_image_size(resizer) == [300, 300]
    reader = again["train_input_config"]
    assert list(reader.tf_record_input_reader.input_path) == ["x.record", "y.record"]
    assert again["eval_input_config"].shuffle
    for name in ("batchsize", "train_config.batchsize", "nothing.batch_size"):
        with pytest.raises(ValueError, match="there is no parameter"):
            config_util.merge_external_params_with_configs(configs, kwargs_dict={name: 1})


LABELS = """
item { id: 1 name: "/m/1" display_name: "owl" }
item { id: 3 name: "cat" ancestor_ids: [1] }
"""


def test_label_maps(tmp_path):
    path = tmp_path / "labels.pbtxt"
    path.write_text(LABELS)
    index = label_map_util.create_category_index_from_labelmap(str(path))
    assert index == {1: {"id": 1, "name": "owl"}, 3: {"id": 3, "name": "cat"}}
    label_map = label_map_util.load_labelmap(path)
    # Helpers of tutorials pass either.
    for given in (str(path), label_map):
        assert label_map_util.get_label_map_dict(given) == {"/m/1": 1, "cat": 3}
    filled = label_map_util.get_label_map_dict(str(path), fill_in_gaps_and_background=True)
    assert filled == {"/m/1": 1, "cat": 3, "background": 0, "2": 2}
    assert label_map_util.get_max_label_map_index(label_map) == 3
    short = label_map_util.convert_label_map_to_categories(label_map, 2, use_display_name=False)
    assert short == [{"id": 1, "name": "/m/1"}]
    assert label_map_util.convert_label_map_to_categories(None, 1) == [
        {"id": 1, "name": "category_1"}
    ]
    above, below = label_map_util.get_label_map_hierarchy_lut(label_map)
    assert above.tolist() == [[0, 0, 0], [0, 0, 0], [1, 0, 0]]
    assert not below.any()
    path.write_text('item { id: 0 name: "cat" }')
    with pytest.raises(ValueError, match="id 0 is reserved"):
        label_map_util.load_labelmap(path)


def test_boxes_are_drawn_where_they_are_and_only_sure_ones():
    image = np.zeros((100, 200, 3), np.uint8)
    boxes = np.array([[0.5, 0.25, 0.9, 0.75], [0.0, 0.0, 0.3, 0.1]])
    drawn = viz.visualize_boxes_and_labels_on_image_array(
        image,
        boxes,
        np.array([1, 1]),
        np.array([0.9, 0.2]),
        {1: {"id": 1, "name": "cat"}},
        use_normalized_coordinates=True,
        line_thickness=2,
    )
    assert drawn is image
    color = image[70, 50]
    assert color.any()
    assert (image[50, 149] == color).all()
    assert not image[60:85, 60:140].any()
    assert not image[:30, :20].any()
    # Ground truth, in pixels.
    image = np.full((100, 200, 3), 255, np.uint8)
    viz.visualize_boxes_and_labels_on_image_array(
        image, np.array([[50, 50, 90, 150]]), np.array([1]), None, {}
    )
    assert not image[70, 50].any()
    mask = np.zeros((100, 200), np.uint8)
    mask[:10] = 1
    viz.draw_mask_on_image_array(image, mask, color="red", alpha=0.5)
    assert image[0, 0].tolist() == [255, 128, 128]
