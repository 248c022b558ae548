// Request the changes every second and update every part of the page.
"use strict";
import { showCompare } from "./compare.js";
import { showCurves } from "./curves.js";
import { showDetails } from "./details.js";
import { byId } from "./elements.js";
import { showList } from "./list.js";
import { ask, choose, chosen, state } from "./state.js";

const REQUEST_INTERVAL_MS = 1000;
// Number of runs that the page shows until the reader chooses runs.
const DEFAULT_RUNS = 6;

let since = 0;
// True until the reader chooses runs. Until then the page chooses them.
let isOurs = !location.hash;
let isChoosing = false;

function fromAddress() {
  return location.hash.slice(1).split("&").filter(Boolean).map(decodeURIComponent);
}

function show() {
  const isEmpty = chosen().length === 0;
  byId("empty").hidden = !isEmpty;
  byId("chosen").hidden = isEmpty;
  showList();
  showCurves();
  showCompare();
  showDetails();
}

async function follow() {
  if (!document.hidden) {
    try {
      const { rows, version, ...rest } = await ask("runs", { since });
      const hasMore = rows.some((row) => row.method !== undefined && state.rows.get(row.id)?.method === undefined);
      since = version;
      Object.assign(state, rest, { lost: false });
      for (const row of rows) state.rows.set(row.id, row);
      for (const id of [...state.rows.keys()]) if (!state.ids.includes(id)) state.rows.delete(id);
      if (isOurs && hasMore) {
        isChoosing = true;
        choose(byDefault());
        isChoosing = false;
      }
    } catch (error) {
      state.lost = true;
    }
    show();
  }
  setTimeout(follow, REQUEST_INTERVAL_MS);
}

// Return the ids of the runs to show: running ones first, then the newest.
function byDefault() {
  const known = [...state.rows.values()].filter((row) => row.method !== undefined);
  known.sort((a, b) => (b.state === "running") - (a.state === "running") || b.started - a.started);
  return known.slice(0, DEFAULT_RUNS).map((row) => row.id).sort();
}

document.addEventListener("chosen", () => {
  isOurs &&= isChoosing;
  show();
});
if (location.hash) choose(fromAddress());
window.addEventListener("hashchange", () => choose(fromAddress()));
document.addEventListener("visibilitychange", show);
follow();
