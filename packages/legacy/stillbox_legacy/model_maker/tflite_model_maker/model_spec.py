"""`tflite_model_maker.model_spec`: the specifications of EfficientDet-Lite.

A specification is a recipe of stillbox, `efficientdet_lite0` to `efficientdet_lite4`, with the
changes that `config` holds.
"""

import functools
import re
import tempfile
from collections.abc import Callable, Mapping

from stillbox.devices.announcing import say_aside
from stillbox.errors import UserError, nearest
from stillbox.experiment.known_weights import known_weights
from stillbox.experiment.resolve import changed, read_config
from stillbox.experiment.schema import Experiment
from stillbox.experiment.updating import Changes
from stillbox_legacy.model_maker.datasets import RecordSet
from stillbox_legacy.model_maker.detectors import initial_weights
from stillbox_legacy.model_maker.tflite_model_maker.config import (
    Config,
    changes_of,
    default_config,
)

_HUB = "https://tfhub.dev/"
_RATE_OF_BATCH = 64
# Names of variables in the original, by the parameters here that they stand for.
_VARIABLES: Mapping[str, tuple[str, ...]] = {
    "^backbone": ("{}/stem/conv2d/kernel:0", "{}/blocks_0/conv2d/kernel:0"),
    "^neck": (
        "fpn_cells/cell_0/fnode0/op_after_combine5/conv/kernel:0",
        "resample_p6/conv2d/bias:0",
    ),
    r"^head\.class": ("class_net/class-0/bias:0", "class_net/class-predict/bias:0"),
    r"^head\.box": ("box_net/box-0/bias:0", "box_net/box-predict/bias:0"),
}


