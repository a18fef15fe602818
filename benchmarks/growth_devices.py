"""A train step on all devices of this process, for `growth.py`: prints its row as JSON.

python benchmarks/growth_devices.py RECIPE STEPS [PATH=VALUE ...]
"""

import json
import statistics
import sys

from measuring import TrainStep

from stillbox.cli.overrides import changes_of
from stillbox.experiment.resolve import resolve


def main() -> None:
    """Prints the row."""
    recipe, steps, *fields = sys.argv[1:]
    experiment = resolve(recipe, changes_of(fields)).experiment
    step = TrainStep(experiment, experiment.train.batch_size)
    step.run()
    seconds = statistics.median(step.run() for _ in range(int(steps)))
    row = {"train, s": seconds, "train, MiB of each": step.temporary_bytes / 2**20}
    print(json.dumps(row | {"compiling, s": step.compiling}))


if __name__ == "__main__":
    main()
