from pathlib import Path

from stillbox.experiment.schema import Experiment
from stillbox.experiment.values import leaf_paths
from tools.fields import page as fields_page

PAGE = Path(__file__).parents[2] / "docs" / "fields.md"


def test_the_page_of_all_fields_is_up_to_date():
    assert PAGE.read_text(encoding="utf-8") == fields_page(), (
        "python -m tools.fields > docs/fields.md"
    )


def test_every_field_is_listed_under_the_path_of_its_section():
    sections = {}
    for line in fields_page().splitlines():
        if line.startswith("## "):
            title = line
        elif line.startswith("| `"):
            sections.setdefault(title, set()).add(line.split("`")[1])
    for path in leaf_paths(Experiment()):
        section, _, name = path.rpartition(".")
        if name != "kind":
            assert any(
                name in names and (f"`{section}`" in title if section else "top" in title)
                for title, names in sections.items()
            ), path
