"""Walks through the first hour of a new user, on a terminal of 80 columns, and prints what shows.

`python -m tools.walk FOLDER` draws playing cards with labels in two formats, trains on them, moves
and packs the model, and tries what people try: a second data set in the same folder, another
recipe, words that are misspelt. Each step has the exit code and a phrase that it has to show; the
program ends with 1 if one does not.
"""

import argparse
import fcntl
import os
import pty
import re
import shutil
import struct
import subprocess
import sys
import termios
import time
from pathlib import Path
from typing import NamedTuple

import cv2
import numpy as np

COLUMNS = 80
_STILLBOX = Path(sys.executable).with_name("stillbox")
# Colours and movements of the cursor.
_CONTROL = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]|\x1b\][^\x07]*\x07")
_SHOWN_LINES = 12


class Step(NamedTuple):
    """A command line of stillbox, its exit code and a phrase of its output."""

    words: str
    code: int
    shows: str


BEFORE_MOVING = (
    Step("train cards --model-dir runs/cards", 2, "--data cards"),
    Step("train demo_scens --data cards --model-dir runs/cards", 2, "demo_scenes"),
    Step("train demo_scenes --data cards --model-dir runs/cards --steps 8", 0, "next: stillbox"),
    Step("train --data cards --model-dir runs/cards", 0, "nothing is left"),
    Step("train --data cows --model-dir runs/cards", 2, "a run on other data"),
    Step("train retinanet --data cards --model-dir runs/cards", 2, "a run of another model"),
    Step("train demo_scenes --data cards --weights mobilnet", 2, "did you mean"),
)
AFTER_MOVING = (
    Step("evaluate kept/moved", 0, "report: kept/moved/evaluation/report.html"),
    Step("train --model-dir kept/moved", 0, "nothing is left"),
    Step("predict kept/moved/checkpoints/8 cards/val --output found", 0, "found"),
    Step("pack kept/moved cards.stillbox", 0, "more than its weights"),
    Step("predict cards.stillbox cards/val --output found_again", 0, "found_again"),
    Step("export cards.stillbox --format stablehlo --output exported", 0, "exported"),
    Step("doctor kept/moved", 0, "nothing wrong"),
)


def draw_cards(folder: Path, train: int, val: int, classes: tuple[str, ...], seed: int) -> None:
    """Draws cards on a table, with labels as Pascal VOC beside the images and as one CSV a set."""
    random = np.random.default_rng(seed)
    for part, count in (("train", train), ("val", val)):
        (folder / part).mkdir(parents=True)
        rows = ["filename,width,height,class,xmin,ymin,xmax,ymax"]
        for number in range(count):
            name = f"{part}_{number}.jpg"
            image = np.full((180, 240, 3), random.integers(60, 140, 3), np.uint8)
            class_ = int(random.integers(len(classes)))
            height, width = (int(side) for side in random.integers(60, 120, 2))
            top, left = int(random.integers(180 - height)), int(random.integers(240 - width))
            box = left, top, left + width, top + height
            cv2.rectangle(image, box[:2], box[2:], (240, 240, 240), -1)
            at = left + 8, top + height - 12
            cv2.putText(
                image, classes[class_][0], at, cv2.FONT_HERSHEY_SIMPLEX, 1.6, (0, 0, 160), 4
            )
            cv2.imwrite(str(folder / part / name), image)
            rows.append(f"{name},240,180,{classes[class_]},{','.join(map(str, box))}")
            (folder / part / f"{part}_{number}.xml").write_text(_voc(name, classes[class_], box))
        (folder / f"{part}_labels.csv").write_text("\n".join(rows) + "\n")


def _voc(name: str, class_: str, box: tuple[int, int, int, int]) -> str:
    tags = ("xmin", "ymin", "xmax", "ymax")
    corners = "".join(f"<{tag}>{at}</{tag}>" for tag, at in zip(tags, box, strict=True))
    size = "<size><width>240</width><height>180</height><depth>3</depth></size>"
    object_ = f"<object><name>{class_}</name><bndbox>{corners}</bndbox></object>"
    return f"<annotation><filename>{name}</filename>{size}{object_}</annotation>"


def run(step: Step, folder: Path) -> bool:
    """Runs a step on a terminal and prints the end of what it shows; says whether it is right."""
    began = time.monotonic()
    code, text = _on_terminal([str(_STILLBOX), *step.words.split()], folder)
    lines = [line.rstrip() for line in re.split(r"[\r\n]+", _CONTROL.sub("", text))]
    lines = [line for line in lines if line]
    longest = max(map(len, lines), default=0)
    # A message may be broken where the terminal ends.
    right = code == step.code and step.shows.replace(" ", "") in "".join(lines).replace(" ", "")
    state = "ok  " if right else "FAIL"
    print(f"{state} {time.monotonic() - began:5.1f} s, code {code}, longest line {longest}", end="")
    print(f"  stillbox {step.words}")
    for line in lines[-_SHOWN_LINES:]:
        print(f"     | {line}")
    return right


def _on_terminal(words: list[str], folder: Path) -> tuple[int, str]:
    leader, follower = pty.openpty()
    fcntl.ioctl(follower, termios.TIOCSWINSZ, struct.pack("HHHH", 24, COLUMNS, 0, 0))
    environment = {name: text for name, text in os.environ.items() if name != "COLUMNS"}
    process = subprocess.Popen(
        words, cwd=folder, stdin=follower, stdout=follower, stderr=follower, env=environment
    )
    os.close(follower)
    pieces = []
    # Linux reports the end of a terminal as an error.
    try:
        while piece := os.read(leader, 65536):
            pieces.append(piece)
    except OSError:
        pass
    os.close(leader)
    return process.wait(), b"".join(pieces).decode(errors="replace")


def main() -> int:
    """Walks; returns 1 if a step does not do what it should."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path, help="a new folder for all of it")
    folder: Path = parser.parse_args().folder
    if folder.exists():
        parser.error(f"{folder} exists: name a new folder")
    folder.mkdir(parents=True)
    draw_cards(folder / "cards", 24, 8, ("ace", "king", "queen"), seed=0)
    draw_cards(folder / "cows", 10, 4, ("cow",), seed=1)
    right = [run(step, folder) for step in BEFORE_MOVING]
    (folder / "kept").mkdir()
    shutil.move(folder / "runs/cards", folder / "kept/moved")
    right += [run(step, folder) for step in AFTER_MOVING]
    print(f"{sum(right)} of {len(right)} steps are right")
    return 0 if all(right) else 1


if __name__ == "__main__":
    sys.exit(main())
