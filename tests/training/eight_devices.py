"""Trains and scores small detectors on meshes of one to eight devices; run as a program.

`python -m tests.training.eight_devices quick OUTPUT` pickles its results. It needs a process of its
own, because JAX settles the number of a CPU's virtual devices at its start.
"""

import os
import pickle
import re
import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from stillbox.boxes.structures import Batch
from stillbox.checkpoints.model_directory import ModelDirectory
from stillbox.cli.overrides import changes_of
from stillbox.devices.mesh import batch_shardings, build_mesh, replicated
from stillbox.evaluation.program import score_program
from stillbox.experiment import schema
from stillbox.experiment.resolve import resolve
from stillbox.experiment.rules import check
from stillbox.experiment.schema import Experiment
from stillbox.experiment.updating import apply_changes
from stillbox.experiment.yaml_config import to_yaml
from stillbox.lowering import lowering
from stillbox.models.build import build_detector
from stillbox.models.layers.lowering.convolution import conv2d, conv_unstrided, depthwise_conv2d
from stillbox.models.layers.lowering.pooling import max_pool
from stillbox.models.layers.lowering.winograd import Tiles
from stillbox.models.layers.norm import normalize_batch, normalize_groups
from stillbox.models.variables import bind_detector, read_statistics, split_detector
from stillbox.training.distillation import open_teacher
from stillbox.training.plan import plan_training
from stillbox.training.program import train_program
from stillbox.training.state import TrainState, create_state
from tests.batches import batch_of
from tests.helpers import count_compilations
from tests.matched import loss_terms
from tests.models.two_stage.small import small_words
from tests.programs import QUICK_COMPILER, as_flags
from tests.small import SMALL

BATCH = 8
SSD = (
    *SMALL,
    f"train.batch_size={BATCH}",
    f"evaluation.batch_size={BATCH}",
    "data.train.max_boxes=4",
    "train.optimizer.schedule.learning_rate=0.02",
    "train.ema_decay=0.9",
    "model.postprocessing.nms={max_per_class: 5, max_total: 8, score_threshold: 0}",
)
REPLICAS = (
    "model.backbone.conv.batch_norm.statistics=per_replica",
    "model.loss.normalizer=per_replica",
)
# A pool of 3x3 windows with stride 2, and maps of 12, 6 and 3 rows.
RESNET_SSD = (
    *SSD,
    "model.resizer={height: 96, width: 64}",
    "model.backbone={kind: resnet, depth: 10}",
    "model.neck={kind: ssd_layers, taps: [group_2, group_3], extra_depths: [16]}",
    "model.anchors={num_layers: 3, scales: [0.1, 0.3, 0.6]}",
)
# Maps of 6, 3 and 2 rows, behind a first layer over blocks of pixels.
PYRAMID = (
    *SSD,
    "model.resizer={height: 96, width: 64}",
    "model.backbone={kind: resnet, depth: 10, space_to_depth_stem: true}",
    "model.neck={kind: retinanet_fpn, min_level: 4, max_level: 6, depth: 8}",
    "model.head={kind: weight_shared, depth: 8, layers_before: 1}",
    "model.anchors={kind: multiscale, min_level: 4, max_level: 6}",
)
TWO_STAGES = (
    *small_words(),
    f"train.batch_size={BATCH}",
    f"evaluation.batch_size={BATCH}",
    "data.train.max_boxes=4",
    "train.optimizer.schedule.learning_rate=0.02",
    "train.ema_decay=0.9",
    # Scores lie far apart, so rounding does not change the order of proposals.
    "model.proposals.conv={activation: relu6, initializer: {kind: truncated_normal, stddev: 0.1}}",
    "model.boxes.postprocessing.nms={max_per_class: 5, max_total: 8, score_threshold: 0}",
)
FEW_STEPS = 3

Seen = dict[str, np.ndarray]


def experiment_of(*overrides: str) -> schema.Experiment:
    """Returns the recipe of the scenes with these overrides."""
    experiment = apply_changes(resolve("demo_scenes").experiment, changes_of(overrides), {})
    check(experiment, {})
    return experiment


