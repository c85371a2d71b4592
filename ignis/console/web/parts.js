// What the pages are made of: tables, figures, tags, fields, and what is done with a button.

import { moment, number, size, until, utc } from "./format.js";
import { h, say } from "./dom.js";

// On a phone each row is a block of its own, where each value stands beside its column's name.
export function table(label, heads, rows, kind = "stack") {
  for (const row of rows) [...row.children].forEach((one, place) => { if (heads[place]) one.dataset.label = heads[place][0]; });
  return h("div", { class: "scroll" },
    h("table", { "aria-label": label, class: kind },
      h("thead", {}, h("tr", {}, heads.map(([text, kind]) => h("th", { scope: "col", class: kind }, text)))),
      h("tbody", {}, rows)));
}

export const cell = (text, kind) => h("td", { class: kind }, text);

export const preview = (text) => h("td", { class: "text plain" }, h("div", { class: "preview" }, text));

export const keyed = (one) => h("td", {}, h("div", { class: "preview key", title: one.key ?? "" }, one.key ?? one.key_hex ?? "–"));

// What went wrong: the reason, and the beginning of the error.
export const wrong = (one) => h("td", { class: "text plain" }, tag(one.reason ?? "unknown", "bad"), one.error ? h("div", { class: "preview wide", title: one.error }, one.error) : null);

export const figure = (name, value, kind) => h("div", {}, h("dt", {}, name), h("dd", { class: kind }, value));

// A time by the clock of who looks; its title is the same in UTC.
export const stamp = (value) => (value === null || value === undefined ? moment(value)
  : h("time", { datetime: new Date(value).toISOString(), title: utc(value) }, moment(value)));

const TIMES = { s: 1000, ms: 1, us: 0.001 };

// A figure as its name says it is: a time, a size with the exact number as its title, an id or a port as it stands.
function factOf(name, value) {
  const [, what, unit] = /^(.*?)_(s|ms|us)$/.exec(name) ?? [null, name, null];
  if (typeof value !== "number") {
    return [name, value === null ? "–" : Array.isArray(value) ? value.join(", ") : typeof value === "object" ? JSON.stringify(value) : String(value)];
  }
  if (unit && /(^|_)(at|since|until|started)$/.test(what)) return [what.replace(/_at$/, ""), stamp(value * TIMES[unit])];
  if (/(^|_)bytes(_|$)/.test(name)) return [name.replace(/_?bytes_?/, " "), h("span", { title: `${number(value)} bytes` }, size(value))];
  return [name, /(^|_)(pid|port|id|token|epoch|generation|pointer|version)(_|$)/.test(name) ? String(value) : number(value)];
}

export const facts = (found) => h("dl", { class: "facts list" },
  Object.entries(found).map(([name, value]) => { const [text, shown] = factOf(name, value); return figure(text.trim().replaceAll("_", " "), shown); }));

export const tag = (text, kind = "") => h("span", { class: `tag ${kind}` }, text);

const SCOPES = { fleet: "whole fleet", process: "this process", broker: "the broker's process" };

// Whose the figures of a part are.
export const scope = (whose) => tag(SCOPES[whose], "scope");

export const heading = (text, whose) => h("div", { class: "heading" }, h("h2", {}, text), whose ? scope(whose) : null);

export const field = (label, name, more = {}) => h("label", {}, label, h("input", { name, autocomplete: "off", ...more }));

export const area = (label, name, value = "", more = {}) => h("label", {}, label, h("textarea", { name, value, spellcheck: "false", ...more }));

export const check = (label, name) => h("label", { class: "line" }, h("input", { type: "checkbox", name }), label);

export const nothing = (...text) => h("p", { class: "nothing" }, ...text);

// A time to come, which `passing` keeps right.
export const due = (value, kind = "") => h("span", { class: kind, "data-due": value }, until(value));

export function passing(box) {
  for (const one of box.querySelectorAll("[data-due]")) one.textContent = until(isNaN(one.dataset.due) ? one.dataset.due : Number(one.dataset.due));
}

export function bar(fraction, text, label) {
  const percent = `${Math.round(fraction * 100)} %`;
  return h("div", { class: "progress" },
    h("progress", { max: 1, value: Math.min(1, Math.max(0, fraction)), "aria-label": label }, percent),
    h("span", {}, text ? `${percent} ${text}` : percent));
}

export function failed(main, error, again) {
  main.replaceChildren(h("div", { class: "card narrow-text" }, h("h1", {}, "That did not work"), h("p", { class: "bad", role: "alert" }, error.message),
    h("div", { class: "row" }, h("button", { class: "main", onclick: again }, "Try again"))));
}

// Does it and says what came of it. Raises what went wrong: for a dialog, which says it.
export async function carry(text, doing) {
  const found = await doing();
  if (found && found.state === "failed") throw new Error(found.error.message);
  say(found && found.state === "running" ? `${text}: still at it, see System` : text + told(found));
}

export async function act(text, doing, then) {
  try {
    await carry(text, doing);
    if (then) await then();
  } catch (error) {
    if (error.status === 401) return location.reload();
    say(error.message, true);
  }
}

export function told(found) {
  if (!found || !found.result) return "";
  return ": " + Object.entries(found.result).filter(([, value]) => typeof value === "number").map(([name, value]) => `${number(value)} ${name.replace("_", " ")}`).join(", ");
}
