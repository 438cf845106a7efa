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

// The explorer shows one point of the front at a time.
const held = document.getElementById("front-data");
if (held) {
  const front = JSON.parse(held.textContent);
  const slider = document.getElementById("budget");
  const rows = [...document.querySelectorAll("#bars li")].map((row) => ({
    j: Number(row.dataset.class),
    fill: row.querySelector(".fill"),
    band: row.querySelector(".band"),
    tick: row.querySelector(".tick"),
    value: row.querySelector(".value"),
    reach: row.querySelector("small"),
  }));
  const percent = (value) => (100 * value).toFixed(1);
  const signed = (value) => (value < -0.0005 ? "−" : value > 0.0005 ? "+" : "±") + Math.abs(100 * value).toFixed(1);
  const span = (line, from, to) => {
    line.setAttribute("x1", `${100 * from}%`);
    line.setAttribute("x2", `${100 * to}%`);
  };
  const write = (id, value, unit) => {
    document.getElementById(id).textContent = `${percent(value)} ${unit}`;
  };

  const show = () => {
    const objective = document.querySelector("input[name=objective]:checked").value;
    const points = front.objectives[objective];
    slider.max = points.length - 1;
    const place = Math.min(slider.value, points.length - 1);
    const point = points[place];
    for (const group of document.querySelectorAll("[data-front]")) {
      const shown = group.dataset.front === objective;
      [...group.children].forEach((mark, i) => mark.classList.toggle("here", shown && i === place));
    }
    const budget = `${Number((100 * point.budget).toFixed(3))} pp`;
    document.getElementById("budget-value").textContent = budget;
    const overall = `accuracy ${percent(point.accuracy)} %, σ ${percent(point.sigma)} pp`;
    slider.setAttribute("aria-valuetext", `${budget}: ${overall}, worst class ${percent(point.worst)} %`);
    write("predicted-accuracy", point.accuracy, "%");
    write("predicted-sigma", point.sigma, "pp");
    write("predicted-worst", point.worst, "%");
    for (const row of rows) {
      const value = point.per_class[row.j];
      row.fill.setAttribute("width", `${100 * value}%`);
      span(row.band, point.low[row.j], point.high[row.j]);
      span(row.tick, front.base[row.j], front.base[row.j]);
      row.value.textContent = `${percent(value)} % (${signed(value - front.base[row.j])})`;
      row.reach.textContent = `[${(100 * point.low[row.j]).toFixed(0)}, ${(100 * point.high[row.j]).toFixed(0)}]`;
    }
    document.getElementById("explored").textContent = point.command;
  };

  slider.addEventListener("input", show);
  for (const radio of document.querySelectorAll("input[name=objective]")) {
    radio.addEventListener("change", show);
  }
  show();
}
