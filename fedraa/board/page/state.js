// What the page knows, and which runs the reader has chosen.
"use strict";

export const state = {
  rows: new Map(), // by id
  slots: new Map(), // by id of those that are chosen, in their order: a slot each, which is their look
  ids: [], folder: "", searched: false, lost: false, read: 0, size: 0,
};

export async function ask(name, values) {
  const answer = await fetch(`${name}?${new URLSearchParams(values)}`);
  if (!answer.ok) throw new Error(await answer.text());
  return answer.json();
}

// The rows of the runs that are chosen, as far as they can be shown.
export function chosen() {
  return [...state.slots.keys()].map((id) => state.rows.get(id)).filter((row) => row?.method !== undefined);
}

// A run keeps its slot as long as it is chosen. The address has the choice, so that it lasts.
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
