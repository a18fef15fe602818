"""Compiles the training, evaluation and prediction steps of an experiment for a target.

These are the programs that the commands run (`training/program.py`, `evaluation/program.py`).
Nothing is computed, so that the target need not be present.
"""

import math
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import Any

import jax

from stillbox.checking.ahead_of_time.costs import collective_bytes, count_flops, memory_traffic
from stillbox.checking.ahead_of_time.failures import explain_failure
from stillbox.checking.ahead_of_time.memory import measure_memory
from stillbox.checking.ahead_of_time.roofline import estimate
from stillbox.checking.ahead_of_time.steps import STEPS, StepCheck, StepName
from stillbox.checking.ahead_of_time.targets import Target, count
from stillbox.devices.mesh import build_mesh
from stillbox.errors import UserError
from stillbox.evaluation.program import predict_program, score_program
from stillbox.experiment import schema
from stillbox.profiling.hlo import Message, read_program
from stillbox.training.program import train_program

Say = Callable[[str], None]


@dataclass(frozen=True)
class _Lowered:
    """A traced program."""

    lowered: jax.stages.Lowered
    images: int
    devices: int
    state_bytes: int
    """Bytes of optimiser and moving average on a device."""


def check_steps(
    experiment: schema.Experiment,
    target: Target,
    *,
    steps: Iterable[StepName] = STEPS,
    say: Say = lambda line: None,
) -> list[StepCheck]:
    """Compiles the steps of an experiment for a target.

    A step that cannot be compiled is a verdict, not an error.

    Args:
        experiment: the experiment.
        target: of `find_target`.
        steps: which ones.
        say: prints the progress.
    """
    return [check_step(experiment, target, step, say) for step in steps]


def check_step(
    experiment: schema.Experiment, target: Target, step: StepName, say: Say = lambda line: None
) -> StepCheck:
    """Compiles one step of an experiment for a target; arguments as for `check_steps`."""
    began = time.monotonic()
    try:
        traced = _LOWER[step](experiment, target)
    except UserError as error:
        place = f"{error.where}: " if error.where else ""
        return _refusal(experiment, target, step, f"{place}{error.what}", error.fix or "")
    say(
        f"{step}: compiling {count(traced.images, 'image')} a step "
        f"for {count(traced.devices, target.slot)} of {target.name} ..."
    )
    check = StepCheck(step=step, images=traced.images, devices=traced.devices)
    try:
        compiled = traced.lowered.compile()
    except jax.errors.JaxRuntimeError as error:
        failure = explain_failure(
            str(error),
            step,
            experiment,
            state_bytes=traced.state_bytes,
            usable=target.usable_bytes,
        )
        check = replace(check, refused=failure.what, fix=failure.fix, needed=failure.needed)
    else:
        check = _examine(compiled, check, experiment, target, traced.state_bytes)
    check = replace(check, seconds=time.monotonic() - began)
    say(f"{step}: {'compiled' if check.fits else 'refused'} after {check.seconds:.0f} s")
    return check


def _examine(
    compiled: jax.stages.Compiled,
    check: StepCheck,
    experiment: schema.Experiment,
    target: Target,
    state_bytes: int,
) -> StepCheck:
    executable: Any = compiled.runtime_executable()
    (module,) = executable.hlo_modules()
    program = read_program(Message(module.as_serialized_hlo_module_proto()))
    memory = measure_memory(compiled.memory_analysis(), program, target.usable_bytes)
    flops = float((compiled.cost_analysis() or {}).get("flops", 0.0)) or count_flops(program)
    traffic, collectives = memory_traffic(program), collective_bytes(program)
    check = replace(check, memory=memory, flops=flops, traffic=traffic, collectives=collectives)
    # Evaluation is bound by its loops, which a roofline ignores.
    if target.chip is not None and check.step == "train":
        roofline = estimate(
            target.chip,
            flops=flops,
            traffic=traffic,
            collective=sum(collectives.values()),
            devices=check.devices,
        )
        check = replace(check, roofline=roofline)
    if memory.left >= 0:
        return check
    failure = explain_failure(
        f"RESOURCE_EXHAUSTED: Used {memory.total / 2**30}G of {memory.usable / 2**30}G",
        check.step,
        experiment,
        state_bytes=state_bytes,
        usable=memory.usable,
    )
    return replace(check, refused=failure.what, fix=failure.fix, needed=memory.total)


def _refusal(
    experiment: schema.Experiment, target: Target, step: StepName, what: str, fix: str
) -> StepCheck:
    images = {
        "train": experiment.train.batch_size,
        "evaluate": experiment.evaluation.batch_size,
        "predict": 1,
    }[step]
    devices = 1 if step == "predict" else len(target.devices)
    return StepCheck(step=step, images=images, devices=devices, refused=what, fix=fix)


def _lower_train(experiment: schema.Experiment, target: Target) -> _Lowered:
    size = experiment.train.batch_size
    program = train_program(experiment, build_mesh(size, experiment.devices, target.devices))
    state = _bytes_on_a_device((program.state.optimizer, program.state.ema))
    return _Lowered(program.lower(), size, len(target.devices), state)


def _lower_evaluate(experiment: schema.Experiment, target: Target) -> _Lowered:
    size = experiment.evaluation.batch_size
    mesh = build_mesh(size, experiment.devices, target.devices, where="evaluation.batch_size")
    return _Lowered(score_program(experiment, mesh).lower(), size, len(target.devices), 0)


def _lower_predict(experiment: schema.Experiment, target: Target) -> _Lowered:
    # As in `stillbox predict`: one image at a time on one device.
    mesh = build_mesh(1, schema.Devices(), target.devices[:1])
    return _Lowered(predict_program(experiment, mesh).lower(), 1, 1, 0)


def _bytes_on_a_device(tree: Any) -> int:  # noqa: ANN401
    leaves = jax.tree.leaves(tree)
    return sum(
        leaf.dtype.itemsize * math.prod(leaf.sharding.shard_shape(leaf.shape)) for leaf in leaves
    )


_LOWER: dict[StepName, Callable[[schema.Experiment, Target], _Lowered]] = {
    "train": _lower_train,
    "evaluate": _lower_evaluate,
    "predict": _lower_predict,
}
