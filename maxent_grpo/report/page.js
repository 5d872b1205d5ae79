"use strict";
document.documentElement.classList.add("scripted");

// values under the pointer: the legend shows them while it rests on a chart
for (const chart of document.querySelectorAll("figure.chart[data-points]")) {
  const points = JSON.parse(chart.dataset.points);
  const svg = chart.querySelector("svg");
  const cross = chart.querySelector(".cross");
  const places = { left: 44, right: 410, width: 420 };
  const labels = [...chart.querySelectorAll(".legend li b")];
  const at = chart.querySelector(".legend .at");
  const last = labels.map((label) => label.textContent);
  const warp = points.log ? Math.log : (value) => value;
  const span = warp(points.high) - warp(points.low);

  const nearest = (line, x) => {
    let best = 0;
    line[0].forEach((value, index) => {
      if (Math.abs(warp(value) - x) < Math.abs(warp(line[0][best]) - x)) best = index;
    });
    return best;
  };
  const show = (event) => {
    const box = svg.getBoundingClientRect();
    const across = ((event.clientX - box.left) / box.width) * places.width;
    const share = Math.min(Math.max((across - places.left) / (places.right - places.left), 0), 1);
    const x = warp(points.low) + share * span;
    let step = null;
    points.lines.forEach((line, index) => {
      const found = nearest(line, x);
      labels[index].textContent = Number(line[1][found].toPrecision(4));
      if (step === null || Math.abs(warp(line[0][found]) - x) < Math.abs(warp(step) - x)) step = line[0][found];
    });
    const place = span > 0 ? places.left + ((warp(step) - warp(points.low)) / span) * (places.right - places.left) : 227;
    cross.setAttribute("transform", `translate(${place.toFixed(1)} 0)`);
    cross.style.visibility = "visible";
    at.textContent = `${points.name} ${Math.round(step)}`;
  };
  const hide = () => {
    labels.forEach((label, index) => { label.textContent = last[index]; });
    cross.style.visibility = "hidden";
    at.textContent = "";
  };
  svg.addEventListener("pointermove", show);
  svg.addEventListener("pointerdown", show);
  svg.addEventListener("pointerleave", hide);
}

// sample completions: one step at a time, and only the rewards asked for
const panels = [...document.querySelectorAll(".step-panel")];
const buttons = [...document.querySelectorAll(".steps button")];
const filter = document.querySelector(".filter select");
const empty = document.querySelector(".empty");
let chosen = buttons.length ? buttons[buttons.length - 1].dataset.step : null;

const showSamples = () => {
  const wanted = filter ? filter.value : "all";
  let shown = 0;
  for (const panel of panels) {
    panel.style.display = panel.dataset.step === chosen ? "" : "none";
    for (const group of panel.querySelectorAll(".group")) {
      let visible = 0;
      for (const item of group.querySelectorAll("li")) {
        const passes = wanted === "all" || item.dataset.rank === wanted;
        item.style.display = passes ? "" : "none";
        visible += passes ? 1 : 0;
      }
      group.style.display = visible ? "" : "none";
      if (panel.dataset.step === chosen) shown += visible;
    }
  }
  for (const button of buttons) button.setAttribute("aria-pressed", String(button.dataset.step === chosen));
  if (empty) empty.hidden = shown > 0;
};
for (const button of buttons) {
  button.addEventListener("click", () => { chosen = button.dataset.step; showSamples(); });
}
if (filter) filter.addEventListener("change", showSamples);
if (panels.length) showSamples();

for (const button of document.querySelectorAll(".copy")) {
  if (!navigator.clipboard) continue;
  button.hidden = false;
  button.addEventListener("click", async () => {
    await navigator.clipboard.writeText(button.parentElement.querySelector("code").textContent);
    button.textContent = "copied";
    setTimeout(() => { button.textContent = "copy"; }, 1500);
  });
}