class EfficientDetModelSpec:
    """A specification of EfficientDet-Lite.

    Args:
        model_name: `efficientdet-lite0` to `efficientdet-lite4`.
        uri: initial weights: a path, or a name that `stillbox weights list` shows. An address of
            TensorFlow Hub stands for weights that fit and are on this machine.
        hparams: changes of the configuration: a dictionary, `a=1,b=2`, or a YAML file.
        model_dir: folder of the runs; None: a temporary one.
        epochs: passes over the training data.
        batch_size: images of a step; the rate follows it.
        steps_per_execution: without effect.
        moving_average_decay: decay of a moving average of the parameters; 0: there is none.
        var_freeze_expr: regular expression that the original's names of frozen variables begin
            with; it counts unless the whole model is trained.
        tflite_max_detections: most detections of a TFLite file.
        strategy: `tpu`, `gpus` or None: all have the same effect, all devices are used.
        tpu: without effect, like `gcp_project`, `tpu_zone` and `use_xla`.
        gcp_project: see `tpu`.
        tpu_zone: see `tpu`.
        use_xla: see `tpu`.
        profile: without effect, like `debug`, `tf_random_seed` and `verbose`.
        debug: see `profile`.
        tf_random_seed: see `profile`.
        verbose: see `profile`.

    Raises:
        UserError: there is no such model, or a hyperparameter has no counterpart.
    """

    def __init__(
        self,
        model_name: str,
        uri: str,
        hparams: str | Mapping[str, object] = "",
        model_dir: str | None = None,
        epochs: int = 50,
        batch_size: int = 64,
        steps_per_execution: int = 1,
        moving_average_decay: float = 0,
        var_freeze_expr: str = "(efficientnet|fpn_cells|resample_p6)",
        tflite_max_detections: int = 25,
        strategy: str | None = None,
        tpu: str | None = None,
        gcp_project: str | None = None,
        tpu_zone: str | None = None,
        use_xla: bool = False,
        profile: bool = False,
        debug: bool = False,
        tf_random_seed: int = 111111,
        verbose: int = 0,
    ) -> None:
        recipes = [name.replace("_", "-") for name in OBJECT_DETECTION_MODELS]
        if model_name not in recipes:
            fix = nearest(model_name, recipes)
            raise UserError(f"there is no {model_name!r}", where="model_name", fix=fix)
        if strategy not in (None, "tpu", "gpus"):
            raise UserError(
                f"there is no strategy {strategy!r}", where="strategy", fix="use tpu, gpus or None"
            )
        self.model_name, self.uri, self.batch_size = model_name, uri, batch_size
        self.recipe = read_config(model_name.replace("-", "_")).experiment
        self.config = default_config(self.recipe)
        self.config.override(
            {
                "name": model_name,
                "model_name": model_name,
                "backbone_name": model_name.replace("efficientdet", "efficientnet"),
                "model_dir": model_dir or tempfile.mkdtemp(prefix="model_maker_"),
                "num_epochs": epochs or 300,
                "batch_size": batch_size,
                "steps_per_execution": steps_per_execution,
                "moving_average_decay": moving_average_decay,
                "var_freeze_expr": var_freeze_expr,
                "tflite_max_detections": tflite_max_detections,
                "strategy": strategy,
                "profile": profile,
                "debug": debug,
                "tf_random_seed": tf_random_seed,
                "verbose": verbose,
            }
        )
        self.config.override(hparams)
        cloud = {"tpu": tpu, "gcp_project": gcp_project, "tpu_zone": tpu_zone, "use_xla": use_xla}
        for name, value in cloud.items():
            if value:
                say_aside(f"{name} has no effect: XLA compiles for all devices of this machine")

    def experiment(
        self, train: RecordSet, validation: RecordSet | None, epochs: int, batch_size: int
    ) -> Experiment:
        """Returns the experiment of a run.

        Raises:
            UserError: a value of the configuration has no counterpart, or they contradict.
        """
        config = self.config
        in_epoch = max(train.size // batch_size, 1)
        steps, scale = epochs * in_epoch, batch_size / _RATE_OF_BATCH
        # A run of one epoch would be all warm-up.
        warmup = min(int(_number(config, "lr_warmup_epoch") * in_epoch), steps - 1)
        schedule = {
            "kind": "cosine",
            "learning_rate": _number(config, "learning_rate") * scale,
            "warmup_learning_rate": _number(config, "lr_warmup_init") * scale,
            "warmup_steps": warmup,
            "total_steps": steps,
        }
        every = int(_number(config, "map_freq")) * in_epoch
        changes = {
            **changes_of(config, self.recipe),
            **train.changes("train"),
            **(validation.changes("evaluation") if validation else {}),
            "model.num_classes": max(train.names),
            "train.steps": steps,
            "train.batch_size": batch_size,
            "train.optimizer.schedule": schedule,
            "train.checkpoint_every": in_epoch,
            "train.evaluate_every": every if validation else 0,
        }
        read = read_config(self.recipe, changes).experiment
        weights, scope = self._weights(read)
        return changed(read, {**weights, "train.freeze": self._frozen(scope)})

    def _weights(self, experiment: Experiment) -> tuple[Changes, str]:
        if self.uri.startswith(_HUB) or not self.uri:
            say_aside("TensorFlow Hub is not used: weights of its modules are not read")
            return initial_weights(experiment)
        row = known_weights().get(self.uri)
        if row is not None:
            return row.changes(), row.scope
        return {"train.fine_tune": {"checkpoint": self.uri, "scope": "detection"}}, "detection"

    def _frozen(self, scope: str) -> list[str]:
        """Returns what `var_freeze_expr` freezes of what is not random."""
        expression = self.config.get("var_freeze_expr")
        if not expression:
            return []
        parts = frozen_parts(str(expression), str(self.config.get("backbone_name")))
        trained = {"detection": list(_VARIABLES)[:2], "classification": ["^backbone"]}
        kept = [part for part in parts if part in trained.get(scope, [])]
        for part in sorted(set(parts) - set(kept)):
            say_aside(f"var_freeze_expr does not freeze {part[1:]}: its initial weights are random")
        return kept


def frozen_parts(expression: str, backbone: str) -> list[str]:
    """Returns patterns of the parameters with names in the original that an expression matches.

    Raises:
        UserError: it is no regular expression, or matches some variables of a part alone.
    """
    try:
        pattern = re.compile(expression)
    except re.error as error:
        sentence = f"{expression!r} is no regular expression: {error}"
        raise UserError(sentence, where="var_freeze_expr") from error
    parts = []
    for part, names in _VARIABLES.items():
        matches = [bool(pattern.match(name.format(backbone))) for name in names]
        if all(matches):
            parts.append(part)
        elif any(matches):
            raise UserError(
                f"{expression!r} freezes only some variables of {part[1:]}",
                where="var_freeze_expr",
                fix="name whole parts: efficientnet, fpn_cells with resample_p6, class_net, "
                "box_net",
            )
    return parts


def _number(config: Config, name: str) -> float:
    value = config.get(name)
    if not isinstance(value, int | float):
        raise UserError(f"{value!r} is no number", where=name)
    return float(value)


OBJECT_DETECTION_MODELS = [f"efficientdet_lite{number}" for number in range(5)]


def _spec(number: int) -> "functools.partial[EfficientDetModelSpec]":
    # The last module of the Hub has another version.
    version = 2 if number == 4 else 1
    return functools.partial(
        EfficientDetModelSpec,
        model_name=f"efficientdet-lite{number}",
        uri=f"{_HUB}tensorflow/efficientdet/lite{number}/feature-vector/{version}",
    )


MODEL_SPECS = {name: _spec(number) for number, name in enumerate(OBJECT_DETECTION_MODELS)}


def get(spec_or_str: object, *args: object, **kwargs: object) -> EfficientDetModelSpec:
    """Returns a specification by name, by class or as it is.

    Raises:
        UserError: there is none of this name.
    """
    if isinstance(spec_or_str, EfficientDetModelSpec):
        return spec_or_str
    make: Callable[..., EfficientDetModelSpec] | None
    if isinstance(spec_or_str, str):
        make = MODEL_SPECS.get(spec_or_str)
        if make is None:
            sentence = f"there is no model {spec_or_str!r}; stillbox has the object detectors"
            raise UserError(sentence, where="model_spec.get", fix=nearest(spec_or_str, MODEL_SPECS))
    elif callable(spec_or_str):
        make = spec_or_str
    else:
        raise UserError(f"{spec_or_str!r} is no specification", where="model_spec.get")
    return make(*args, **kwargs)
