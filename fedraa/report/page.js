// A click on a heading sorts its table: ascending, then descending. Cells without a value stay last.
"use strict";
for (const button of document.querySelectorAll("th button")) {
  button.addEventListener("click", () => {
    const heading = button.closest("th");
    const body = heading.closest("table").tBodies[0];
    const down = heading.getAttribute("aria-sort") === "ascending";
    const value = (row) => row.cells[heading.cellIndex].dataset.value;
    const numeric = [...body.rows].every((row) => value(row) === "" || !Number.isNaN(Number(value(row))));
    const order = (a, b) => (numeric ? Number(a) - Number(b) : a.localeCompare(b));
    const rows = [...body.rows].sort((first, second) => {
      const [a, b] = [value(first), value(second)];
      if (a === "" || b === "") return (a === "") - (b === "");
      return down ? order(b, a) : order(a, b);
    });
    for (const other of heading.parentElement.cells) other.removeAttribute("aria-sort");
    heading.setAttribute("aria-sort", down ? "descending" : "ascending");
    body.append(...rows);
  });
}
