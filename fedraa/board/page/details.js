// One run: its timeline, staleness, coverage, fragments and faults.
"use strict";
import { commandOf, copying } from "./compare.js";
import { COLOURS, byId, formatCount, short, text } from "./elements.js";
import { axis, colour, draw, onZoom } from "./plot.js";
import { ask, chosen, state } from "./state.js";

let range = [];
let asked = "";
let details = null;

byId("one").addEventListener("change", () => { range = []; showDetails(); });
copying(byId("command"), byId("copy"));

export function showDetails() {
  const rows = chosen();
  const select = byId("one");
  if (rows.map((row) => row.id).join("\n") !== [...select.options].map((option) => option.value).join("\n")) {
    const before = select.value;
    select.replaceChildren(...rows.map((row) => new Option(row.id, row.id)));
    if (rows.some((row) => row.id === before)) select.value = before;
    else range = [];
  }
  const row = state.rows.get(select.value);
  if (!row) return;
  byId("facts").textContent = [
    `${row.method} on ${row.dataset}, seed ${row.seed}, ${formatCount(row.clients, "client")}`, `${row.state} ${row.detail}`.trim(),
    `${formatCount(row.tasks, "task")} done, ${row.in_flight} in flight`, row.idle === null ? "" : `clients idle ${Math.round(100 * row.idle)} % of the time`,
  ].filter(Boolean).join(" · ");
  byId("command").textContent = commandOf(row.id);
  update(row);
}

async function update(row) {
  const key = JSON.stringify([row.id, row.version, range]);
  if (key === asked) return;
  asked = key;
  const query = [["run", row.id]];
  if (range.length) query.push(["from", range[0]], ["to", range[1]]);
  try {
    const answer = await ask("details", query);
    if (key !== asked || !answer) return;
    details = answer;
  } catch (error) {
    asked = "";
    return;
  }
  if (!details.timeline) return;
  await showTimeline(row);
  showPart("staleness", details.staleness, staleness);
  showPart("coverage", details.coverage, coverage);
  showPart("fragments", details.fragments, fragments);
  showPart("heat", details.fragments, heat);
  showFaults();
}

function showPart(id, part, make) {
  byId(`${id}-figure`).hidden = !part;
  if (part) draw(id, () => make(part), details.id);
}

async function showTimeline(row) {
  const data = details.timeline;
  const sampled = data.of > data.clients.length ? ` ${data.clients.length} of ${data.of} clients, at even distances.` : "";
  byId("timeline-caption").textContent = (data.bars
    ? "One lane per client: a bar is a task from dispatch to its return, and a gap is idle time." + (fragmentsIn(data).length > 1 ? " Colours are fragments." : "")
    : `Share of time in which each client worked. Zoom in to show the ${data.tasks} tasks one by one.`) + sampled;
  await draw("timeline", () => timeline(data, row), details.id);
  onZoom("timeline", (...zoomed) => {
    range = zoomed;
    showDetails();
  });
}

function fragmentsIn(data) {
  return [...new Set(data.bars.fragment)].sort((a, b) => a - b);
}

function timeline(data, row) {
  const lanes = data.clients.map(String);
  const every = Math.ceil(lanes.length / 12);
  const vertical = axis("client", {
    type: "category", categoryorder: "array", categoryarray: lanes, autorange: false, range: [lanes.length - 0.4, -0.6],
    tickvals: lanes.filter((_, i) => i % every === 0), fixedrange: true, showgrid: false,
  });
  const layout = { xaxis: axis(`${row.clock} time (${row.unit})`), yaxis: vertical, barmode: "overlay", bargap: 0.2 };
  return { traces: data.bars ? bars(data) : busy(data, lanes), layout: { ...layout, ...fragmentLegend(data) } };
}

function fragmentLegend(data) {
  const count = data.bars ? fragmentsIn(data).length : 0;
  if (count < 2 || count > COLOURS) return {};
  return { showlegend: true, legend: { orientation: "h", x: 0, y: 1.02, yanchor: "bottom", title: { text: "fragment" } }, margin: { l: 56, r: 12, t: 56, b: 44 } };
}

function bars(data) {
  const { bars: all } = data;
  const names = fragmentsIn(data);
  const hover = "client %{y}, fragment %{customdata[0]}<br>%{base:.5~g} to %{customdata[1]:.5~g}<br>%{customdata[2]}<extra></extra>";
  const trace = (places, marker, name) => ({
    type: "bar", orientation: "h", name, marker, hovertemplate: hover, textposition: "none",
    y: places.map((i) => String(all.client[i])), base: places.map((i) => all.start[i]),
    x: places.map((i) => all.end[i] - all.start[i]),
    customdata: places.map((i) => [all.fragment[i], all.end[i], all.fate[i] === "done" ? `staleness ${all.staleness[i]}` : all.fate[i]]),
  });
  const places = all.client.map((_, i) => i);
  const line = { width: 0.5, color: colour("paper") };
  if (names.length > COLOURS) {
    const marker = { color: all.fragment, colorscale: "Cividis", line, colorbar: { title: { text: "fragment", side: "right" }, thickness: 12, outlinewidth: 0 } };
    return [trace(places, marker, "")];
  }
  return names.map((name, i) => trace(places.filter((place) => all.fragment[place] === name), { color: colour(`c${i}`), line }, String(name)));
}