def make_batch(experiment: schema.Experiment) -> Batch:
    """Returns noise with one to four boxes in an image: replicas have different numbers of
    matches."""
    rng, count = np.random.default_rng(0), experiment.train.batch_size
    height, width = experiment.model.resizer.input_size
    corners = rng.uniform(0, 0.6, (count, 4, 2))
    boxes = np.concatenate([corners, corners + rng.uniform(0.1, 0.4, (count, 4, 2))], axis=-1)
    weights = np.arange(4) < 1 + np.arange(count)[:, None] % 4
    images = rng.uniform(0, 255, (count, height, width, 3)).astype(np.float32)
    classes = rng.integers(0, 6, (count, 4), dtype=np.int32)
    return batch_of(images, boxes * weights[..., None], weights, classes)


def first_state(
    experiment: schema.Experiment, trainable: frozenset[str] | None = None
) -> TrainState:
    """Returns the state before the first step; None: all parameters are trained."""
    detector = build_detector(experiment.model, seed=1)
    _, params, stats = split_detector(detector)
    loss = detector.initial_loss_state()
    return create_state(params, stats, experiment.train, trainable or frozenset(params), loss)


def run(experiment: schema.Experiment, devices: int) -> Seen:
    """Returns loss and arrays after the first and the third step, with memory and compilations."""
    parts = experiment.train.accumulation_steps
    mesh = build_mesh(BATCH, experiment.devices, jax.devices()[:devices], parts=parts)
    teacher = open_teacher(experiment)
    program = train_program(plan_training(experiment, mesh, teacher))
    state, batch = program.put_state(first_state(experiment)), make_batch(experiment)
    placed, taught_by, seen = program.put_batch(batch), program.put_teacher(teacher), {}
    compilations = count_compilations()
    compiled = program.lower().compile()
    for step in range(1, FEW_STEPS + 1):
        state, metrics = compiled(state, placed, *taught_by)
        if step in (1, FEW_STEPS):
            averages = {f"ema {path}": array for path, array in state.ema.items()}
            arrays = {"loss": metrics["loss"], **state.params, **state.stats, **averages}
            # The next step donates these buffers.
            seen |= {f"{step} {path}": np.asarray(array) for path, array in arrays.items()}
    spread = jax.tree.leaves((state.optimizer, state.ema))
    nbytes = sum(array.addressable_shards[0].data.nbytes for array in spread)
    return seen | {
        "bytes": nbytes,
        "compilations": len(compilations),
        "exchanges": exchanges(compiled),
    }


def by_hand(experiment: schema.Experiment, replicas: int) -> Seen:
    """Returns loss, parameters and statistics after one step of independent replicas."""
    model, train, state = experiment.model, experiment.train, first_state(experiment)
    batch, detector = make_batch(experiment), build_detector(model, seed=1)
    graph, *_ = split_detector(detector)
    anchors, size = detector.anchors, BATCH // replicas

    def loss(params, part):
        detector = bind_detector(graph, params, state.stats)
        predictions = detector(part.images, train=True)
        parts = loss_terms(predictions, part, anchors, model)
        total = parts.classification + parts.localization + detector.regularization()
        return total, read_statistics(detector)

    gradient_of = jax.jit(jax.value_and_grad(loss, has_aux=True))
    parts = [
        jax.tree.map(lambda rows, n=n: rows[n : n + size], batch) for n in range(0, BATCH, size)
    ]
    seen = [gradient_of(state.params, part) for part in parts]
    (total, stats), gradient = jax.tree.map(lambda *values: sum(values) / replicas, *seen)
    # Momentum begins with the gradient itself.
    rate = train.optimizer.schedule.learning_rate
    params = jax.tree.map(lambda value, slope: value - rate * slope, state.params, gradient)
    return {f"1 {path}": array for path, array in {"loss": total, **params, **stats}.items()}


def detect(experiment: schema.Experiment, devices: int) -> Seen:
    """Returns the detections of a detector with fresh weights."""
    mesh = build_mesh(BATCH, experiment.devices, jax.devices()[:devices])
    program, state = score_program(experiment, mesh), first_state(experiment)
    batch, compilations = make_batch(experiment), count_compilations()
    detect_bound = program.bind(state.params, state.stats)
    for _ in range(2):
        result = detect_bound(batch.images, batch.true_sizes)
    return result._asdict() | {
        "compilations": len(compilations),
        "exchanges": exchanges(program.compiled),
    }


