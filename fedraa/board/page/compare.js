// The chosen runs side by side, and the commands that repeat them.
"use strict";
import { byId, quantity, short, swatch, text } from "./elements.js";
import { ask, chosen, state } from "./state.js";

let asked = "";
let comparison = { flags: [], values: {}, commands: {} };

export function showCompare() {
  const rows = chosen();
  update(rows.map((row) => row.id));
  const columns = [...metricColumns(rows), ...totalColumns(rows), ...flagColumns()];
  const head = document.createElement("thead");
  const line = head.insertRow();
  line.append(text("th", "run", "text"), ...columns.map((column) => text("th", column.name, column.isText ? "text" : "")));
  const body = document.createElement("tbody");
  for (const row of rows) {
    const cells = body.insertRow();
    const name = text("td", "", "run");
    const label = document.createElement("span");
    label.append(swatch(state.slots.get(row.id)), row.state === "ended" ? row.id : `${row.id} (${row.state})`);
    name.append(label);
    cells.append(name);
    for (const column of columns) {
      const isBest = column.isBest?.(row);
      const cell = text("td", (isBest ? "★ " : "") + column.show(row), isBest ? "best" : column.isText ? "text" : "");
      cell.dataset.column = column.name;
      cells.append(cell);
    }
  }
  const table = byId("compare");
  if (table.dataset.shown !== body.innerHTML + head.innerHTML) {
    table.dataset.shown = body.innerHTML + head.innerHTML;
    table.replaceChildren(head, body);
  }
}

async function update(ids) {
  const key = JSON.stringify(ids);
  if (key === asked || !ids.length) return;
  asked = key;
  try {
    const answer = await ask("comparison", ids.map((id) => ["run", id]));
    if (key !== asked) return;
    comparison = answer;
    byId("commands").replaceChildren(...ids.map(command));
    showCompare();
  } catch (error) {
    asked = "";
  }
}

export function commandOf(id) {
  return comparison.commands[id] ?? "";
}

function command(id) {
  const box = document.createElement("div");
  const name = text("p", "", "of");
  name.append(swatch(state.slots.get(id)), id);
  const line = text("p", "", "command");
  const code = text("code", commandOf(id));
  line.append(code, copying(code));
  box.append(name, line);
  return box;
}

export function copying(code, button = text("button", "copy")) {
  button.type = "button";
  button.addEventListener("click", async () => {
    await navigator.clipboard.writeText(code.textContent);
    button.textContent = "copied";
    setTimeout(() => { button.textContent = "copy"; }, 1500);
  });
  return button;
}

// Return a column of the table. If several runs with the same problem have a value, the best of them is marked.
function metricColumn(name, rows, value, show) {
  const column = name.startsWith("best ") ? rows[0]?.main : name;
  const less = rows.some((row) => row.less.includes(column));
  const isBest = (row) => {
    const values = rows.filter((other) => other.problem === row.problem).map(value).filter((value) => value != null);
    return values.length > 1 && value(row) === (less ? Math.min(...values) : Math.max(...values));
  };
  return { name: name.replaceAll("_", " "), isBest, show };
}

function metricColumns(rows) {
  const mains = [...new Set(rows.map((row) => row.main))];
  const last = (name) => metricColumn(name, rows, (row) => row.last[name], (row) => short(row.last[name]));
  const columns = [...mains, "loss", "client_worst"].filter((name, i, all) => all.indexOf(name) === i).map(last);
  if (mains.length === 1) columns.splice(1, 0, metricColumn(`best ${mains[0]}`, rows, (row) => row.best, (row) => short(row.best)));
  return columns;
}

function totalColumns(rows) {
  const column = (name, show, isText = false) => ({ name, show, isText });
  const clock = (row, value) => (value == null ? "–" : `${short(value)}${row.unit === "s" ? " s" : ""}`);
  const plan = [
    column("time", (row) => clock(row, row.t)),
    column("real time", (row) => `${short(row.wall, 3)} s`),
    column("updates", (row) => String(row.step)),
    column("sent", (row) => quantity(row.bytes, "B")),
    column("computed", (row) => quantity(row.flops, "FLOP")),
    ...(rows.some((row) => row.energy != null) ? [column("energy", (row) => (row.energy == null ? "–" : quantity(row.energy, "J")))] : []),
    column("staleness", (row) => short(row.staleness, 3)),
    column("idle", (row) => (row.idle === null ? "–" : `${Math.round(100 * row.idle)} %`)),
    column("faults", (row) => String(row.faults + row.drops)),
  ];
  if (rows.some((row) => row.to_target != null)) plan.unshift(column("time to target", (row) => clock(row, row.to_target)));
  const same = [column("method", (row) => row.method, true), column("data", (row) => row.dataset, true), column("seed", (row) => String(row.seed))];
  return [...plan, ...same.filter((part) => new Set(rows.map(part.show)).size > 1)];
}

function flagColumns() {
  return comparison.flags.map((name, i) => ({ name, show: (row) => comparison.values[row.id]?.[i] ?? "", isText: true }));
}
