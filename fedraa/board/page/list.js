// The list of runs, the legend and the state of the board.
"use strict";
import { byId, formatCount, quantity, swatch, text } from "./elements.js";
import { choose, chosen, state } from "./state.js";

// For each run by id: its element in the list, and the version and colours that the element shows.
const items = new Map();

for (const id of ["filter", "order"]) byId(id).addEventListener("input", showList);
byId("none").addEventListener("click", () => choose([]));
byId("all").addEventListener("click", () => choose([...new Set([...state.slots.keys(), ...visible().map((row) => row.id)])]));

export function showList() {
  const rows = visible();
  const list = byId("runs");
  const elements = rows.map(item);
  if (elements.some((element, i) => list.children[i] !== element) || list.children.length !== elements.length) {
    list.replaceChildren(...elements);
  }
  for (const id of [...items.keys()]) if (!state.rows.has(id)) items.delete(id);
  byId("count").textContent = `${rows.length} of ${state.rows.size}`;
  byId("legend").replaceChildren(...chosen().map((row) => entry(row.id)));
  showStatus();
}

function showStatus() {
  const rows = [...state.rows.values()];
  const counts = new Map();
  for (const row of rows) counts.set(row.state, (counts.get(row.state) ?? 0) + 1);
  const states = [...counts].map(([name, count]) => `${count} ${name}`).join(" · ");
  const progress = state.size - state.read > 1e6 ? ` · reading logs, ${quantity(state.read, "B")} of ${quantity(state.size, "B")}` : "";
  const runs = rows.length ? `${state.folder} · ${formatCount(rows.length, "run")}: ${states}${progress}`
    : state.searched ? `${state.folder} · no run yet. A run appears here when it starts.` : "Looking for runs …";
  const status = state.lost ? "The board does not answer. The page shows its last state." : runs;
  const dot = document.createElement("span");
  dot.className = `dot ${state.lost ? "lost" : counts.has("running") ? "running" : ""}`;
  byId("standing").replaceChildren(dot, status);
}

function visible() {
  const wanted = byId("filter").value.toLowerCase().split(/\s+/).filter(Boolean);
  const words = (row) => `${row.id} ${row.method ?? ""} ${row.dataset ?? ""} ${row.state} seed ${row.seed ?? ""}`.toLowerCase();
  const rows = [...state.rows.values()].filter((row) => wanted.every((word) => words(row).includes(word)));
  const name = (a, b) => a.id.localeCompare(b.id, undefined, { numeric: true });
  const orders = {
    newest: (a, b) => (b.started ?? 0) - (a.started ?? 0) || name(a, b),
    best: (a, b) => goodness(b) - goodness(a) || name(a, b),
    state: (a, b) => b.state.localeCompare(a.state) || name(a, b),
    name,
  };
  return rows.sort(orders[byId("order").value]);
}

function goodness(row) {
  if (row.best == null) return -Number.MAX_VALUE;
  return row.less.includes(row.main) ? -row.best : row.best;
}

function item(row) {
  const slot = state.slots.get(row.id);
  const shown = `${row.version} ${slot}`;
  const known = items.get(row.id);
  if (known?.shown === shown) return known.element;
  const element = known?.element ?? document.createElement("li");
  const label = document.createElement("label");
  const box = document.createElement("input");
  box.type = "checkbox";
  box.checked = slot !== undefined;
  box.disabled = row.method === undefined;
  box.addEventListener("change", () => {
    const others = [...state.slots.keys()].filter((id) => id !== row.id);
    choose(box.checked ? [...others, row.id] : others);
  });
  const value = row.last?.[row.main];
  label.append(box, slot === undefined ? text("span", "") : swatch(slot), text("span", row.id, "name"));
  label.append(text("span", value == null ? "" : value.toFixed(4), "value"));
  const about = text("span", "", "about quiet");
  const dot = text("span", "", `dot ${row.state}`);
  const description = row.method === undefined ? row.detail || "starting"
    : `${row.method} · ${row.dataset} · seed ${row.seed} · ${row.state}${["damaged", "failed"].includes(row.state) ? `: ${row.detail}` : ""}`;
  about.append(dot, description);
  label.append(about);
  if (row.state === "running" && row.share !== null) {
    const progress = document.createElement("progress");
    progress.value = row.share;
    progress.title = `${Math.round(100 * row.share)} % of its limit`;
    label.append(progress);
  }
  element.replaceChildren(label);
  items.set(row.id, { element, shown });
  return element;
}

function entry(id) {
  const element = document.createElement("li");
  element.append(swatch(state.slots.get(id)), text("span", id));
  return element;
}
