"use strict";

// Copy a command. Without a clipboard (a file opened from disk), select it.
function copy(place) {
  const code = document.getElementById(place);
  const said = document.getElementById("said");
  const tell = (words) => {
    said.textContent = words;
    setTimeout(() => { said.textContent = ""; }, 4000);
  };
  const select = () => {
    const range = document.createRange();
    range.selectNodeContents(code);
    const selection = window.getSelection();
    selection.removeAllRanges();
    selection.addRange(range);
    let copied = false;
    try { copied = document.execCommand("copy"); } catch { copied = false; }
    tell(copied ? "Copied" : "Selected: press Ctrl+C or ⌘C to copy");
  };
  if (navigator.clipboard && window.isSecureContext) {
    navigator.clipboard.writeText(code.textContent).then(() => tell("Copied"), select);
  } else {
    select();
  }
}

for (const button of document.querySelectorAll("[data-copy]")) {
  button.addEventListener("click", () => copy(button.dataset.copy));
}

// Fractions come in whole parts of this, as in class_search.py.
const SCALE = 10000;
const read = (place) => {
  const held = document.getElementById(place);
  return held && JSON.parse(held.textContent);
};
const percent = (value, digits = 1) => (100 * value).toFixed(digits);
const signed = (value) => (value < -0.0005 ? "−" : value > 0.0005 ? "+" : "±") + Math.abs(100 * value).toFixed(1);
const span = (line, from, to) => {
  line.setAttribute("x1", `${100 * from}%`);
  line.setAttribute("x2", `${100 * to}%`);
};

// Letters without case and accents, so that "cafe" finds "Café".
const folded = (name) => name.normalize("NFKD").replace(/\p{M}/gu, "").toLowerCase();
const classes = read("class-data");
const searched = classes ? classes.names.map(folded) : [];

// The classes whose names hold the text: a whole name first, then beginnings, then the rest.
function find(typed) {
  const wanted = folded(typed.trim()).split(/\s+/).join(" ");
  if (!wanted) return [];
  const rank = (name) => (name === wanted ? 0 : name.startsWith(wanted) ? 1 : 2);
  const found = [];
  searched.forEach((name, j) => { if (name.includes(wanted)) found.push(j); });
  return found.sort((a, b) => rank(searched[a]) - rank(searched[b]) || a - b);
}

// A box that shows what is found, at most `most` classes, whenever its text changes.
function searchBox(place, most, draw) {
  const box = document.getElementById(place);
  if (!box) return;
  const said = document.getElementById(`${place}-said`);
  const total = searched.length.toLocaleString("en");
  box.addEventListener("input", () => {
    const found = find(box.value);
    draw(found.slice(0, most));
    const some = found.length > most ? `, the first ${most} are shown` : "";
    said.textContent = box.value.trim() ? `${found.length.toLocaleString("en")} of ${total} classes match${some}` : "";
  });
}

// A row of the table for each class that is found.
const table = document.querySelector("#found tbody");
if (table) {
  const model = table.rows[0];
  const at = (figures, j) => figures.map((values) => values[j] / SCALE);
  const place = (value) => `${100 * Math.max(0, value - classes.floor) / (1 - classes.floor)}%`;
  const drawn = (row, kind, [low, value, high], sign) => {
    const [line, mark] = row.querySelectorAll(`.range .${kind}`);
    line.setAttribute("x1", place(low));
    line.setAttribute("x2", place(high));
    mark.setAttribute("cx", place(value));
    if (sign) for (const part of [line, mark]) part.setAttribute("class", `${kind} ${sign}`);
  };
  const figure = (cell, [low, value, high]) => {
    cell.firstChild.data = `${percent(value)} `;
    cell.querySelector("small").textContent = `[${percent(low, 0)}, ${percent(high, 0)}]`;
  };
  const said = (p, up) => {
    if (p === null) return "too few to tell";
    const words = p >= 1e-4 ? `p = ${p}` : "p < 0.0001";
    return p < 0.05 ? `${up ? "▲" : "▼"} yes, ${words}` : `no, ${words}`;
  };
  const rowOf = (j) => {
    const row = model.cloneNode(true);
    const after = at(classes.after, j);
    row.querySelector("bdi").textContent = classes.names[j];
    row.cells[2].textContent = classes.count[j].toLocaleString("en");
    figure(row.cells[classes.before ? 4 : 3], after);
    if (classes.before) {
      const before = at(classes.before, j);
      const up = after[1] > before[1];
      const sign = classes.p[j] !== null && classes.p[j] < 0.05 ? (up ? "up" : "down") : "same";
      figure(row.cells[3], before);
      drawn(row, "was", before);
      drawn(row, "is", after, sign);
      Object.assign(row.cells[5].firstChild, { textContent: signed(after[1] - before[1]), className: sign });
      Object.assign(row.cells[6].firstChild, { textContent: said(classes.p[j], up), className: classes.p[j] === null ? "" : sign });
    } else {
      drawn(row, "is", after);
    }
    return row;
  };
  searchBox("find", 10, (found) => {
    document.getElementById("found").hidden = !found.length;
    table.replaceChildren(...found.map(rowOf));
  });
}