function busy(data, lanes) {
  const middle = data.edges.slice(1).map((end, i) => (data.edges[i] + end) / 2);
  return [{
    type: "heatmap", x: middle, y: lanes, z: data.busy, zmin: 0, zmax: 1, colorscale: [[0, colour("wash")], [1, colour("c0")]],
    colorbar: { title: { text: "share of time with a task", side: "right" }, thickness: 12, tickformat: ".0%", outlinewidth: 0 },
    hovertemplate: "client %{y}, around %{x:.5~g}<br>with a task %{z:.0%} of the time<extra></extra>",
  }];
}

function staleness(data) {
  const centres = data.counts.map((_, i) => i * data.width + (data.width - 1) / 2);
  const to = data.counts.map((_, i) => (data.width > 1 ? `${i * data.width} to ${(i + 1) * data.width - 1}` : String(i)));
  byId("staleness-caption").textContent = "Commits by staleness: updates of the same fragment between dispatch and commit."
    + ` The line is the mean, ${short(data.mean, 3)}. The maximum is ${data.max}.`;
  const mean = { type: "line", x0: data.mean, x1: data.mean, y0: 0, y1: 1, yref: "paper", line: { color: colour("c1"), dash: "dash", width: 2 } };
  return {
    traces: [{ type: "bar", x: centres, y: data.counts, width: 0.8 * data.width, marker: { color: colour("c0") }, customdata: to,
      hovertemplate: "staleness %{customdata}<br>%{y} commits<extra></extra>" }],
    layout: { xaxis: axis("staleness (updates of the fragment)", { tickformat: "d", dtick: data.max < 10 ? 1 : undefined, showgrid: false }), yaxis: axis("commits"), shapes: [mean] },
  };
}

function coverage(data) {
  const line = (y, name, color, dash, more = {}) => ({
    type: "scatter", mode: "lines", x: data.round, y, name, line: { color, dash, width: 2, shape: "hvh" },
    hovertemplate: `round %{x}<br>${name}: %{y} clients<extra></extra>`, ...more,
  });
  const traces = [
    line(data.most, "best covered", colour("c0"), "solid"),
    line(data.least, "least covered", colour("c1"), "dash", { fill: "tonexty", fillcolor: `${colour("c0")}22` }),
    { type: "bar", x: data.round, y: data.uncovered, yaxis: "y2", name: "uncovered", showlegend: false, marker: { color: colour("c4") },
      hovertemplate: "round %{x}<br>%{y:.2%} of the parameters<extra></extra>" },
  ];
  const most = Math.max(0.05, 1.15 * Math.max(...data.uncovered));
  return { traces, layout: {
    showlegend: true, legend: { orientation: "h", x: 0, y: 1.02, yanchor: "bottom" }, margin: { l: 56, r: 12, t: 56, b: 44 },
    xaxis: axis("round", { anchor: "y2" }), yaxis: axis("clients", { domain: [0.4, 1], rangemode: "tozero" }),
    yaxis2: axis("uncovered", { domain: [0, 0.28], tickformat: ".0%", range: [0, most], nticks: 3 }),
  } };
}

function fragments(data) {
  return {
    traces: [{ type: "bar", x: data.names, y: data.counts, marker: { color: colour("c0") }, hovertemplate: "fragment %{x}<br>%{y} commits<extra></extra>" }],
    layout: { xaxis: axis("fragment", { type: "category", showgrid: false, nticks: 12 }), yaxis: axis("commits") },
  };
}

function heat(data) {
  const lanes = data.clients.map(String);
  const every = Math.ceil(lanes.length / 12);
  byId("heat-caption").textContent = "Committed tasks by client and fragment."
    + (data.of > lanes.length ? ` ${lanes.length} of ${data.of} clients, at even distances.` : "");
  return {
    traces: [{ type: "heatmap", x: data.names, y: lanes, z: data.by_client, colorscale: "Cividis", zmin: 0,
      colorbar: { title: { text: "commits", side: "right" }, thickness: 12, outlinewidth: 0 },
      hovertemplate: "client %{y}, fragment %{x}<br>%{z} commits<extra></extra>" }],
    layout: {
      xaxis: axis("fragment", { type: "category", showgrid: false, nticks: 12 }),
      yaxis: axis("client", { type: "category", autorange: "reversed", tickvals: lanes.filter((_, i) => i % every === 0), showgrid: false }),
    },
  };
}

// The CSS class of each column of text in the table of faults.
const KINDS = { error: "long", action: "text", source: "text" };

function sourceOf(failure) {
  if (failure.client != null) return `client ${failure.client}`;
  return failure.worker != null ? `worker ${failure.worker}` : "–";
}

function showFaults() {
  const { troubles, faults, drops } = details;
  byId("faults-box").hidden = !troubles.length;
  byId("faults-caption").textContent = faults + drops
    ? `${formatCount(faults, "fault")} of workers, ${formatCount(drops, "dropped task")}${troubles.length < faults + drops ? `; the newest ${troubles.length}` : ""}.`
    : "No worker failed, and no task was dropped.";
  const columns = ["time", "real time", "error", "action", "task", "source"];
  const head = document.createElement("thead");
  head.insertRow().append(...columns.map((name) => text("th", name, name in KINDS ? "text" : "")));
  const body = document.createElement("tbody");
  for (const failure of troubles) {
    const { t, wall, error, action, task } = failure;
    const cells = [short(t), wall == null ? "–" : `${short(wall)} s`, error ?? "–", action ?? "–", task ?? "–", sourceOf(failure)];
    body.insertRow().append(...cells.map((cell, i) => {
      const element = text("td", String(cell), KINDS[columns[i]] ?? "");
      element.dataset.column = columns[i];
      return element;
    }));
  }
  byId("faults").replaceChildren(head, body);
}
