// Lines over time, on a scale that begins at 0. A value is read out under the pointer, a finger, or with the arrow keys: what is
// over the lines is a slider, so a screen reader reads it too. A point without a value is a gap, and so is a time without points.

import { h, shape } from "./dom.js";
import { age, clock } from "./format.js";

const WIDTH = 300;
const HEIGHT = 90;
const GAP_S = 60;

// The next of 1, 2, 2.5 and 5 times a power of ten; of an age in its own unit, so that it is said without a rest.
function rounded(most, say) {
  const unit = say !== age || most <= 50 ? 1 : most <= 3000 ? 60 : most <= 72000 ? 3600 : 86400;
  const power = 10 ** Math.floor(Math.log10(most / unit));
  return [1, 2, 2.5, 5, 10].map((one) => one * power * unit).find((one) => one >= most * 0.9999);
}

// The runs of points that have a value and are not far apart, as places in the picture.
function runs(points, column, most) {
  const first = points.length ? points[0][0] : 0;
  const span = points.length ? Math.max(1, points.at(-1)[0] - first) : 1;
  const found = [];
  let before = null;
  for (const point of points) {
    const value = point[column];
    if (value === null || value === undefined) {
      before = null;
      continue;
    }
    if (before === null || point[0] - before > GAP_S) found.push([]);
    found.at(-1).push([((point[0] - first) / span) * WIDTH, HEIGHT - 1 - (value / most) * (HEIGHT - 2)]);
    before = point[0];
  }
  return found;
}

function paths(points, column, most, second) {
  const drawn = runs(points, column, most).map((run) => run.map(([x, y]) => `${x.toFixed(1)} ${y.toFixed(1)}`));
  const line = drawn.map((run) => `M${run[0]}h0` + run.map((one) => `L${one}`).join("")).join("");
  const under = drawn.map((run) => `M${run[0].split(" ")[0]} ${HEIGHT}` + run.map((one) => `L${one}`).join("") + `V${HEIGHT}Z`).join("");
  const kind = second ? " second" : "";
  return [...(second ? [] : [shape("path", { class: "chart-under", d: under })]), shape("path", { class: `chart-line${kind}`, d: line })];
}

const picture = (kind) => shape("svg", { class: kind, viewBox: `0 0 ${WIDTH} ${HEIGHT}`, preserveAspectRatio: "none", "aria-hidden": "true" });

const mostOf = (points, columns) => Math.max(0, ...points.flatMap((point) => columns.map((column) => point[column] ?? 0)));

// A small one for a row: only the course, nothing to read out.
export function spark(points, column) {
  const made = picture("spark");
  made.append(...paths(points, column, Math.max(1, mostOf(points, [column])), false));
  return made;
}

// `lines`: [column, name] of each, two at most; `say`: a value as text; `least`: the scale goes at least so far.
export function chart(title, lines, say, least = 1) {
  const columns = lines.map(([column]) => column);
  const svg = picture("chart");
  const most = h("span", { class: "axis most" });
  const mark = h("span", { class: "mark", hidden: true });
  const value = h("span", { class: "value" });
  const since = h("span", {});
  const until = h("span", {});
  let points = [];
  let chosen = null;

  const spoken = (point) => lines.map(([column, name]) => (lines.length > 1 ? `${name} ${say(point[column])}` : say(point[column]))).join(", ");
  const show = () => {
    const last = points.length - 1;
    if (last < 0) return;
    const found = chosen === null ? last : points.reduce((best, point, index) => (Math.abs(point[0] - chosen) < Math.abs(points[best][0] - chosen) ? index : best), 0);
    const point = points[found];
    const span = Math.max(1, points[last][0] - points[0][0]);
    slider.value = String(found);
    slider.setAttribute("aria-valuetext", `${clock(point[0])}: ${spoken(point)}`);
    value.replaceChildren(...(chosen === null ? [] : [h("span", { class: "dim" }, clock(point[0]))]),
      ...lines.map(([column, name], index) => h("b", { class: index ? "second" : "" }, lines.length > 1 ? `${name} ${say(point[column])}` : say(point[column]))));
    mark.hidden = chosen === null;
    mark.style.left = `${((point[0] - points[0][0]) / span) * 100}%`;
  };
  const pointed = (event) => {
    if (!points.length) return;
    const box = slider.getBoundingClientRect();
    const part = Math.min(1, Math.max(0, (event.clientX - box.left) / box.width));
    chosen = points[0][0] + part * (points.at(-1)[0] - points[0][0]);
    show();
  };
  const latest = () => { chosen = null; show(); };
  let held = false;
  const slider = h("input", {
    type: "range", min: 0, step: 1, "aria-label": `${title} over time`,
    onpointerdown: (event) => { held = true; pointed(event); },
    onpointermove: pointed,
    onpointerup: () => { held = false; },
    onpointercancel: () => { held = false; },
    onpointerleave: (event) => { if (event.pointerType === "mouse") latest(); },
    onblur: latest,
    // A pointer goes by time, as the picture does; keys go from point to point.
    oninput: () => { if (!held) chosen = points[Number(slider.value)]?.[0] ?? null; show(); },
  });
  const element = h("figure", { class: "plot" },
    h("figcaption", {}, h("span", {}, title), value),
    h("div", { class: "frame" }, svg, most, h("span", { class: "axis zero" }, "0"), mark, slider),
    h("div", { class: "ends" }, since, until));

  return {
    element,
    draw(found) {
      points = found;
      const top = rounded(Math.max(least, mostOf(points, columns)), say);
      most.textContent = say(top).replace(/\.0\b/, "");
      svg.replaceChildren(
        ...[0.5, HEIGHT / 2, HEIGHT - 0.5].map((y) => shape("line", { class: "chart-base", x1: 0, x2: WIDTH, y1: y, y2: y })),
        ...columns.flatMap((column, index) => paths(points, column, top, index > 0)));
      slider.max = String(Math.max(0, points.length - 1));
      slider.disabled = !points.length;
      since.textContent = points.length > 1 ? `${age(points.at(-1)[0] - points[0][0])} ago` : "";
      until.textContent = "now";
      show();
    },
  };
}
