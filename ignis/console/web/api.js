// Talks to the HTTP API, and makes elements. Text is always set as text: nothing that a message holds is ever read as markup.

export const state = { user: null, csrf: null, roles: [], login: "none" };

export class ApiError extends Error {
  constructor(status, error) {
    super(error.message);
    this.status = status;
    this.code = error.code;
  }
}

export async function call(method, path, body) {
  const headers = { Accept: "application/json" };
  if (method !== "GET") {
    headers["Content-Type"] = "application/json";
    if (state.csrf) headers["X-CSRF-Token"] = state.csrf;
  }
  let answer;
  try {
    answer = await fetch("ignis/v1" + path, {
      method, headers, credentials: "same-origin", cache: "no-store",
      body: method === "GET" ? undefined : JSON.stringify(body ?? {}),
    });
  } catch {
    throw new ApiError(0, { code: "unreachable", message: "the console does not answer" });
  }
  let found;
  try {
    found = await answer.json();
  } catch {
    found = {};
  }
  if (!answer.ok) throw new ApiError(answer.status, found.error ?? { code: "unknown", message: `status ${answer.status}` });
  return found;
}

export async function whoami() {
  Object.assign(state, await call("GET", "/session"));
  return state;
}

export async function begin(user, password, token) {
  const found = await call("POST", "/session", { user, password, token });
  state.csrf = found.csrf;
  return whoami();
}

// Where nobody logs in a session is still what changes are bound to: it is begun with the first of them.
export async function change(method, path, body) {
  if (!state.csrf && state.login === "none") await begin("", "", "");
  return call(method, path, body);
}

export const at = (queue, rest = "") => `/queues/${encodeURIComponent(queue)}${rest}`;

export function h(tag, attributes = {}, ...children) {
  const made = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (value === null || value === undefined || value === false) continue;
    if (name.startsWith("on")) made.addEventListener(name.slice(2), value);
    else if (name === "value") made.value = value;
    else made.setAttribute(name, value === true ? "" : value);
  }
  made.append(...children.flat(Infinity).filter((one) => one !== null && one !== undefined && one !== false));
  return made;
}

export function say(text, error = false) {
  const line = h("div", { class: error ? "error" : "" }, text);
  const said = document.getElementById("said");
  said.append(line);
  while (said.children.length > 4) said.firstChild.remove();
  setTimeout(() => line.remove(), error ? 12000 : 6000);
}

export const number = (value) => (value === null || value === undefined ? "–" : Number(value).toLocaleString("en"));

export function age(seconds) {
  if (seconds === null || seconds === undefined) return "–";
  const steps = [[86400, "d"], [3600, "h"], [60, "min"]];
  for (const [size, unit] of steps) if (seconds >= size) return `${(seconds / size).toFixed(1)} ${unit}`;
  return `${seconds.toFixed(seconds < 10 ? 1 : 0)} s`;
}

export const rate = (value) => (value === null || value === undefined ? "–" : `${value >= 100 ? Math.round(value).toLocaleString("en") : value.toFixed(1)}/s`);

// By the clock of who looks, and sortable.
export function moment(value) {
  if (value === null || value === undefined) return "–";
  const at = new Date(value);
  const two = (part) => String(part).padStart(2, "0");
  return `${at.getFullYear()}-${two(at.getMonth() + 1)}-${two(at.getDate())} ${two(at.getHours())}:${two(at.getMinutes())}:${two(at.getSeconds())}`;
}

const SVG = "http://www.w3.org/2000/svg";

function shape(tag, attributes) {
  const made = document.createElementNS(SVG, tag);
  for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
  return made;
}

// Lines over time, all by one scale that begins at 0. A point without a value is a gap.
export function chart(points, columns, kind = "chart") {
  const width = 300;
  const height = 90;
  const made = shape("svg", { class: kind, viewBox: `0 0 ${width} ${height}`, preserveAspectRatio: "none", role: "img" });
  const most = Math.max(1, ...points.flatMap((point) => columns.map((column) => point[column] ?? 0)));
  const first = points.length ? points[0][0] : 0;
  const span = points.length ? Math.max(1, points[points.length - 1][0] - first) : 1;
  if (kind === "chart") made.append(shape("line", { class: "chart-base", x1: 0, x2: width, y1: height - 1, y2: height - 1 }));
  columns.forEach((column, index) => {
    let path = "";
    let pen = false;
    for (const point of points) {
      const value = point[column];
      if (value === null || value === undefined) {
        pen = false;
        continue;
      }
      const x = ((point[0] - first) / span) * width;
      const y = height - 2 - (value / most) * (height - 6);
      path += `${pen ? "L" : "M"}${x.toFixed(1)} ${y.toFixed(1)}`;
      pen = true;
    }
    made.append(shape("path", { class: index ? "chart-line second" : "chart-line", d: path }));
  });
  made.setAttribute("aria-label", `${points.length} points, at most ${number(Math.round(most))}`);
  return made;
}

export function ask(title, content, label, kind, done) {
  const dialog = document.getElementById("ask");
  const form = h("form", {
    onsubmit: async (event) => {
      event.preventDefault();
      const button = event.submitter;
      if (button) button.disabled = true;
      try {
        if ((await done(new FormData(form))) !== false) dialog.close();
      } catch (error) {
        say(error.message, true);
      } finally {
        if (button) button.disabled = false;
      }
    },
  },
    h("h2", { id: "ask-title" }, title),
    content,
    h("div", { class: "row" },
      h("button", { class: kind, type: "submit" }, label),
      h("button", { type: "button", onclick: () => dialog.close() }, "Close")));
  dialog.replaceChildren(form);
  dialog.showModal();
}
