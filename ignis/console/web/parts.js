// What the pages are made of: tables, figures, and what is done with a button.

import { h, number, say } from "./api.js";

export const table = (label, heads, rows) =>
  h("div", { class: "scroll" },
    h("table", { "aria-label": label },
      h("thead", {}, h("tr", {}, heads.map(([text, kind]) => h("th", { scope: "col", class: kind }, text)))),
      h("tbody", {}, rows)));

export const cell = (text, kind) => h("td", { class: kind }, text);

export const figure = (name, value, kind) => h("div", {}, h("dt", {}, name), h("dd", { class: kind }, value));

export function failed(main, error) {
  main.replaceChildren(h("div", { class: "card" }, h("h1", {}, "That did not work"), h("p", { class: "bad" }, error.message)));
}

export async function act(text, doing, then) {
  try {
    const found = await doing();
    if (found && found.state === "failed") throw new Error(found.error.message);
    say(found && found.state === "running" ? `${text}: still at it, see System` : text + told(found));
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
