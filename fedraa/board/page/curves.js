// Two plots of the evaluations, with a line per chosen run.
"use strict";
import { byId, short } from "./elements.js";
import { axis, draw, look, onZoom } from "./plot.js";
import { ask, chosen, state } from "./state.js";

const charts = [0, 1].map((number) => ({ number, y: "", range: [], asked: "", curves: [] }));
let x = "t";

for (const radio of document.querySelectorAll("#across input")) {
  radio.addEventListener("change", () => {
    x = radio.value;
    for (const chart of charts) chart.range = [];
    showCurves();
  });
}
for (const chart of charts) {
  byId(`y${chart.number}`).addEventListener("change", (event) => {
    chart.y = event.target.value;
    chart.range = [];
    showCurves();
  });
}

export function showCurves() {
  const rows = chosen();
  if (!rows.length) return;
  const columns = [...new Set(rows.flatMap((row) => row.columns))];
  for (const chart of charts) {
    const usual = chart.number ? "loss" : rows[0].main;
    if (!columns.includes(chart.y)) chart.y = columns.includes(usual) ? usual : columns[0];
    options(byId(`y${chart.number}`), columns, chart.y);
    update(chart, rows);
  }
}

function options(select, names, value) {
  if (names.join() !== [...select.options].map((option) => option.value).join()) {
    select.replaceChildren(...names.map((name) => new Option(name.replaceAll("_", " "), name)));
  }
  select.value = value;
}

async function update(chart, rows) {
  const asked = JSON.stringify([x, chart.y, chart.range, rows.map((row) => [row.id, row.version])]);
  if (asked !== chart.asked) {
    chart.asked = asked;
    const query = [["x", x], ["y", chart.y], ...rows.map((row) => ["run", row.id])];
    if (chart.range.length) query.push(["from", chart.range[0]], ["to", chart.range[1]]);
    try {
      const { curves } = await ask("curves", query);
      // The reader has changed the selection in the meantime.
      if (asked !== chart.asked) return;
      chart.curves = curves;
    } catch (error) {
      // After a failure, forget the request, so that the next call sends it again.
      chart.asked = "";
      return;
    }
  }
  await draw(`curve${chart.number}`, () => picture(chart), `${x} ${chart.y}`);
  onZoom(`curve${chart.number}`, (...range) => {
    chart.range = range.map((end) => Number(end.toPrecision(7)));
    showCurves();
  });
}

function picture(chart) {
  const rows = new Map(chosen().map((row) => [row.id, row]));
  const curves = chart.curves.filter((curve) => rows.has(curve.id));
  const label = chart.y.replaceAll("_", " ");
  const unit = x === "bytes" ? "B" : "";
  const traces = curves.map((curve) => ({
    type: "scatter", mode: curve.x.length > 1 ? "lines" : "markers", x: curve.x, y: curve.y, name: curve.id,
    line: { ...look(state.slots.get(curve.id)), width: 2 }, marker: { color: look(state.slots.get(curve.id)).color },
    hovertemplate: `<b>${plain(curve.id)}</b><br>${label} %{y:.4f}<br>${WORDS[x]} %{x:.5~s}${unit}<extra></extra>`,
  }));
  const haveSameProblem = new Set(curves.map((curve) => rows.get(curve.id).problem)).size < 2;
  const best = haveSameProblem ? bestOf(curves, rows, chart.y) : null;
  byId(`best${chart.number}`).textContent = best
    ? `★ best: ${best.id}, ${label} ${short(best.y)} at ${WORDS[x]} ${short(best.x)}${unit && ` ${unit}`}`
    : haveSameProblem ? "No evaluation yet." : "No best run: the runs have different data or tasks.";
  if (best) {
    const { color } = look(state.slots.get(best.id));
    traces.push({
      type: "scatter", mode: "markers", x: [best.x], y: [best.y], name: best.id, cliponaxis: false,
      marker: { symbol: "star", size: 13, color },
      hovertemplate: `<b>${plain(best.id)}</b>, the best<br>${label} %{y:.4f}<br>${WORDS[x]} %{x:.5~s}${unit}<extra></extra>`,
    });
  }
  const horizontal = axis(title([...rows.values()]), { rangemode: "tozero", ...(unit && { tickformat: "~s", ticksuffix: unit }) });
  return { traces, layout: { xaxis: horizontal, yaxis: axis(vertical(chart.y, [...rows.values()])), height: 300 } };
}

function bestOf(curves, rows, y) {
  const withBest = curves.filter((curve) => curve.best && curve.best.y !== null && curve.best.x !== null);
  const less = withBest.length > 0 && rows.get(withBest[0].id).less.includes(y);
  const better = (a, b) => (less ? a.best.y < b.best.y : a.best.y > b.best.y);
  let best = null;
  for (const curve of withBest) if (!best || better(curve, best)) best = curve;
  return best && { id: best.id, ...best.best };
}

const WORDS = { t: "time", wall: "real time", step: "update", bytes: "sent" };

function title(rows) {
  if (x === "wall") return "real time since the start (s)";
  if (x === "step") return rows.some((row) => row.rounds) ? "server updates, or rounds" : "server updates";
  if (x === "bytes") return "sent, down and up (bytes)";
  const axes = new Set(rows.map((row) => `${row.clock} time (${row.unit})`));
  return axes.size === 1 ? [...axes][0] : "time on the clock of each run";
}

function vertical(y, rows) {
  const label = y.replaceAll("_", " ");
  if (y === "loss") return rows.every((row) => row.main === "accuracy") ? "test loss (nats)" : "test loss";
  if (y.startsWith("client_") || y.startsWith("personal_")) return `${rows[0].main.replaceAll("_", " ")}, ${label}`;
  return y === "accuracy" ? "test accuracy (share)" : `test ${label}`;
}

function plain(name) {
  return name.replaceAll("&", "&amp;").replaceAll("<", "&lt;");
}
