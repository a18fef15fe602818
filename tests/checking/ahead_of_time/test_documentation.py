"""The page about targets: its commands are valid, its figures are those that are used."""

import re
import shlex
from pathlib import Path

import pytest

from stillbox.checking.ahead_of_time.targets import parse_slice
from stillbox.cli.main import build_parser
from stillbox.devices.chips import CHIPS
from stillbox.devices.gpus import GPUS, parse_gpus
from stillbox.experiment.resolve import resolve

PAGE = (Path(__file__).resolve().parents[3] / "docs" / "accelerators.md").read_text()
COMMANDS = re.findall(r"^(?:\$ )?(stillbox .*)$", PAGE, re.MULTILINE)


# Minutes of compilation each: what runs here is everything up to the compiler.
@pytest.mark.parametrize("line", COMMANDS)
def test_every_command_names_a_config_and_a_slice(line):
    arguments = build_parser().parse_args(shlex.split(line)[1:])
    assert resolve(arguments.config, arguments.overrides).experiment
    assert parse_gpus(arguments.target) or parse_slice(arguments.target)


def test_there_are_commands():
    assert len(COMMANDS) >= 2


@pytest.mark.parametrize("chip", CHIPS.values(), ids=CHIPS)
def test_the_table_has_the_figures_of_tpus(chip):
    name = chip.generation
    (row,) = re.findall(rf"^\| `{name}:.*$", PAGE, re.MULTILINE)
    cells = [cell.strip() for cell in row.strip("|").split("|")]
    assert f"`{name}:{chip.slices[0]}` ... `{name}:{chip.slices[-1]}`" in cells[0]
    alias = cells[0].rpartition("`, `")[2].strip("`")
    assert parse_slice(alias)[0] is chip
    unit, factor = ("GiB", 2**30) if chip.hbm_bytes % 2**30 == 0 else ("GB", 1e9)
    assert cells[1:] == [
        f"{chip.devices} a chip",
        f"{chip.flops / 1e12:.0f} TFLOP/s",
        f"{chip.hbm_bytes / factor:.0f} {unit}",
        f"{chip.hbm_bandwidth / 1e9:,.0f} GB/s",
        f"{chip.link_bandwidth / 1e9:,.0f} GB/s",
    ]


@pytest.mark.parametrize("gpu", GPUS.values(), ids=GPUS)
def test_the_table_has_the_figures_of_gpus(gpu):
    (row,) = re.findall(rf"^\| `{gpu.name}`, .*$", PAGE, re.MULTILINE)
    cells = [cell.strip() for cell in row.strip("|").split("|")]
    assert cells == [
        f"`{gpu.name}`, `{gpu.name}:8`",
        "1 a GPU",
        f"{gpu.flops / 1e12:,.0f} TFLOP/s",
        f"{gpu.hbm_bytes / 1e9:.0f} GB",
        f"{gpu.hbm_bandwidth / 1e9:,.0f} GB/s",
        f"{gpu.link_bandwidth / 1e9:,.0f} GB/s",
    ]
