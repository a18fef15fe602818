"""`object_detection.utils.config_util`: a `pipeline.config` as messages, changed and written.

The functions have the names, arguments and results of the original. Of its functions for single
fields only the functions are here that `merge_external_params_with_configs` calls.
"""

import os
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from stillbox.errors import nearest
from stillbox.records.files import write_whole
from stillbox.textformat.yaml_tree import read_text_file
from stillbox_legacy.tutorials.protos import load_module

Configs = dict[str, Any]
"""`model`, `train_config`, `train_input_config`, `eval_config`, `eval_input_configs`,
`eval_input_config` (the first of these) and, where the file has it, `graph_rewriter_config`."""
Proto = Any
"""A message."""


def get_configs_from_pipeline_file(
    pipeline_config_path: str | os.PathLike[str], config_override: str | Proto | None = None
) -> Configs:
    """Reads a file, and merges a text or message into it.

    Raises:
        UserError: there is no such file.
        google.protobuf.text_format.ParseError: a text has another form.
    """
    from google.protobuf import text_format

    pipeline = load_module("pipeline").TrainEvalPipelineConfig()
    text = read_text_file(Path(pipeline_config_path), fix="give a pipeline.config")
    text_format.Merge(text, pipeline)
    if isinstance(config_override, str):
        text_format.Merge(config_override, pipeline)
    elif config_override is not None:
        pipeline.MergeFrom(config_override)
    return create_configs_from_pipeline_proto(pipeline)


def create_configs_from_pipeline_proto(pipeline_config: Proto) -> Configs:
    """Returns the parts of a `TrainEvalPipelineConfig`."""
    configs = {
        "model": pipeline_config.model,
        "train_config": pipeline_config.train_config,
        "train_input_config": pipeline_config.train_input_reader,
        "eval_config": pipeline_config.eval_config,
        "eval_input_configs": pipeline_config.eval_input_reader,
    }
    if configs["eval_input_configs"]:
        configs["eval_input_config"] = configs["eval_input_configs"][0]
    if pipeline_config.HasField("graph_rewriter"):
        configs["graph_rewriter_config"] = pipeline_config.graph_rewriter
    return configs


def create_pipeline_proto_from_configs(configs: Configs) -> Proto:
    """Returns a `TrainEvalPipelineConfig` of its parts."""
    pipeline = load_module("pipeline").TrainEvalPipelineConfig()
    pipeline.model.CopyFrom(configs["model"])
    pipeline.train_config.CopyFrom(configs["train_config"])
    pipeline.train_input_reader.CopyFrom(configs["train_input_config"])
    pipeline.eval_config.CopyFrom(configs["eval_config"])
    pipeline.eval_input_reader.extend(configs["eval_input_configs"])
    if "graph_rewriter_config" in configs:
        pipeline.graph_rewriter.CopyFrom(configs["graph_rewriter_config"])
    return pipeline


def save_pipeline_config(config: Proto, directory: str | os.PathLike[str]) -> None:
    """Writes `pipeline.config` into a folder, which is made."""
    from google.protobuf import text_format

    write_whole(Path(directory) / "pipeline.config", text_format.MessageToString(config).encode())


def get_number_of_classes(model_config: Proto) -> int:
    """Returns the number of classes of a `DetectionModel`."""
    return int(_meta_architecture(model_config).num_classes)


def get_image_resizer_config(model_config: Proto) -> Proto:
    """Returns the `ImageResizer` of a `DetectionModel`."""
    return _meta_architecture(model_config).image_resizer


def get_spatial_image_size(image_resizer_config: Proto) -> list[int]:
    """Returns height and width of the network input; -1 where they depend on the image.

    Raises:
        ValueError: the resizer is another one.
    """
    kind = image_resizer_config.WhichOneof("image_resizer_oneof")
    if kind == "fixed_shape_resizer":
        resizer = image_resizer_config.fixed_shape_resizer
        return [resizer.height, resizer.width]
    if kind == "keep_aspect_ratio_resizer":
        resizer = image_resizer_config.keep_aspect_ratio_resizer
        return [resizer.max_dimension if resizer.pad_to_max_dimension else -1] * 2
    if kind in ("identity_resizer", "conditional_shape_resizer", "pad_to_multiple_resizer"):
        return [-1, -1]
    raise ValueError("Unknown image resizer type.")


def _meta_architecture(model_config: Proto) -> Proto:
    kind = model_config.WhichOneof("model")
    if kind not in ("faster_rcnn", "ssd"):
        raise ValueError(f"Expected the model type to be one of 'faster_rcnn' or 'ssd', not {kind}")
    return getattr(model_config, kind)


def get_optimizer_type(train_config: Proto) -> str | None:
    """Returns the name of the optimizer's field."""
    name: str | None = train_config.optimizer.WhichOneof("optimizer")
    return name


def get_learning_rate_type(optimizer_config: Proto) -> str | None:
    """Returns the name of the schedule's field, of an optimizer such as `MomentumOptimizer`."""
    name: str | None = optimizer_config.learning_rate.WhichOneof("learning_rate")
    return name


