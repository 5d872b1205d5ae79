"use strict";
document.documentElement.classList.add("scripted");

const table = document.querySelector(".index table");
const body = table.tBodies[0];
const heads = [...table.tHead.rows[0].cells];
const rows = [...body.rows];
const words = document.getElementById("words");
const state = document.getElementById("state");
const sweep = document.getElementById("sweep");
const count = document.getElementById("count");
const texts = new Map(rows.map((row) => [row, row.textContent.toLowerCase()]));

const filterRows = () => {
  const wanted = words.value.toLowerCase().split(/\s+/).filter(Boolean);
  let shown = 0;
  for (const row of rows) {
    const passes = wanted.every((word) => texts.get(row).includes(word))
      && (!state.value || row.dataset.state === state.value)
      && (!sweep || !sweep.value || row.dataset.sweep === sweep.value);
    row.hidden = !passes;
    shown += passes ? 1 : 0;
  }
  count.textContent = shown === rows.length ? "" : `${shown} of ${rows.length} shown`;
};

// numbers by value, names with their numbers in order; what has no value comes last either way
const sortRows = (place) => {
  const falls = heads[place].getAttribute("aria-sort") === "ascending";
  const value = (row) => row.cells[place].dataset.value ?? "";
  const known = rows.filter((row) => value(row) !== "");
  const isNumber = known.length > 0 && known.every((row) => Number.isFinite(Number(value(row))));
  const order = isNumber
    ? (a, b) => Number(value(a)) - Number(value(b))
    : (a, b) => value(a).localeCompare(value(b), "en", { numeric: true });
  rows.sort((a, b) => {
    const missing = (value(a) === "") - (value(b) === "");
    return missing || (falls ? -order(a, b) : order(a, b));
  });
  body.append(...rows);
  for (const head of heads) head.removeAttribute("aria-sort");
  heads[place].setAttribute("aria-sort", falls ? "descending" : "ascending");
};

heads.forEach((head, place) => head.querySelector("button")?.addEventListener("click", () => sortRows(place)));
for (const control of [words, state, sweep]) control?.addEventListener("input", filterRows);
