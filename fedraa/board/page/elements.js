// Elements that all parts of the page use.
"use strict";

// Number of colours in the palette, `--c0` to `--c6` in page.css.
export const COLOURS = 7;
// The dashes of lines in SVG, in the order of DASHES in plot.js.
const DASHES = ["none", "7 4", "2 3", "7 3 2 3"];

export function byId(id) {
  return document.getElementById(id);
}

export function text(tag, content, kind = "") {
  const element = document.createElement(tag);
  element.textContent = content;
  if (kind) element.className = kind;
  return element;
}

// Return a small picture of a line, with the colour and the dash that `look` in plot.js gives it in a plot.
export function swatch(slot) {
  const space = "http://www.w3.org/2000/svg";
  const picture = document.createElementNS(space, "svg");
  const line = document.createElementNS(space, "line");
  picture.setAttribute("class", "swatch");
  picture.setAttribute("viewBox", "0 0 30 10");
  picture.setAttribute("aria-hidden", "true");
  const facts = { x1: 1, x2: 29, y1: 5, y2: 5, "stroke-width": 2.5, "stroke-dasharray": DASHES[slot % DASHES.length] };
  for (const [name, value] of Object.entries(facts)) line.setAttribute(name, value);
  line.style.stroke = `var(--c${slot % COLOURS})`;
  picture.append(line);
  return picture;
}

export function quantity(value, unit) {
  for (const prefix of ["", "k", "M", "G", "T"]) {
    if (value < 999.5) return `${Number(value.toPrecision(3))} ${prefix}${unit}`;
    value /= 1000;
  }
  return `${value.toPrecision(4)} P${unit}`;
}

// Return a number with its noun: 1 run, 2 runs.
export function formatCount(number, noun) {
  return `${number} ${noun}${number === 1 ? "" : "s"}`;
}

export function short(value, digits = 4) {
  return value == null ? "–" : String(Number(value.toPrecision(digits)));
}
