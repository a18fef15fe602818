"use strict";
// Tables sort by their heads and figures enlarge on a click. Without this script the page is whole.
for (const table of document.querySelectorAll("table.sortable")) {
  const body = table.tBodies[0];
  const first = [...body.rows];
  [...table.tHead.rows[0].cells].forEach((head, column) => {
    if (!head.textContent) return;
    const button = document.createElement("button");
    button.append(...head.childNodes);
    head.append(button);
    button.addEventListener("click", () => sort(head, column));
  });

  function value(row, column) {
    const text = row.cells[column].textContent.trim();
    const number = parseFloat(text.replaceAll(",", ""));
    return row.cells[column].classList.contains("number") ? number : text;
  }

  function sort(head, column) {
    const before = head.getAttribute("aria-sort");
    const numeric = head.classList.contains("number");
    // A number falls first, a text rises first; the third click brings the first order back.
    const orders = numeric ? ["descending", "ascending"] : ["ascending", "descending"];
    const next = before === null ? orders[0] : before === orders[0] ? orders[1] : null;
    for (const cell of table.tHead.rows[0].cells) cell.removeAttribute("aria-sort");
    if (next === null) return body.append(...first);
    head.setAttribute("aria-sort", next);
    const sign = next === "ascending" ? 1 : -1;
    body.append(...[...first].sort((one, other) => {
      const a = value(one, column), b = value(other, column);
      if (!numeric) return sign * a.localeCompare(b, undefined, { numeric: true });
      // Cells without a value stay at the end.
      if (Number.isNaN(a) || Number.isNaN(b)) return Number.isNaN(a) - Number.isNaN(b);
      return sign * (a - b);
    }));
  }
}

const dialog = document.createElement("dialog");
dialog.addEventListener("click", () => dialog.close());
document.body.append(dialog);
for (const figure of document.querySelectorAll("figure")) {
  const drawn = figure.querySelector(":scope > svg, :scope > div > svg, :scope > img");
  if (!drawn) continue;
  drawn.classList.add("enlarges");
  drawn.tabIndex = 0;
  const show = () => {
    const copy = drawn.cloneNode(true);
    copy.removeAttribute("tabindex");
    dialog.replaceChildren(copy);
    const caption = figure.querySelector("figcaption");
    if (caption) dialog.append(caption.cloneNode(true));
    dialog.showModal();
  };
  drawn.addEventListener("click", show);
  drawn.addEventListener("keydown", (event) => { if (event.key === "Enter") show(); });
}