// The explorer shows one point of the front at a time.
const front = read("front-data");
if (front) {
  const slider = document.getElementById("budget");
  const rowsOf = (choice) => [...document.querySelectorAll(choice)].map((row) => ({
    row,
    name: row.querySelector("bdi"),
    shield: row.querySelector(".shield"),
    fill: row.querySelector(".fill"),
    band: row.querySelector(".band"),
    tick: row.querySelector(".tick"),
    value: row.querySelector(".value"),
    reach: row.querySelector("small"),
  }));
  const every = rowsOf("#bars [data-class]");
  const grouped = rowsOf("#bars [data-group]");
  const lists = Object.fromEntries(["up", "down", "found"].map((key) => [key, rowsOf(`#bars-${key} li`)]));
  const guarded = new Set(front.protected);
  const write = (id, value, unit) => {
    document.getElementById(id).textContent = `${percent(value)} ${unit}`;
  };
  let followed = [];
  let shown;

  const paint = (row, value, base) => {
    row.fill.setAttribute("width", `${100 * value}%`);
    span(row.tick, base, base);
    row.value.textContent = `${percent(value)} % (${signed(value - base)})`;
  };
  const paintClass = (row, j) => {
    const [value, low, high, base] = [shown.per_class, shown.low, shown.high, front.base].map((v) => v[j] / SCALE);
    paint(row, value, base);
    span(row.band, low, high);
    row.reach.textContent = `[${percent(low, 0)}, ${percent(high, 0)}]`;
  };
  // Some of many classes, in rows that are there already.
  const paintList = (key, chosen) => {
    lists[key].forEach((row, i) => {
      row.row.hidden = i >= chosen.length;
      if (row.row.hidden) return;
      row.name.textContent = classes.names[chosen[i]];
      row.shield.hidden = !guarded.has(chosen[i]);
      paintClass(row, chosen[i]);
    });
    const none = document.getElementById(`bars-${key}-none`);
    if (none) none.hidden = chosen.length > 0;
  };
  const paintMost = () => {
    const change = shown.per_class.map((value, j) => value - front.base[j]);
    const order = change.map((_, j) => j).sort((a, b) => change[b] - change[a]);
    paintList("up", order.slice(0, lists.up.length).filter((j) => change[j] > 0));
    paintList("down", order.reverse().slice(0, lists.down.length).filter((j) => change[j] < 0));
    paintList("found", followed);
  };

  const show = () => {
    const objective = document.querySelector("input[name=objective]:checked").value;
    const points = front.objectives[objective];
    slider.max = points.length - 1;
    const place = Math.min(slider.value, points.length - 1);
    const point = shown = points[place];
    for (const group of document.querySelectorAll("[data-front]")) {
      const own = group.dataset.front === objective;
      [...group.children].forEach((mark, i) => mark.classList.toggle("here", own && i === place));
    }
    const budget = `${Number((100 * point.budget).toFixed(3))} pp`;
    document.getElementById("budget-value").textContent = budget;
    const overall = `accuracy ${percent(point.accuracy)} %, σ ${percent(point.sigma)} pp`;
    slider.setAttribute("aria-valuetext", `${budget}: ${overall}, worst class ${percent(point.worst)} %`);
    write("predicted-accuracy", point.accuracy, "%");
    write("predicted-sigma", point.sigma, "pp");
    write("predicted-worst", point.worst, "%");
    for (const row of every) paintClass(row, Number(row.row.dataset.class));
    grouped.forEach((row, i) => paint(row, point.groups[i] / SCALE, front.groups[i] / SCALE));
    if (front.groups) paintMost();
    document.getElementById("explored").textContent = point.command;
  };

  slider.addEventListener("input", show);
  for (const radio of document.querySelectorAll("input[name=objective]")) {
    radio.addEventListener("change", show);
  }
  searchBox("follow", lists.found.length, (found) => {
    followed = found;
    paintList("found", followed);
  });
  show();
}
