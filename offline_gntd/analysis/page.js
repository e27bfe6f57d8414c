"use strict";

// A cell sorts by the number it begins with, else by its text; one without a value goes last either way.
function key(cell) {
  const text = cell.textContent.trim();
  const number = parseFloat(text.replace("−", "-").replace(/,/g, "").replace(/^[+[]/, ""));
  return { text, number, empty: ["", "—", "missing"].includes(text) };
}

function compare(a, b, direction) {
  if (a.empty || b.empty) return a.empty - b.empty;
  if (!Number.isNaN(a.number) && !Number.isNaN(b.number)) return direction * (a.number - b.number);
  return direction * a.text.localeCompare(b.text);
}

function sort(table, head) {
  const column = [...head.parentNode.children].indexOf(head);
  const descending = head.getAttribute("aria-sort") === "ascending";
  for (const other of head.parentNode.children) other.setAttribute("aria-sort", "none");
  head.setAttribute("aria-sort", descending ? "descending" : "ascending");
  const body = table.tBodies[0];
  const rows = [...body.rows].map((row) => ({ row, key: key(row.cells[column]) }));
  rows.sort((a, b) => compare(a.key, b.key, descending ? -1 : 1));
  body.append(...rows.map((each) => each.row));
}

for (const table of document.querySelectorAll("table.sortable")) {
  for (const head of table.tHead.rows[0].cells) {
    head.querySelector("button").addEventListener("click", () => sort(table, head));
  }
}
