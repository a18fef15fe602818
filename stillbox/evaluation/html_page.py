"""Building blocks of HTML pages: every text is escaped, nothing is loaded from elsewhere."""

import base64
import hashlib
from collections.abc import Iterable, Sequence
from pathlib import Path

import stillbox
from stillbox.printing import html_text

_STYLE = Path(__file__).with_name("page.css")
_SCRIPT = Path(__file__).with_name("page.js")

# The policy forbids the page to load anything and to run any script but its own, whatever its
# content.
_PAGE = """<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta http-equiv="Content-Security-Policy"
      content="default-src 'none'; img-src data:; style-src 'unsafe-inline';
      script-src 'sha256-{digest}'">
<title>{title}</title>
<style>
{style}</style>
</head>
<body>
<header><div><h1>{title}</h1>{subtitle}</div></header>
<main>
{body}
</main>
<footer>Written by stillbox {version}. This page loads nothing from elsewhere.</footer>
<script>{script}</script>
</body>
</html>
"""


def html_page(title: str, subtitle: str, sections: Iterable[str]) -> str:
    """Returns a page. The subtitle may be empty; sections are HTML, empty ones are left out."""
    script = _SCRIPT.read_text(encoding="utf-8")
    return _PAGE.format(
        script=script,
        digest=base64.b64encode(hashlib.sha256(script.encode()).digest()).decode(),
        title=html_text(title),
        subtitle=f"<p>{html_text(subtitle)}</p>" if subtitle else "",
        style=_STYLE.read_text(encoding="utf-8"),
        body="\n".join(part for part in sections if part),
        version=html_text(stillbox.__version__),
    )


def section(title: str, body: str) -> str:
    """Returns a section with its heading, nothing if the body is empty."""
    return f"<section><h2>{html_text(title)}</h2>\n{body}\n</section>" if body else ""


def note(text: str) -> str:
    """Returns a paragraph that explains what follows."""
    return f'<p class="note">{html_text(text)}</p>'


def card_row(cards: Iterable[tuple[str, str]]) -> str:
    """Returns a row of (value, description); the first is highlighted."""
    cells = "".join(
        f'<div class="card{" first" if number == 0 else ""}"><b>{html_text(value)}</b>'
        f"<span>{html_text(about)}</span></div>"
        for number, (value, about) in enumerate(cards)
    )
    return f'<div class="cards">{cells}</div>'


def table(caption: str, head: str | None, rows: Sequence[str], *, sortable: bool = False) -> str:
    """Returns a table of rows in HTML; a sortable one needs a head with a cell for each column."""
    title = f"<caption>{html_text(caption)}</caption>" if caption else ""
    top = f"<thead>{head}</thead>" if head else ""
    kind = ' class="sortable"' if sortable else ""
    return (
        f'<div class="scroll"><table{kind}>{title}{top}<tbody>{"".join(rows)}</tbody></table></div>'
    )


def fact_row(name: str, value: str) -> str:
    """Returns a row of a name and its value."""
    return f'<tr><th scope="row">{html_text(name)}</th><td>{html_text(value)}</td></tr>'


def bar_cell(share: float) -> str:
    """Returns a cell with a bar, `share` of 0..1 long."""
    return f'<td class="bar"><i><b style="width:{round(100 * share)}%"></b></i></td>'


def head_row(text: Sequence[str], numbers: Sequence[str]) -> str:
    """Returns the row of a table's head: columns of text and of numbers; "" is one of bars."""
    cells = [f'<th scope="col">{html_text(name)}</th>' for name in text]
    cells += [
        f'<th scope="col" class="number">{html_text(name)}</th>' if name else "<td></td>"
        for name in numbers
    ]
    return f"<tr>{''.join(cells)}</tr>"


def number_cell(value: float | None, places: int = 3, *, why: str = "") -> str:
    """Returns a cell with a number, or a dash with the tooltip `why` for None."""
    if value is None:
        return f'<td class="number none" title="{html_text(why)}">&ndash;</td>'
    text = f"{value:,}" if isinstance(value, int) else f"{value:.{places}f}"
    return f'<td class="number">{text}</td>'
