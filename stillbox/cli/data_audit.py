"""`stillbox data audit`: labels that are probably wrong, by a trained model."""

import argparse
from collections import Counter
from pathlib import Path

from stillbox.cli.arguments import add_count, add_option
from stillbox.cli.running import progress_bar
from stillbox.devices.announcing import say_aside
from stillbox.printing import count_text, printable_line
from stillbox.records.export import FORMS

_SHOWN = 3


def add_audit(parser: argparse.ArgumentParser) -> None:
    """Adds the arguments of `data audit`."""
    about = "folder of annotated images, or of records with a label map"
    parser.add_argument("data", type=Path, metavar="FOLDER", help=about)
    about = (
        "a model of these classes, perhaps trained on these labels: a model directory, one of its "
        "checkpoints, a packed model, or the folder of an export"
    )
    parser.add_argument("--model", required=True, metavar="DIR|EXPORT", help=about)
    add_count(parser, "--number", 50, "most suspicions of each fault, the surest")
    about = "write the suspicious images with the suggestions drawn in, for a tool"
    parser.add_argument("--labels", choices=sorted(FORMS), help=about)
    about = "folder for audit.html, audit.csv, labels, and the records of FOLDER"
    add_option(parser, "--output", Path("audit"), about, "FOLDER")


def run_audit(arguments: argparse.Namespace) -> int:
    """Prints the surest suspicions and writes all of them."""
    from stillbox.auditing import LABELS, TABLE, audit
    from stillbox.evaluation.label_audit import FAULTS, surest
    from stillbox.evaluation.label_audit_page import about

    with progress_bar("images") as progress:
        audited = audit(
            arguments.data,
            arguments.model,
            number=arguments.number,
            labels=arguments.labels,
            output=arguments.output,
            progress=progress,
            say=say_aside,
        )
    counts = Counter(each.fault for each in audited.suspicions)
    listed = ", ".join(f"{counts[fault]} {fault}" for fault in FAULTS if counts[fault])
    total = count_text(len(audited.suspicions), "suspicion")
    print(f"{total} in {count_text(audited.images, 'image')}: {listed or 'none'}")
    for each in surest(audited.suspicions, _SHOWN):
        print(printable_line(f"  {about(each, audited.class_names)}"))
    print(f"page: {audited.page}; table: {audited.page.parent / TABLE}")
    if arguments.labels:
        print(f"labels: {audited.page.parent / LABELS}, as {arguments.labels}")
    return 0
