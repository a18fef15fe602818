"""The style sheet of HTML pages."""

STYLE = """\
:root {
  --ink: #212529; --muted: #6c757d; --line: #e9ecef; --paper: #fff; --soft: #f8f9fa;
  --accent: #0b7285;
}
* { box-sizing: border-box; }
body {
  margin: 0; background: var(--soft); color: var(--ink);
  font: 15px/1.55 system-ui, -apple-system, "Segoe UI", Roboto, "Helvetica Neue", Arial, sans-serif;
}
main, header > div, footer { max-width: 1120px; margin: 0 auto; padding: 0 20px; }
header { background: var(--paper); border-bottom: 1px solid var(--line); padding: 28px 0 22px; }
h1 {
  margin: 0; font-size: 26px; line-height: 1.25; letter-spacing: -0.01em; overflow-wrap: anywhere;
}
header p { margin: 6px 0 0; color: var(--muted); }
section {
  background: var(--paper); border: 1px solid var(--line); border-radius: 10px; margin: 22px 0;
  padding: 20px 22px 22px;
}
h2 { margin: 0 0 14px; font-size: 18px; }
.cards {
  display: grid; grid-template-columns: repeat(auto-fit, minmax(140px, 1fr)); gap: 14px;
  margin: 22px 0;
}
.card {
  background: var(--paper); border: 1px solid var(--line); border-radius: 10px;
  padding: 14px 16px;
}
.card b {
  display: block; font-size: 28px; line-height: 1.2; font-weight: 650; letter-spacing: -0.02em;
}
.card span { color: var(--muted); font-size: 13px; }
.card.first { border-color: var(--accent); box-shadow: inset 0 3px 0 var(--accent); }
.columns {
  display: grid; grid-template-columns: repeat(auto-fit, minmax(320px, 1fr)); gap: 8px 36px;
  align-items: start;
}
.scroll { overflow-x: auto; }
table { border-collapse: collapse; width: 100%; font-variant-numeric: tabular-nums; }
caption { text-align: left; color: var(--muted); font-size: 13px; padding-bottom: 6px; }
th, td {
  text-align: left; padding: 7px 10px 7px 0; border-bottom: 1px solid var(--line);
  vertical-align: baseline;
}
tr:last-child td, tr:last-child th { border-bottom: 0; }
thead th { font-size: 13px; font-weight: 600; color: var(--muted); }
tbody th { font-weight: 600; white-space: nowrap; }
td.number, th.number { text-align: right; white-space: nowrap; padding-right: 16px; }
td.about, .none { color: var(--muted); }
td.bar { width: 22%; min-width: 90px; }
.bar i { display: block; height: 8px; border-radius: 4px; background: var(--line); }
.bar i b { display: block; height: 8px; border-radius: 4px; background: var(--accent); }
.figures {
  display: grid; grid-template-columns: repeat(auto-fit, minmax(min(440px, 100%), 1fr));
  gap: 20px;
}
figure { margin: 0; }
.scroll + .figures { margin-top: 22px; grid-template-columns: minmax(0, 720px); }
figure img { display: block; width: 100%; height: auto; }
.pictures {
  display: grid; grid-template-columns: repeat(auto-fill, minmax(min(460px, 100%), 1fr));
  gap: 22px; align-items: start;
}
.pictures img {
  border: 1px solid var(--line); border-radius: 6px; padding: 6px; background: #fff;
}
figcaption { color: var(--muted); font-size: 13px; padding-top: 6px; overflow-wrap: anywhere; }
ul.warnings { margin: 0; padding-left: 20px; }
details { margin-top: 14px; }
summary { cursor: pointer; color: var(--accent); }
pre {
  overflow-x: auto; background: var(--soft); border: 1px solid var(--line); border-radius: 8px;
  padding: 14px; font: 12.5px/1.5 ui-monospace, SFMono-Regular, Menlo, Consolas, monospace;
}
footer { color: var(--muted); font-size: 13px; padding-bottom: 32px; }
@media print { body { background: #fff; } section, .card { break-inside: avoid; } }
"""
