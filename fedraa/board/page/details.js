// One run: its timeline, staleness, coverage, fragments and faults.
"use strict";
import { commandOf, copying } from "./compare.js";
import { short, text } from "./elements.js";
import { axis, colour, draw, onZoom } from "./plot.js";
import { ask, chosen, state } from "./state.js";

// Maximum number of fragments that the palette can distinguish.
const FEW = 7;
const byId = (id) => document.getElementById(id);
let [range, asked, found] = [[], "", null];

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
    `${row.method} on ${row.dataset}, seed ${row.seed}, ${row.clients} clients`, `${row.state} ${row.said}`.trim(),
    `${row.tasks} tasks done, ${row.in_flight} in flight`, row.idle === null ? "" : `clients idle ${Math.round(100 * row.idle)} % of the time`,
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
    found = answer;
  } catch (error) {
    asked = "";
    return;
  }
  if (!found.timeline) return;
  await showTimeline(row);
  showPart("staleness", found.staleness, staleness);
  showPart("coverage", found.coverage, coverage);
  showPart("fragments", found.fragments, fragments);
  showPart("heat", found.fragments, heat);
  showFaults();
}

function showPart(id, part, make) {
  byId(`${id}-figure`).hidden = !part;
  if (part) draw(id, () => make(part), found.id);
}

async function showTimeline(row) {
  const told = found.timeline;
  const sampled = told.of > told.clients.length ? ` ${told.clients.length} of ${told.of} clients, at even distances.` : "";
  byId("timeline-caption").textContent = (told.bars
    ? "One lane per client: a bar is a task from dispatch to its return, a gap is idle time." + (fragmentsIn(told).length > 1 ? " Colours are fragments." : "")
    : `How busy each client was: ${told.tasks} tasks are too many to be seen; zoom in and they are shown one by one.`) + sampled;
  await draw("timeline", () => timeline(told, row), found.id);
  onZoom("timeline", (...zoomed) => {
    range = zoomed;
    showDetails();
  });
}

function fragmentsIn(told) {
  return [...new Set(told.bars.fragment)].sort((a, b) => a - b);
}

function timeline(told, row) {
  const lanes = told.clients.map(String);
  const every = Math.ceil(lanes.length / 12);
  const vertical = axis("client", {
    type: "category", categoryorder: "array", categoryarray: lanes, autorange: false, range: [lanes.length - 0.4, -0.6],
    tickvals: lanes.filter((_, i) => i % every === 0), fixedrange: true, showgrid: false,
  });
  const layout = { xaxis: axis(`${row.clock} time (${row.unit})`), yaxis: vertical, barmode: "overlay", bargap: 0.2 };
  return { traces: told.bars ? bars(told) : busy(told, lanes), layout: { ...layout, ...fragmentLegend(told) } };
}

function fragmentLegend(told) {
  const count = told.bars ? fragmentsIn(told).length : 0;
  if (count < 2 || count > FEW) return {};
  return { showlegend: true, legend: { orientation: "h", x: 0, y: 1.02, yanchor: "bottom", title: { text: "fragment" } }, margin: { l: 56, r: 12, t: 56, b: 44 } };
}

function bars(told) {
  const { bars: all } = told;
  const names = fragmentsIn(told);
  const hover = "client %{y}, fragment %{customdata[0]}<br>%{base:.5~g} to %{customdata[1]:.5~g}<br>%{customdata[2]}<extra></extra>";
  const trace = (places, marker, name) => ({
    type: "bar", orientation: "h", name, marker, hovertemplate: hover, textposition: "none",
    y: places.map((i) => String(all.client[i])), base: places.map((i) => all.start[i]),
    x: places.map((i) => all.end[i] - all.start[i]),
    customdata: places.map((i) => [all.fragment[i], all.end[i], all.fate[i] === "done" ? `staleness ${all.staleness[i]}` : all.fate[i]]),
  });
  const places = all.client.map((_, i) => i);
  const line = { width: 0.5, color: colour("paper") };
  if (names.length > FEW) {
    const marker = { color: all.fragment, colorscale: "Cividis", line, colorbar: { title: { text: "fragment", side: "right" }, thickness: 12, outlinewidth: 0 } };
    return [trace(places, marker, "")];
  }
  return names.map((name, i) => trace(places.filter((place) => all.fragment[place] === name), { color: colour(`c${i}`), line }, String(name)));
}

function busy(told, lanes) {
  const middle = told.edges.slice(1).map((end, i) => (told.edges[i] + end) / 2);
  return [{
    type: "heatmap", x: middle, y: lanes, z: told.busy, zmin: 0, zmax: 1, colorscale: [[0, colour("wash")], [1, colour("c0")]],
    colorbar: { title: { text: "share of time at work", side: "right" }, thickness: 12, tickformat: ".0%", outlinewidth: 0 },
    hovertemplate: "client %{y}, around %{x:.5~g}<br>at work %{z:.0%} of the time<extra></extra>",
  }];
}

