"""The weights that a planned run starts from, and the recipes that take them."""

from collections.abc import Callable, Sequence
from pathlib import Path

from stillbox.checking.candidates import NANO, RECIPES, SMALL
from stillbox.checking.fitted_limits import is_fitted
from stillbox.checkpoints.importer import ImportOptions, read_weights
from stillbox.checkpoints.packed import find_model
from stillbox.checkpoints.pretrained import find_weights, resolve_weights
from stillbox.checkpoints.weights_file import MissingWeightsError
from stillbox.devices.announcing import announcing
from stillbox.errors import UserError
from stillbox.experiment.known_weights import KnownWeights, known_weights
from stillbox.experiment.resolve import is_recipe, read_config
from stillbox.experiment.rules.missing import CHECKPOINT
from stillbox.experiment.schema import ConstantSchedule, Experiment
from stillbox.experiment.updating import Changes
from stillbox.experiment.values import differences
from stillbox.models.build import abstract_detector
from stillbox.records.label_map import LabelMap

# On 50 images of COCO the weights' AP of .30 was .073 after 100 steps, and .26 with a tenth.
_GENTLER = 10
# Measured: docs/training.md.
_GAIN = "after 520 steps on BCCD, ImageNet weights had AP .544, random ones .392"
_FASTER = (
    "`stillbox weights get nanodet_g_416_coco` gets a detector to begin from, which learns faster: "
    "after 100 steps on BCCD AP .588, and .343 from an ImageNet classifier"
)

# Recipes that a file of weights is compared with.
_TRIED = (
    *RECIPES,
    "ssdlite_mobilenet_v2_coco",
    "ssd_mobilenet_v2_fpnlite_320x320",
    "ssd_resnet34",
    "retinanet",
    "faster_rcnn_resnet50_v1_640x640",
    "efficientdet_d0_512x512",
)
# Shares of the arrays of a detector: of its recipe for certain, and of no recipe at all.
_ENOUGH, _LEAST = 0.95, 0.5


def network_of_model(overrides: Changes) -> tuple[str, Changes] | None:
    """Returns recipe and network of a trained model that overrides name as first weights.

    None: they name none.

    Raises:
        UserError: the model is damaged, or was trained by a config that is no recipe.
    """
    path = str(overrides.get(CHECKPOINT) or "")
    if not path or weights_of(overrides) is not None:
        return None
    stored = find_model(resolve_weights(path))
    if stored is None:
        return None
    experiment = stored.read_experiment()
    if not is_recipe(experiment.name):
        problem = f"the model was trained by a config of its own, {experiment.name}"
        raise UserError(problem, where=path, fix="give its experiment.yaml as the config too")
    changes = differences(read_config(experiment.name).experiment.model, experiment.model)
    return experiment.name, {
        f"model.{field}": value
        for field, _, value in changes
        if field != "num_classes" and not is_fitted(field)
    }


def recipes_for_weights(overrides: Changes, say: Callable[[str], None]) -> tuple[str, ...] | None:
    """Returns the recipes that take the weights of the overrides, the likeliest first.

    A file shows its recipe by its arrays. None: overrides name no weights.

    Raises:
        UserError: the weights are not there, or no recipe takes them.
    """
    checkpoint = str(overrides.get(CHECKPOINT) or "")
    if not checkpoint:
        return None
    row = weights_of(overrides)
    if row is None:
        return _recipes_for_file(checkpoint, say)
    recipes = {recipe: None for recipe in RECIPES if row.fits(read_config(recipe).experiment.model)}
    recipes |= dict.fromkeys(row.recipes)
    if not recipes:
        problem = f"no recipe takes the weights {row.name}"
        fix = "give the pipeline.config of their archive as the config"
        raise UserError(problem, where=CHECKPOINT, fix=fix)
    return tuple(recipes)


def _recipes_for_file(path: str, say: Callable[[str], None]) -> tuple[str, ...]:
    """Returns the recipe that takes the most arrays of a file, if it takes half of its own."""
    shares: dict[str, float] = {}
    with announcing(lambda: f"looking for the recipe that {path} fits"):
        for recipe in _TRIED:
            shares[recipe] = _loaded_share(read_config(recipe).experiment, path)
            if shares[recipe] > _ENOUGH:
                return (recipe,)
    best = max(shares, key=shares.__getitem__)
    if shares[best] < _LEAST:
        raise UserError(
            f"no recipe takes these weights: the nearest, {best}, finds {shares[best]:.0%} of its "
            "arrays in them",
            where=path,
            fix="give the config of their model",
        )
    say(f"{best} finds {shares[best]:.0%} of its arrays in {path}")
    return (best,)


