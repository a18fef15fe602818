"""Compiles the training, evaluation and prediction steps of an experiment for a target.

These are the programs that the commands run (`training/program.py`, `evaluation/program.py`).
Nothing is computed, so that the target need not be present.
"""

import math
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import jax

from stillbox.checking.ahead_of_time.failures import explain_failure, out_of_memory
from stillbox.checking.ahead_of_time.memory import Memory, measure_memory
from stillbox.checking.ahead_of_time.steps import StepCheck, StepName
from stillbox.checking.ahead_of_time.targets import Target
from stillbox.devices.compiling import Compilation
from stillbox.devices.mesh import build_mesh
from stillbox.errors import UserError
from stillbox.evaluation.program import (
    predict_program,
    score_program,
    takes_images_one_by_one,
)
from stillbox.experiment import schema
from stillbox.printing import count_text
from stillbox.profiling.costs import (
    collective_bytes,
    count_flops,
    estimate,
    memory_traffic,
)
from stillbox.profiling.hlo import Message, read_program
from stillbox.training.program import train_program

Say = Callable[[str], None]


def check_step(
    experiment: schema.Experiment, target: Target, step: StepName, say: Say = lambda line: None
) -> StepCheck:
    """Compiles one step of an experiment for a target; `say` prints the progress.

    A step that cannot be compiled is a verdict, not an error.
    """
    began = time.monotonic()
    images = {
        "train": experiment.train.batch_size,
        "evaluate": experiment.evaluation.batch_size,
        "predict": 1,
    }[step]
    check = StepCheck(
        step=step, images=images, devices=1 if step == "predict" else len(target.devices)
    )
    try:
        lowered, state_bytes = _lower(experiment, target, check)
    except UserError as error:
        place = f"{error.where}: " if error.where else ""
        return replace(check, refused=f"{place}{error.what}", fix=error.fix or "")
    say(
        f"{step}: compiling {count_text(images, 'image')} a step for "
        f"{count_text(check.devices, target.slot)} of {target.name} ..."
    )
    failure = None
    try:
        compiled = Compilation(lowered, step).result()
    except jax.errors.JaxRuntimeError as error:
        failure = explain_failure(
            str(error), step, experiment, state_bytes=state_bytes, usable=target.usable_bytes
        )
    else:
        check, memory = _measure(compiled, check, target)
        if memory.left < 0:
            failure = out_of_memory(
                memory.total, step, experiment, state_bytes=state_bytes, usable=memory.usable
            )
    if failure is not None:
        check = replace(check, refused=failure.what, fix=failure.fix, needed=failure.needed)
    check = replace(check, seconds=time.monotonic() - began)
    say(f"{step}: {'compiled' if check.fits else 'refused'} after {check.seconds:.0f} s")
    return check


def _lower(
    experiment: schema.Experiment, target: Target, check: StepCheck
) -> tuple[jax.stages.Lowered, int]:
    """Returns the traced program, and the bytes of optimizer and moving average on a device."""
    if check.step == "predict":
        # As in `stillbox predict`: one image at a time on one device.
        mesh = build_mesh(1, schema.Devices(), target.devices[:1])
        return predict_program(experiment, mesh).lower(), 0
    if check.step == "evaluate":
        where = "evaluation.batch_size"
        mesh = build_mesh(check.images, experiment.devices, target.devices, where=where)
        return score_program(experiment, mesh).lower(), 0
    program = train_program(
        experiment, build_mesh(check.images, experiment.devices, target.devices)
    )
    state = jax.tree.leaves((program.state.optimizer, program.state.ema))
    nbytes = sum(
        leaf.dtype.itemsize * math.prod(leaf.sharding.shard_shape(leaf.shape)) for leaf in state
    )
    return program.lower(), nbytes


def _measure(
    compiled: jax.stages.Compiled, check: StepCheck, target: Target
) -> tuple[StepCheck, Memory]:
    """Returns the check with the costs and the memory of the compiled program."""
    executable: Any = compiled.runtime_executable()
    (module,) = executable.hlo_modules()
    program = read_program(Message(module.as_serialized_hlo_module_proto()))
    memory = measure_memory(compiled.memory_analysis(), program, target.usable_bytes)
    flops = float((compiled.cost_analysis() or {}).get("flops", 0.0)) or count_flops(program)
    if check.step == "evaluate" and takes_images_one_by_one(target.devices[: check.devices]):
        flops *= check.images  # XLA counts one round of a loop
    traffic, collectives = memory_traffic(program), collective_bytes(program)
    roofline = None
    # Evaluation is bound by its loops, which a roofline ignores.
    if target.chip is not None and check.step == "train":
        roofline = estimate(
            target.chip,
            flops=flops,
            traffic=traffic,
            collective=sum(collectives.values()),
            devices=check.devices,
        )
    check = replace(check, memory=memory, flops=flops, traffic=traffic)
    return replace(check, collectives=collectives, roofline=roofline), memory
