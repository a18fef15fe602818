"""The page of the whole dictionary: `python -m stillbox.experiment.params_dict.reference`.

What it says of a key is what the reader did with it (`probing.py`).
"""

import re
import sys
from collections.abc import Iterable, Iterator, Mapping

from stillbox.experiment.params_dict.blocks import BACKBONES, NECKS
from stillbox.experiment.params_dict.dialects import RENAMED, REPEATED
from stillbox.experiment.params_dict.foreign import SECTIONS, TYPES
from stillbox.experiment.params_dict.keys import FINAL, OLD, Key, Kind
from stillbox.experiment.params_dict.merging import spell
from stillbox.experiment.params_dict.probing import Fate, fates
from stillbox.experiment.params_dict.templates import TEMPLATES

_HEADER = """\
# The parameter dictionary of "Object Detection Models on TPU"

Made by `python -m stillbox.experiment.params_dict.reference > docs/params_dict.md`, which gives
every key another value than its default and writes down what the reader does:

- **honoured**: the experiment changes, in the fields that are named (see [All fields](fields.md));
- **no effect**: the key is accepted and changes nothing, for the reason given; reading says so;
- **default only**: every other value is refused, with file, line, this reason and a remedy.

A default is never refused, and nothing is said of it. A YAML file with these names is read as a
dictionary wherever a CONFIG is expected; `--set` then changes the experiment that it became. Names
and types are strict at every depth.

`stillbox retinanet --config_file` knows the published settings by the names of their files, and
takes them where there is no such file: {templates}.

## What a dictionary does not say

- **Label map.** The records hold numbers. `label_map.pbtxt` beside the training records, which
  `stillbox data convert` writes, gives them names. Without one COCO's are taken where `num_classes`
  is 91, and for any other number `data.train.label_map` has to be set.
- **Classes.** `num_classes` counts the background: 91 becomes `model.num_classes` 90.
- **Devices.** Batch norm takes the statistics of the whole batch, over all devices.
- **bfloat16.** `use_bfloat16` is true unless it is switched off; with `use_tpu: false` it is not
  looked at, as in the original.

## What is not as in the original

"""
_MENDED = (
    (
        "a box is decoded as it was encoded",
        "decoding counts edges as pixels",
        "`model.box_coder.inclusive_edges=decode`",
    ),
    (
        "every code of a matched anchor counts",
        "one whose target is exactly 0 does not",
        "`model.loss.skip_zero_codes=true`",
    ),
    (
        "boxes are clipped to the image",
        "to the padded network input",
        "`model.postprocessing.nms.clip_to=input`",
    ),
    ("every image is scored", "the rest of the last batch is lost", ""),
    ("DropBlock reaches all rows", "some are left out where maps are not square", ""),
)
_OLD = """
## Keys of 2020

They are accepted beside today's, one by one, and a warning names what says it today. What nobody
gives has today's default. A `batch_norm`, `dropblock` or `activation` of a block is
`batch_norm_activation` and `dropblock` today where all blocks in use agree, and holds for its block
alone where they do not.

| key | type | where to, or why |
|---|---|---|
"""
_KINDS: dict[Kind, str] = {
    "flag": "true, false",
    "whole": "whole number",
    "real": "number",
    "text": "text",
    "wholes": "whole numbers",
    "reals": "numbers",
}
_PATHS_SHOWN = 4


def params_reference() -> str:
    """Returns a Markdown page: one table for each section, one row for each key."""
    templates = ", ".join(f"`{name}.yaml`" for name in TEMPLATES)
    return (
        _HEADER.format(templates=templates)
        + _mended()
        + _summary()
        + "".join(_final())
        + _old()
        + _others()
    )


def _mended() -> str:
    rows = [f"| {' | '.join(row)} |" for row in _MENDED]
    head = ("| here | in the original | to have it so |", "|---|---|---|")
    return "\n".join([*head, *rows, ""])


def _summary() -> str:
    words = [_word(path, fate) for path, fate in fates().items() if path in FINAL]
    counts = ", ".join(
        f"{words.count(word)} {word}" for word in ("honoured", "no effect", "default only")
    )
    return f"\n## The keys\n\nOf {len(words)} keys: {counts}.\n"


