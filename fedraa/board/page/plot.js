// Functions that draw plots in the colours of the page. Plotly is loaded once, after the list of runs is shown.
"use strict";
import { COLOURS, byId } from "./elements.js";

// The dashes of lines in Plotly.
const DASHES = ["solid", "dash", "dot", "dashdot"];

const loaded = new Promise((resolve, reject) => {
  const script = document.createElement("script");
  script.src = "plotly.js";
  script.addEventListener("load", () => resolve(window.Plotly));
  script.addEventListener("error", reject);
  document.head.append(script);
});
// The data that each plot shows, as JSON text, to find out whether it has changed.
const seen = new Map();
const dark = matchMedia("(prefers-color-scheme: dark)");
// A function that draws each plot again.
const redrawn = new Map();

export function colour(name) {
  return getComputedStyle(document.documentElement).getPropertyValue(`--${name}`).trim();
}

export function look(slot) {
  return { color: colour(`c${slot % COLOURS}`), dash: DASHES[slot % DASHES.length] };
}

export function axis(title, more = {}) {
  const grid = colour("grid");
  return {
    title: { text: title, standoff: 8 }, gridcolor: grid, linecolor: colour("faint"), zeroline: false,
    automargin: true, ...more,
  };
}

// Draw the traces and the layout that `make` returns into the plot, unless the plot already shows them. The reader's zoom
// is kept while `kept` stays the same.
export async function draw(id, make, kept = "") {
  redrawn.set(id, () => draw(id, make, kept));
  const { traces, layout } = make();
  const text = JSON.stringify([traces, layout, kept, dark.matches]);
  if (seen.get(id) === text) return;
  seen.set(id, text);
  const Plotly = await loaded;
  const base = {
    font: { family: "system-ui, -apple-system, 'Segoe UI', Roboto, 'DejaVu Sans', sans-serif", size: 12, color: colour("ink") },
    paper_bgcolor: colour("paper"), plot_bgcolor: colour("paper"), showlegend: false, hovermode: "closest",
    hoverlabel: { bgcolor: colour("wash"), bordercolor: colour("faint"), font: { color: colour("ink") }, namelength: -1 },
    margin: { l: 56, r: 12, t: 30, b: 44 }, uirevision: kept, modebar: { color: colour("faint"), activecolor: colour("ink"), bgcolor: "rgba(0,0,0,0)" },
    dragmode: matchMedia("(pointer: coarse)").matches ? false : "zoom",
  };
  // Plotly's default buttons include one that sends data to another server. These do not.
  const buttons = [["zoom2d", "pan2d"], ["zoomIn2d", "zoomOut2d", "resetScale2d"], ["toImage"]];
  const settings = { responsive: true, displaylogo: false, displayModeBar: "hover", modeBarButtons: buttons };
  await Plotly.react(id, traces, { ...base, ...layout }, settings);
}

dark.addEventListener("change", () => {
  for (const again of redrawn.values()) again();
});

// Call `zoomed(low, high)` when the reader zooms the horizontal axis, and `zoomed()` for the whole axis.
export async function onZoom(id, zoomed) {
  await loaded;
  const element = byId(id);
  if (element.dataset.zooms) return;
  element.dataset.zooms = "yes";
  element.on("plotly_relayout", (change) => {
    if ("xaxis.range[0]" in change) zoomed(Number(change["xaxis.range[0]"]), Number(change["xaxis.range[1]"]));
    else if ("xaxis.range" in change) zoomed(...change["xaxis.range"].map(Number));
    else if (change["xaxis.autorange"]) zoomed();
  });
}