def convolve(devices: int) -> Seen:
    """Returns sums of gradients of every kind of layer, and the transfers between devices for
    each."""
    rng, seen = np.random.default_rng(0), {}
    images = rng.normal(size=(BATCH, 16, 16, 32)).astype(np.float32)
    mesh = build_mesh(BATCH, schema.Devices(), jax.devices()[:devices])
    for name, (function, shape) in LAYERS.items():
        kernel = rng.normal(size=shape).astype(np.float32)
        shardings = (batch_shardings(images, mesh), replicated(mesh))
        gradient = jax.grad(lambda x, k, f=function: jnp.sum(f(x, k) ** 2), argnums=(0, 1))
        jitted = jax.jit(gradient, in_shardings=shardings, out_shardings=shardings)
        with jax.sharding.use_abstract_mesh(mesh.abstract_mesh):
            compiled = jitted.lower(images, kernel).compile()
        by_image, by_kernel = compiled(*jax.device_put((images, kernel), shardings))
        seen |= {f"{name} image": by_image, f"{name} kernel": by_kernel}
        seen[f"{name} exchanges"] = exchanges(compiled)
    return seen


PADS = ((1, 1), (1, 1))
LAYERS = {
    "3x3": (lambda x, k: conv2d(x, k, 1), (3, 3, 32, 32)),
    "3x3 tiled": (lambda x, k: conv_unstrided(x, k, PADS, 1, Tiles(4, 4, 4)), (3, 3, 32, 32)),
    "3x3 strided": (lambda x, k: conv2d(x, k, 2), (3, 3, 32, 32)),
    "1x1": (lambda x, k: conv2d(x, k, 1), (1, 1, 32, 16)),
    "few channels": (lambda x, k: conv2d(x[..., :3], k, 2), (3, 3, 3, 8)),
    "depthwise": (lambda x, k: depthwise_conv2d(x, k, 1), (3, 3, 32, 1)),
    "pool": (lambda x, k: max_pool(x, 3, 2) * k, (32,)),
    "norm": (lambda x, k: x * normalize_batch(x, k, k, k, 0.001, "relu")[0], (32,)),
    "norm of groups": (lambda x, k: x * normalize_groups(x, k, k, k, 0.001, "relu", 1)[0], (32,)),
}


def exchanges(compiled: jax.stages.Compiled) -> list[str]:
    """Returns the transfers between devices other than sums: results of gathers and
    permutations."""
    return re.findall(
        r"= (\S+) (?:all-gather|all-to-all|collective-permute)\S*\(", compiled.as_text()
    )


def see(name: str, output: Path) -> dict[str, Seen]:
    """Runs one of the functions below in a process with eight devices, and returns its results."""
    # Eight devices, and fewer optimisations of the compiler, which do not change the sharding.
    options = {"xla_force_host_platform_device_count": 8, "xla_llvm_disable_expensive_passes": True}
    flags = as_flags(QUICK_COMPILER | options)
    # The process waits, so that the other one may write into its cache.
    cache = {"JAX_COMPILATION_CACHE_DIR": str(jax.config.jax_compilation_cache_dir)}
    subprocess.run(
        [sys.executable, "-m", "tests.training.eight_devices", name, str(output)],
        env=os.environ | cache | {"XLA_FLAGS": flags},
        cwd=Path(__file__).parents[2],
        check=True,
    )
    seen: dict[str, Seen] = pickle.loads(output.read_bytes())
    return seen


def learning() -> dict[str, Seen]:
    """Returns steps with a teacher, and steps in micro-batches."""
    # Candidates of this matcher are sorted in a loop, in the matched loss too.
    matcher = "model.matcher={kind: atss, candidates: 4}"
    accumulated = experiment_of(*SSD, matcher, "train.accumulation_steps=2")
    with TemporaryDirectory() as folder:
        # Another matcher would exchange rows itself.
        gfl = (*SSD, *GFL, "model.matcher={kind: argmax}")
        teacher = write_teacher(Path(folder) / "teacher", experiment_of(*gfl))
        student = experiment_of(*gfl, f"train.distillation.teacher={teacher}")
        taught = {f"taught {count}": run(student, count) for count in (1, 8)}
    return {**{f"accumulated {count}": run(accumulated, count) for count in (1, 4)}, **taught}