def refuse_other_model(experiment: Experiment, overrides: Changes) -> None:
    """Refuses known weights that are for other models, before anything is traced.

    Raises:
        UserError: the model would find less than half of its arrays in them.
    """
    row = weights_of(overrides)
    if row is None or row.fits(experiment.model) or experiment.name in row.recipes:
        return
    if find_weights(row.name) is not None and _loaded_share(experiment, row.name) < _LEAST:
        problem = f"the weights {row.name} are not for {experiment.name}"
        fix = f"give {' or '.join(row.recipes) or 'their pipeline.config'} as the config"
        raise UserError(problem, where=CHECKPOINT, fix=fix)


def _loaded_share(experiment: Experiment, path: str) -> float:
    """Returns the share of a detector's arrays, without its heads, that a file has."""
    model, scope = experiment.model, experiment.train.fine_tune.scope
    _, params, stats = abstract_detector(model, "float32")
    options = ImportOptions(scope=scope, load_heads=False, min_loaded=0, for_training=True)
    try:
        report, _ = read_weights(params | stats, model, path, options)
    except MissingWeightsError:
        raise
    except UserError:
        return 0.0
    return report.loaded_share


def weights_of(overrides: Changes) -> KnownWeights | None:
    """Returns the known weights that overrides name."""
    return known_weights().get(str(overrides.get(CHECKPOINT)))


def faster_start(recipe: str, overrides: Changes) -> str:
    """Returns how to get weights that a small network learns faster from; empty: it has them."""
    given = CHECKPOINT in overrides
    return _FASTER if recipe == SMALL and not given and not has_weights(NANO) else ""


def has_weights(recipe: str) -> bool:
    """Whether weights that the recipe starts from are installed or downloaded."""
    rows = [row for row in known_weights().values() if recipe in row.recipes]
    return any(find_weights(row.name) is not None for row in rows)


def gentle_rates(
    experiment: Experiment, weights: Changes, classes: Sequence[str], say: Callable[[str], None]
) -> Changes:
    """Returns a tenth of a constant rate where a detector knows all classes of the data already.

    Training at the rate for new classes forgets what few images do not show.
    """
    row = weights_of(weights)
    schedule = experiment.train.optimizer.schedule
    if row is None or not row.label_map or not isinstance(schedule, ConstantSchedule):
        return {}
    if [item.name for item in LabelMap.from_file(row.label_map).items] != list(classes):
        return {}
    say(f"a tenth of the learning rate: {row.name} knows all of the classes")
    return {
        "train.optimizer.schedule.learning_rate": schedule.learning_rate / _GENTLER,
        "train.optimizer.schedule.warmup_learning_rate": schedule.warmup_learning_rate / _GENTLER,
    }


def _serves(row: KnownWeights, experiment: Experiment) -> bool:
    """Whether a recipe begins from weights by itself, with another backbone if they bring it."""
    if row.fits(experiment.model):
        return True
    if row.scope != "classification" or experiment.name not in row.recipes:
        return False
    usual = read_config(experiment.name).experiment.model
    return getattr(usual, "backbone", None) == getattr(experiment.model, "backbone", None)


def given_weights(checkpoint: str, say: Callable[[str], None]) -> Changes:
    """Returns the changes that belong to the weights that were asked for."""
    say(f"weights to start from: {checkpoint or 'random ones'}, as given")
    row = known_weights().get(checkpoint)
    return row.changes() if row else {CHECKPOINT: checkpoint}


def first_weights(experiment: Experiment, say: Callable[[str], None]) -> Changes:
    """Returns the changes for weights on this machine; if there are none, says which to get."""
    checkpoint = experiment.train.fine_tune.checkpoint
    if checkpoint and Path(checkpoint).exists():
        say(f"weights to start from: {checkpoint}")
        return {}
    fitting = [row for row in known_weights().values() if _serves(row, experiment)]
    fitting.sort(key=lambda row: experiment.name not in row.recipes)
    for row in fitting:
        if find_weights(row.name) is not None:
            say(f"weights to start from: {row.name}, {row.about}")
            return row.changes()
    remedy = f"; `stillbox weights get {fitting[0].name}` gets some" if fitting else ""
    if experiment.name == SMALL:
        remedy += f" ({_GAIN})"
    say(
        "warning: random weights to start from, which need more images and more steps: none that "
        f"fit are on this machine{remedy}"
    )
    return {CHECKPOINT: ""}