function staleness(told) {
  const centres = told.counts.map((_, i) => i * told.width + (told.width - 1) / 2);
  const to = told.counts.map((_, i) => (told.width > 1 ? `${i * told.width} to ${(i + 1) * told.width - 1}` : String(i)));
  byId("staleness-caption").textContent = "Commits by how many updates of their fragment came between dispatch and commit;"
    + ` the line is the mean, ${short(told.mean, 3)}. The most is ${told.max}.`;
  const mean = { type: "line", x0: told.mean, x1: told.mean, y0: 0, y1: 1, yref: "paper", line: { color: colour("c1"), dash: "dash", width: 2 } };
  return {
    traces: [{ type: "bar", x: centres, y: told.counts, width: 0.8 * told.width, marker: { color: colour("c0") }, customdata: to,
      hovertemplate: "staleness %{customdata}<br>%{y} commits<extra></extra>" }],
    layout: { xaxis: axis("staleness (updates of the fragment)", { tickformat: "d", dtick: told.max < 10 ? 1 : undefined, showgrid: false }), yaxis: axis("commits"), shapes: [mean] },
  };
}

function coverage(told) {
  const line = (y, name, color, dash, more = {}) => ({
    type: "scatter", mode: "lines", x: told.round, y, name, line: { color, dash, width: 2, shape: "hvh" },
    hovertemplate: `round %{x}<br>${name}: %{y} clients<extra></extra>`, ...more,
  });
  const traces = [
    line(told.most, "best covered", colour("c0"), "solid"),
    line(told.least, "least covered", colour("c1"), "dash", { fill: "tonexty", fillcolor: `${colour("c0")}22` }),
    { type: "bar", x: told.round, y: told.uncovered, yaxis: "y2", name: "uncovered", showlegend: false, marker: { color: colour("c4") },
      hovertemplate: "round %{x}<br>%{y:.2%} of the parameters<extra></extra>" },
  ];
  const most = Math.max(0.05, 1.15 * Math.max(...told.uncovered));
  return { traces, layout: {
    showlegend: true, legend: { orientation: "h", x: 0, y: 1.02, yanchor: "bottom" }, margin: { l: 56, r: 12, t: 56, b: 44 },
    xaxis: axis("round", { anchor: "y2" }), yaxis: axis("clients", { domain: [0.4, 1], rangemode: "tozero" }),
    yaxis2: axis("uncovered", { domain: [0, 0.28], tickformat: ".0%", range: [0, most], nticks: 3 }),
  } };
}

function fragments(told) {
  return {
    traces: [{ type: "bar", x: told.names, y: told.counts, marker: { color: colour("c0") }, hovertemplate: "fragment %{x}<br>%{y} commits<extra></extra>" }],
    layout: { xaxis: axis("fragment", { type: "category", showgrid: false, nticks: 12 }), yaxis: axis("commits") },
  };
}

function heat(told) {
  const lanes = told.clients.map(String);
  const every = Math.ceil(lanes.length / 12);
  byId("heat-caption").textContent = "How often each client trained each fragment."
    + (told.of > lanes.length ? ` ${lanes.length} of ${told.of} clients, at even distances.` : "");
  return {
    traces: [{ type: "heatmap", x: told.names, y: lanes, z: told.by_client, colorscale: "Cividis", zmin: 0,
      colorbar: { title: { text: "commits", side: "right" }, thickness: 12, outlinewidth: 0 },
      hovertemplate: "client %{y}, fragment %{x}<br>%{z} commits<extra></extra>" }],
    layout: {
      xaxis: axis("fragment", { type: "category", showgrid: false, nticks: 12 }),
      yaxis: axis("client", { type: "category", autorange: "reversed", tickvals: lanes.filter((_, i) => i % every === 0), showgrid: false }),
    },
  };
}

function showFaults() {
  const { troubles, faults, drops } = found;
  byId("faults-box").hidden = !troubles.length;
  byId("faults-caption").textContent = faults + drops
    ? `${faults} faults of workers, ${drops} dropped tasks${troubles.length < faults + drops ? `; the newest ${troubles.length}` : ""}.`
    : "None: no worker failed, no task was dropped.";
  const columns = ["time", "real time", "error", "then", "task", "who"];
  const head = document.createElement("thead");
  head.insertRow().append(...columns.map((name) => text("th", name, ["error", "then", "who"].includes(name) ? "text" : "")));
  const body = document.createElement("tbody");
  for (const each of troubles) {
    const who = each.client != null ? `client ${each.client}` : each.worker != null ? `worker ${each.worker}` : "–";
    const cells = [short(each.t), each.wall == null ? "–" : `${short(each.wall)} s`, each.error ?? "–", each.action ?? "–", each.task ?? "–", who];
    body.insertRow().append(...cells.map((cell, i) => {
      const made = text("td", String(cell), i === 2 ? "long" : i > 2 && i !== 4 ? "text" : "");
      made.dataset.column = columns[i];
      return made;
    }));
  }
  byId("faults").replaceChildren(head, body);
}