def quick() -> dict[str, Seen]:
    """Returns results that take seconds: steps in the default forms, detection and layers in all
    forms."""
    ssd, replicas = experiment_of(*SSD), (*SSD, *REPLICAS)
    seen = {
        **{f"detect {count}": detect(ssd, count) for count in (1, 8)},
        **{f"layers {count}": convolve(count) for count in (1, 8)},
    }
    with lowering(portable=True):
        return seen | {
            **{f"ssd {count}": run(ssd, count) for count in (1, 8)},
            "ssd spread": run(experiment_of(*SSD, "devices.shard=optimizer"), 8),
            "ssd 4 x 2": run(experiment_of(*SSD, "devices.spatial_partitions=2"), 8),
            "replicas by hand": by_hand(ssd, 4),
            "replicas 4": run(experiment_of(*replicas), 4),
            "replicas 1": run(experiment_of(*replicas, "devices.replicas=4"), 1),
        }


def counts() -> dict[str, Seen]:
    """Returns steps in the forms for a CPU."""
    return {f"ssd {count}": run(experiment_of(*SSD), count) for count in (1, 2, 4, 8)}


def spatial() -> dict[str, Seen]:
    """Returns results that take minutes: two detectors, with images divided in all ways."""
    seen = {}
    for name, overrides in (("resnet", RESNET_SSD), ("pyramid", PYRAMID)):
        for devices, parts in ((1, 1), (2, 2), (4, 4), (8, 2), (8, 4)):
            experiment = experiment_of(*overrides, f"devices.spatial_partitions={parts}")
            seen[f"{name} {devices // parts} x {parts}"] = run(experiment, devices)
    return seen


def two_stages() -> dict[str, Seen]:
    """Returns the results of a detector of two stages, which takes minutes."""
    # Sampling depends on the order of proposals. If all are sampled, an exchange changes nothing.
    all_drawn = "model.boxes={sample_size: 24, positive_fraction: 1.0}"
    experiment = experiment_of(*TWO_STAGES, all_drawn)
    return {
        **{f"train {count}": run(experiment, count) for count in (1, 8)},
        **{f"detect {count}": detect(experiment, count) for count in (1, 8)},
    }


def main() -> None:
    """Writes the results of the named function."""
    name, output = sys.argv[1:]
    functions = (quick, learning, counts, spatial, two_stages)
    seen = {function.__name__: function for function in functions}[name]()
    Path(output).write_bytes(pickle.dumps(jax.tree.map(_on_host, seen)))


def _on_host(value: object) -> object:
    return np.asarray(value) if isinstance(value, jax.Array) else value


if __name__ == "__main__":
    main()


# Beside `tests.small.SMALL`.
GFL = (
    "model.background_class=false",
    "model.postprocessing.score_converter=sigmoid",
    "model.anchors={aspect_ratios: [1], interpolated_scale_aspect_ratio: 0}",
    "model.anchors.reduce_boxes_in_lowest_layer=false",
    "model.head={kind: gfl, depth: 8, layers_before: 1, conv: {group_norm: {groups: 4}}}",
    "model.box_coder={kind: distribution, longest: 4}",
    "model.matcher={kind: atss, candidates: 4}",
    "model.loss={kind: quality}",
)


def opinionated(params: dict[str, Any], seed: int) -> dict[str, Any]:
    """Returns parameters that give uneven distributions, which differ between anchors."""
    rng = np.random.default_rng(seed)
    return {
        path: rng.normal(scale=0.3, size=array.shape).astype(np.float32)
        if path.startswith("head.box")
        else array
        for path, array in params.items()
    }


def write_teacher(folder: Path, experiment: Experiment, *, seed: int = 7, step: int = 1) -> Path:
    """Writes a model directory with `opinionated` fresh weights.

    Args:
        folder: must not exist.
        experiment: its model is the teacher's.
        seed: of the weights.
        step: of its checkpoint.
    """
    _, params, stats = split_detector(build_detector(experiment.model, seed=seed))
    params = opinionated(params, seed)
    label_map = "".join(f'item {{ id: {number} name: "{number}" }}\n' for number in range(1, 7))
    directory = ModelDirectory.create(
        folder, experiment=to_yaml(experiment), label_map=label_map, versions={}
    )
    directory.save(step, {"params": params, "stats": stats}, {})
    directory.close()
    return folder
