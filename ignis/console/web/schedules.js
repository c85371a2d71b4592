// Schedules: their times, the next and the last tick, and what may be done to them.

import { call, change, pageOf, state } from "./api.js";
import { h, refill } from "./dom.js";
import { schedule, unschedule } from "./edit.js";
import { age, number } from "./format.js";
import { act, cell, due, nothing, passing, scope, stamp, table, tag } from "./parts.js";

const HEADS = [["schedule"], ["queue"], ["times"], ["next"], ["last"], ["lag", "num"], ["fired", "num"], ["missed", "num"], ["actions", "do"]];

export async function schedules(main) {
  const list = h("div");
  const manages = state.roles.includes("admin");
  const tool = (one, text, path) => h("button", {
    onclick: () => act(`${one.schedule}: ${text.toLowerCase()}`, () => change("POST", `/schedules/${encodeURIComponent(one.schedule)}/${path}`, { queue: one.queue }), again),
  }, text);
  const line = (one) => h("tr", {},
    h("td", { class: "name" }, one.schedule, " ", one.paused ? tag("paused", "warn") : null),
    h("td", {}, h("a", { href: pageOf(one.queue) }, one.queue)),
    cell(one.cron ? `${one.cron} ${one.timezone}` : `every ${age(one.every_s)}`),
    h("td", { class: "when" }, one.paused || !one.next_at ? "–" : [due(one.next_at, "soon"), h("div", { class: "dim" }, stamp(one.next_at))]),
    cell(stamp(one.last_at), "when"), cell(age(one.last_lag_s), "num"), cell(number(one.fired), "num"), cell(number(one.missed_ticks), "num"),
    h("td", { class: "do" },
      one.roles.includes("operate") ? [tool(one, "Run now", "run"), one.paused ? tool(one, "Resume", "resume") : tool(one, "Pause", "pause")] : null,
      one.roles.includes("admin") ? [h("button", { onclick: () => schedule(one, again) }, "Change"), h("button", { class: "danger", onclick: () => unschedule(one, again) }, "Remove")] : null));
  const again = async () => {
    const found = await call("GET", "/schedules");
    refill(list, found, () => h("div", { class: "card" }, found.schedules.length ? table("Schedules", HEADS, found.schedules.map(line))
      : nothing("No schedule is stored.", manages ? " Add one, or type in a terminal: " : "", manages ? h("code", {}, "ignis schedules add --help") : "")));
    passing(list);
  };
  main.replaceChildren(h("div", { class: "heading" }, h("h1", {}, "Schedules"), scope("fleet"),
    manages ? h("div", { class: "row actions" }, h("button", { class: "main", onclick: () => schedule(null, again) }, "Add a schedule")) : ""), list);
  await again();
  return again;
}
