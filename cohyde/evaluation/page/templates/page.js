"use strict";
// Sorting and filtering of tables. Without it they are plain tables that show everything.
for (const table of document.querySelectorAll("table.data")) {
  const bodies = [...table.tBodies];
  const rows = bodies.flatMap((body) => [...body.rows].filter((row) => !row.classList.contains("group")));
  const homes = rows.map((row) => row.parentElement);
  const collator = new Intl.Collator("en", { numeric: true, sensitivity: "base" });
  const heads = [...table.tHead.querySelectorAll("tr.heads th")];

  const value = (row, column) => {
    const cell = row.cells[column];
    return cell.dataset.v === undefined ? cell.textContent.trim() : Number(cell.dataset.v);
  };
  const compare = (one, two, sign) => {
    const numbers = [typeof one === "number", typeof two === "number"];
    if (numbers[0] && numbers[1]) return sign * (one - two);
    if (numbers[0] !== numbers[1]) return numbers[0] ? -1 : 1; // what has no number stands last, either way
    return sign * collator.compare(one, two);
  };
  const sort = (column, direction) => {
    heads.forEach((head, at) => head.setAttribute("aria-sort", at === column ? direction : "none"));
    table.classList.toggle("sorted", direction !== "none");
    if (direction === "none") {
      rows.forEach((row, at) => homes[at].append(row));
      return;
    }
    const sign = direction === "ascending" ? 1 : -1;
    const order = [...rows].sort((one, two) => compare(value(one, column), value(two, column), sign));
    bodies[0].append(...order);
  };

  heads.forEach((head, column) => {
    const button = document.createElement("button");
    button.type = "button";
    button.append(...head.childNodes);
    head.append(button);
    head.setAttribute("aria-sort", "none");
    const first = head.classList.contains("n") ? "descending" : "ascending";
    const second = first === "ascending" ? "descending" : "ascending";
    const next = { none: first, [first]: second, [second]: "none" };
    button.addEventListener("click", () => sort(column, next[head.getAttribute("aria-sort")]));
  });

  if (rows.length < 8) continue;
  const input = document.createElement("input");
  input.type = "search";
  input.placeholder = "Filter rows";
  input.setAttribute("aria-label", `Filter rows of: ${table.closest(".part").querySelector("h3").textContent}`);
  const count = document.createElement("output");
  const bar = document.createElement("p");
  bar.className = "filter";
  bar.append(input, count);
  table.closest(".part").querySelector(".bar").append(bar);
  input.addEventListener("input", () => {
    const words = input.value.toLowerCase().split(/\s+/).filter(Boolean);
    let shown = 0;
    rows.forEach((row, at) => {
      const group = homes[at].querySelector("tr.group");
      const text = `${group ? group.textContent : ""} ${row.textContent}`.toLowerCase();
      row.hidden = !words.every((word) => text.includes(word));
      shown += !row.hidden;
    });
    for (const body of bodies) {
      const group = body.querySelector("tr.group");
      if (group) group.hidden = [...body.rows].every((row) => row === group || row.hidden);
    }
    count.textContent = words.length ? `${shown} of ${rows.length}` : "";
  });
}
