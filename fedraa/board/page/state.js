// The state of the page: the rows of all runs, and the runs that the reader has chosen.
"use strict";

export const state = {
  // The row of each run by id.
  rows: new Map(),
  // The slot (a number) of each chosen run by id, in the order of choice. The slot determines the colour and the dash.
  slots: new Map(),
  ids: [], folder: "", searched: false, lost: false, read: 0, size: 0,
};

export async function ask(name, values) {
  const answer = await fetch(`${name}?${new URLSearchParams(values)}`);
  if (!answer.ok) throw new Error(await answer.text());
  return answer.json();
}

// Return the rows of the chosen runs that can be shown.
export function chosen() {
  return [...state.slots.keys()].map((id) => state.rows.get(id)).filter((row) => row?.method !== undefined);
}

// A run keeps its slot while it is chosen. The address stores the choice, so that a reload keeps it.
export function choose(ids) {
  const slots = new Map(ids.map((id) => [id, state.slots.get(id)]));
  const taken = new Set(slots.values());
  for (const id of ids) {
    if (slots.get(id) !== undefined) continue;
    let slot = 0;
    while (taken.has(slot)) slot++;
    slots.set(id, slot);
    taken.add(slot);
  }
  state.slots = slots;
  history.replaceState(null, "", `#${ids.map(encodeURIComponent).join("&")}`);
  document.dispatchEvent(new Event("chosen"));
}
