"""Verbs of other packages, which entry points name."""

import os
import subprocess
import sys

COUNT = '''"""Counts boxes."""

from stillbox.cli.verbs import Verb, register

register(Verb("count_boxes", "counting", "count boxes"))


def add_arguments(parser):
    parser.add_argument("--more", type=int, default=0)


def run(arguments):
    print(40 + arguments.more)
    return 0
'''


def test_an_installed_package_adds_a_verb(tmp_path):
    (tmp_path / "counting.py").write_text(COUNT)
    info = tmp_path / "counting-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: counting\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[stillbox.verbs]\ncounting = counting\n")
    path = os.pathsep.join([str(tmp_path), *filter(None, sys.path)])
    command = "from stillbox.cli.main import command; raise SystemExit(command())"

    def said(*words):
        done = subprocess.run(
            [sys.executable, "-c", command, *words],
            env=os.environ | {"PYTHONPATH": path},
            capture_output=True,
            text=True,
            check=True,
        )
        return done.stdout

    assert "count boxes" in said("--help")
    assert said("count_boxes", "--more", "2") == "42\n"