def _learning_rate(configs: Configs, value: float) -> None:
    train = configs["train_config"]
    optimizer = getattr(train.optimizer, get_optimizer_type(train) or "momentum_optimizer")
    kind = get_learning_rate_type(optimizer) or "constant_learning_rate"
    schedule = getattr(optimizer.learning_rate, kind)
    if kind == "constant_learning_rate":
        schedule.learning_rate = value
    elif kind == "exponential_decay_learning_rate":
        schedule.initial_learning_rate = value
    elif kind == "cosine_decay_learning_rate":
        schedule.warmup_learning_rate *= value / schedule.learning_rate_base
        schedule.learning_rate_base = value
    else:
        scale = value / schedule.initial_learning_rate
        schedule.initial_learning_rate = value
        for step in schedule.schedule:
            step.learning_rate *= scale


def _momentum(configs: Configs, value: float) -> None:
    train = configs["train_config"]
    kind = get_optimizer_type(train)
    if kind not in ("rms_prop_optimizer", "momentum_optimizer"):
        raise ValueError("Optimizer type must be either `rms_prop_optimizer` or `momentum`.")
    getattr(train.optimizer, kind).momentum_optimizer_value = value


def _train_path(configs: Configs, value: Any) -> None:  # noqa: ANN401
    _set_paths(configs["train_input_config"], value)


def _eval_path(configs: Configs, value: Any) -> None:  # noqa: ANN401
    for reader in configs["eval_input_configs"]:
        _set_paths(reader, value)


def _set_paths(reader: Proto, value: Any) -> None:  # noqa: ANN401
    paths = [value] if isinstance(value, str) else list(value)
    del reader.tf_record_input_reader.input_path[:]
    reader.tf_record_input_reader.input_path.extend(paths)


def _on(part: str, field: str) -> Callable[[Configs, Any], None]:
    def change(configs: Configs, value: Any) -> None:  # noqa: ANN401
        configs_of_part = configs[part]
        for config in configs_of_part if part == "eval_input_configs" else [configs_of_part]:
            setattr(config, field, value)

    return change


def _readers(field: str) -> Callable[[Configs, Any], None]:
    def change(configs: Configs, value: Any) -> None:  # noqa: ANN401
        # An empty value, such as a flag that is not given, changes nothing.
        if value:
            _on("train_input_config", field)(configs, value)
            _on("eval_input_configs", field)(configs, value)

    return change


def _retain(configs: Configs, value: bool) -> None:
    configs["eval_config"].retain_original_images = value


def _num_classes(configs: Configs, value: int) -> None:
    _meta_architecture(configs["model"]).num_classes = value


def _pretrained(configs: Configs, value: bool) -> None:
    if not value:
        configs["train_config"].fine_tune_checkpoint = ""


_CHANGES: Mapping[str, Callable[[Configs, Any], None]] = {
    "learning_rate": _learning_rate,
    "momentum_optimizer_value": _momentum,
    "batch_size": _on("train_config", "batch_size"),
    "train_steps": _on("train_config", "num_steps"),
    "eval_steps": _on("eval_config", "num_examples"),
    "label_map_path": _readers("label_map_path"),
    "mask_type": _readers("mask_type"),
    "max_number_of_boxes": _readers("max_number_of_boxes"),
    "train_input_path": _train_path,
    "eval_input_path": _eval_path,
    "sample_1_of_n_eval_examples": _on("eval_input_configs", "sample_1_of_n_examples"),
    "eval_num_epochs": _on("eval_input_configs", "num_epochs"),
    "train_shuffle": _on("train_input_config", "shuffle"),
    "eval_shuffle": _on("eval_input_configs", "shuffle"),
    "use_moving_averages": _on("eval_config", "use_moving_averages"),
    "retain_original_images_in_eval": _retain,
    "fine_tune_checkpoint": _on("train_config", "fine_tune_checkpoint"),
    "load_pretrained": _pretrained,
    "num_classes": _num_classes,
    "use_bfloat16": _on("train_config", "use_bfloat16"),
}
_INDEX = re.compile(r"(\w+)\[(\d+)\]")


def merge_external_params_with_configs(
    configs: Configs,
    hparams: Any = None,  # noqa: ANN401
    kwargs_dict: Mapping[str, Any] | None = None,
) -> Configs:
    """Changes the messages and returns them.

    Args:
        configs: of `get_configs_from_pipeline_file`.
        hparams: an object with `values()`, a mapping of the same.
        kwargs_dict: values by name, such as `batch_size`, or by path, such as
            `train_config.batch_size` and `eval_input_configs[0].label_map_path`. None is no value.

    Raises:
        ValueError: there is no such name; the original passes over it.
    """
    values = dict(hparams.values()) if hparams is not None else {}
    for name, value in {**values, **(kwargs_dict or {})}.items():
        if value is None:
            continue
        if name in _CHANGES:
            _CHANGES[name](configs, value)
        elif "." in name:
            _set_path(configs, name, value)
        else:
            raise ValueError(f"there is no parameter {name!r}: {nearest(name, _CHANGES)}")
    return configs


def _set_path(configs: Configs, path: str, value: Any) -> None:  # noqa: ANN401
    *words, last = path.split(".")
    place: Any = configs
    for word in words:
        match = _INDEX.fullmatch(word)
        name = match[1] if match else word
        try:
            place = place[name] if isinstance(place, dict) else getattr(place, name)
            place = place[int(match[2])] if match else place
        except (KeyError, AttributeError, IndexError) as error:
            raise ValueError(f"there is no parameter {path!r}: {name} is unknown") from error
    if not hasattr(place, last):
        raise ValueError(f"there is no parameter {path!r}: {last} is unknown")
    if isinstance(value, list | tuple):
        del getattr(place, last)[:]
        getattr(place, last).extend(value)
    else:
        setattr(place, last, value)
