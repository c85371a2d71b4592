// One queue: its figures and charts, what may be done to it, and a part of it that is chosen by a tab.

import { at, call, change, pageOf } from "./api.js";
import { chart } from "./charts.js";
import { h, refill } from "./dom.js";
import { publish, purge, scale } from "./edit.js";
import { age, number, rate } from "./format.js";
import { delayed, messages } from "./messages.js";
import { act, figure, scope, tag } from "./parts.js";
import { sideline } from "./sideline.js";
import { shards, workers } from "./workers.js";

const TABS = [["sideline", "Sideline", sideline], ["messages", "Waiting", messages], ["delayed", "Delayed", delayed],
  ["workers", "Workers", workers], ["shards", "Shards", shards]];

export async function queue(main, name, tab = "sideline") {
  const tags = h("span", { class: "tags" });
  const actions = h("div", { class: "row actions" });
  const figures = h("dl", { class: "tiles" });
  const content = h("div");
  const chosen = TABS.find(([one]) => one === tab) ?? TABS[0];
  const counts = Object.fromEntries(TABS.map(([one]) => [one, h("span", { class: "count" })]));
  const charts = [
    chart("pending", [[1, "pending"]], number), chart("in flight", [[2, "in flight"]], number),
    chart("rates", [[4, "in"], [5, "out"]], rate),
    chart("oldest", [[6, "oldest"]], age), chart("latency", [[7, "latency"]], age, 0.001), chart("sideline", [[3, "sideline"]], number),
  ];
  main.replaceChildren(
    h("div", { class: "heading" }, h("h1", {}, name), tags, actions),
    figures,
    h("section", { class: "card charts", "aria-label": "Charts" }, charts.map((one) => one.element)),
    h("nav", { class: "tabs", "aria-label": "About the queue" },
      TABS.map(([one, text]) => h("a", { href: pageOf(name, one), "aria-current": one === chosen[0] ? "true" : null }, text, counts[one]))),
    content);

  let roles = [];
  let part = null;
  const again = async () => {
    const [all, now] = await Promise.all([call("GET", "/overview"), call("GET", at(name))]);
    roles = now.roles;
    const points = all.history[name] ?? [];
    const row = all.queues.find((one) => one.queue === name) ?? {};
    const { state, codec, durability, shards: cut, concurrency } = now.settings;
    refill(tags, now.settings, () => [
      state === "active" ? null : tag(state, state === "paused" ? "warn" : ""),
      tag(codec), tag(durability), tag(`${number(cut)} ${cut === 1 ? "shard" : "shards"}`),
      concurrency ? tag(`${number(concurrency)} ${concurrency === 1 ? "consumer" : "consumers"} a process`) : null, scope("fleet"),
    ]);
    const shown = [now.pending, now.in_flight, now.sideline, now.delayed, now.oldest_age_s, row.latency_s, row.published_rate, row.finished_rate];
    refill(figures, shown, () => [
      figure("pending", number(now.pending)), figure("in flight", number(now.in_flight)),
      figure("sideline", number(now.sideline), now.sideline ? "bad" : ""), figure("delayed", number(now.delayed)),
      figure("oldest", age(now.oldest_age_s)), figure("latency", age(row.latency_s)),
      figure("in", rate(row.published_rate)), figure("out", rate(row.finished_rate)),
    ]);
    for (const one of charts) one.draw(points);
    for (const [one, count] of [["sideline", now.sideline], ["messages", now.pending], ["delayed", now.delayed]]) {
      counts[one].textContent = count ? number(count) : "";
    }
    refill(actions, [roles, now.paused], () => buttons(name, roles, now.paused, again));
    if (part) await part(now);
  };
  await again();
  part = await chosen[2](content, name, () => roles, again);
  return again;
}

function buttons(name, roles, paused, again) {
  const made = [];
  if (roles.includes("publish")) made.push(h("button", { class: "main", onclick: () => publish(name, again) }, "Publish"));
  if (roles.includes("operate")) {
    const what = paused ? "resume" : "pause";
    made.push(h("button", { onclick: () => act(`queue ${what}d`, () => change("POST", at(name, `/${what}`)), again) }, paused ? "Resume" : "Pause"));
  }
  if (roles.includes("admin")) {
    made.push(h("button", { onclick: () => scale(name, again) }, "Scale"));
    made.push(h("button", { class: "danger", onclick: () => purge(name, again) }, "Purge"));
  }
  if (!made.length) made.push(h("span", { class: "dim" }, "You may look at this queue, and not change it."));
  return made;
}