def _final() -> Iterator[str]:
    sections: dict[str, list[str]] = {}
    for path in FINAL:
        section, _, _ = path.rpartition(".")
        sections.setdefault(section, []).append(path)
    for section, paths in sections.items():
        title = f"`{section}`" if section else "At the top"
        yield f"\n### {title}\n\n{_where_used(section)}" + _table(paths, FINAL)


def _where_used(section: str) -> str:
    for blocks, chooser in (
        (BACKBONES, "architecture.backbone"),
        (NECKS, "architecture.multilevel_features"),
    ):
        if section in blocks:
            return f"Without effect unless `{chooser}` is `{section}`.\n\n"
    return ""


def _table(paths: Iterable[str], keys: Mapping[str, Key]) -> str:
    rows = [
        f"| `{path.rpartition('.')[2]}` | {_type(keys[path])} | {_word(path, fates()[path])} "
        f"| {_explain(path, fates()[path])} |"
        for path in paths
    ]
    return "\n".join(
        ["| key | type and default | | where to, or why |", "|---|---|---|---|", *rows, ""]
    )


def _type(key: Key) -> str:
    shown = spell(key.default)
    return _KINDS[key.kind] + (f", `{_escape(shown)}`" if shown else "")


def _word(path: str, fate: Fate) -> str:
    if fate.honoured:
        return "honoured"
    if fate.ignored:
        return "no effect"
    if fate.refused:
        return "default only"
    raise AssertionError(f"{path} is read and nothing follows from it")


def _explain(path: str, fate: Fate) -> str:
    parts = []
    if fate.honoured:
        parts.append(", ".join(f"`{place}`" for place in _shorten(fate.honoured)))
    elif fate.ignored:
        said = (re.sub(r"^.*? (has|have) no effect here: ", "", text) for text in fate.ignored)
        own = dict.fromkeys(text.removeprefix("without it: ") for text in said)
        parts.append("; ".join(text for text in own if not re.match(r"architecture\.", text)))
    by_reason: dict[str, list[str]] = {}
    for value, reason in fate.refused.items():
        other = next((why for why in TYPES.values() if reason.endswith(why)), None)
        reason = "see [Other models](#other-models)" if other else reason
        by_reason.setdefault(reason, []).append(value)
    for reason, values in by_reason.items():
        shown = ", ".join(f"`{_escape(value)}`" for value in values)
        parts.append(f"{shown}: {_escape(reason)}")
    return ". ".join(parts)


def _escape(text: str) -> str:
    return text.replace("|", "\\|")


def _shorten(paths: Iterable[str]) -> list[str]:
    """Names sections instead of all their fields where another kind was chosen."""
    paths = list(paths)
    kinds = [path.rpartition(".")[0] for path in paths if path.endswith(".kind")]
    shown = dict.fromkeys(
        next((kind for kind in sorted(kinds) if path.startswith(f"{kind}.")), path)
        for path in paths
    )
    if len(shown) > _PATHS_SHOWN:
        shown = dict.fromkeys(".".join(path.split(".")[:2]) for path in shown)
    return list(shown)


def _old() -> str:
    today = {**RENAMED, **{path: key for key, copies in REPEATED.items() for path in copies}}
    rows = []
    for path, key in OLD.items():
        fate = fates()[path]
        if path in today:
            again = " (all copies that are in use must agree)" if path not in RENAMED else ""
            rows.append(f"| `{path}` | {_KINDS[key.kind]} | `{today[path]}`{again} |")
        else:
            rows.append(f"| `{path}` | {_KINDS[key.kind]} | {_explain(path, fate)} |")
    return _OLD + "\n".join(rows) + "\n"


def _others() -> str:
    sections: dict[str, list[str]] = {}
    for section, model in SECTIONS.items():
        sections.setdefault(model, []).append(f"`{section}`")
    rows = [
        f"| `{model}` | {', '.join(sections.get(model, []))} | {why} |"
        for model, why in TYPES.items()
    ]
    return (
        "\n## Other models\n\nA dictionary of another `type`, or with one of these sections, is "
        "refused:\n\n| `type` | sections | why |\n|---|---|---|\n" + "\n".join(rows) + "\n"
    )


if __name__ == "__main__":
    sys.stdout.write(params_reference())
