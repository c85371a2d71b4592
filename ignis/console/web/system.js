// The system: who leads, the broker, jobs, the figures of this process, and who holds a lock.

import { call, change, state } from "./api.js";
import { h, refill } from "./dom.js";
import { number } from "./format.js";
import { act, cell, facts, field, heading, nothing, stamp, table, told } from "./parts.js";

const LEADERS = [["scope"], ["leader"], ["epoch", "num"], ["since"], ["decided by"]];
const JOBS = [["job"], ["queue"], ["by"], ["begun"], ["state"], ["looked at", "num"], ["actions", "do"]];

export async function system(main) {
  const boxes = Object.fromEntries(["leaders", "broker", "jobs", "store", "pool"].map((name) => [name, h("div")]));
  const answer = h("div");
  const listing = async () => {
    const client_id = new FormData(looking).get("client_id");
    try {
      const { locks } = await call("GET", "/locks?" + new URLSearchParams(client_id ? { client_id } : {}));
      answer.replaceChildren(locks === null ? h("p", {}, "This store keeps no list of its locks: look one up by its name.")
        : !locks.length ? h("p", {}, "Nobody holds a lock of this application.")
        : table("Locks", [["lock"], ["level"], ["owner"], ["since"], ["until"], ["token", "num"]], locks.map((one) => h("tr", {},
          cell(one.lock, "text"), cell(one.level), cell(one.owner, "text"), cell(stamp(one.acquired_at_ms), "when"), cell(stamp(one.expires_at_ms), "when"), cell(String(one.token), "num")))));
    } catch (error) {
      answer.replaceChildren(h("p", { class: "bad" }, error.message));
    }
  };
  const looking = h("form", {
    class: "card",
    onsubmit: async (event) => {
      event.preventDefault();
      const given = Object.fromEntries([...new FormData(looking)].filter(([, value]) => value));
      try {
        const found = await call("GET", "/lock?" + new URLSearchParams(given));
        answer.replaceChildren(found.held
          ? facts(found.held)
          : h("p", {}, `Nobody holds ${found.lock}.`));
      } catch (error) {
        answer.replaceChildren(h("p", { class: "bad" }, error.message));
      }
    },
  },
    heading("A lock, by its name", "fleet"),
    h("div", { class: "row end" },
      field("Lock", "id", { required: true }),
      h("label", {}, "Level", h("select", { name: "level" }, h("option", { value: "dc" }, "one deployment"), h("option", { value: "xdc" }, "all deployments"))),
      field("Application", "client_id", { size: 12 }),
      h("button", { type: "submit" }, "Look up"), h("button", { type: "button", onclick: listing }, "List all")),
    answer);
  main.replaceChildren(h("div", { class: "heading" }, h("h1", {}, "System")), ...Object.values(boxes), looking);
  const stop = (one) => h("button", { onclick: () => act("stopped", () => change("DELETE", `/jobs/${one.job}`), again) }, "Stop");
  const card = (...content) => h("div", { class: "card" }, content);
  const again = async () => {
    const [led, store, work, behind] = await Promise.all(["/leaders", "/store", "/jobs", "/broker"].map((path) => call("GET", path)));
    refill(boxes.leaders, led, () => card(heading("Who leads", "fleet"), table("Leaders", LEADERS, led.leaders.map((one) => h("tr", {},
      cell(one.scope), cell(one.available ? one.leader || "nobody" : `unknown: ${one.trouble}`, "text"), cell(String(one.epoch), "num"), cell(stamp(one.since_ms), "when"), cell(one.kind))))));
    refill(boxes.broker, behind, () => [
      behind.broker ? card(heading("The broker", "broker"), facts(behind.broker)) : null,
      behind.refused ? h("p", { class: behind.refused.code === "permission_denied" ? "card dim" : "card bad" }, `The broker: ${behind.refused.message}`) : null,
      (behind.brokers ?? []).length ? card(heading("Brokers of the store", "fleet"), behind.brokers.map((one) => facts(one))) : null,
    ]);
    refill(boxes.jobs, [work, state.roles], () => card(heading("Jobs", "process"), work.jobs.length ? table("Jobs", JOBS, work.jobs.map((one) => h("tr", {},
      cell(one.kind), cell(one.queue, "text"), cell(one.by), cell(stamp(one.began_at_ms), "when"), h("td", { class: one.state === "failed" ? "bad text" : "text" }, one.error ? one.error.message : one.state + told(one)),
      cell(number(one.looked_at), "num"), h("td", { class: "do" }, one.state === "running" && state.roles.includes("operate") ? stop(one) : null))))
      : nothing("None yet. What is brought back, dropped or purged here is a job.")));
    refill(boxes.store, [store.store, store.console], () => card(heading("Figures of the store", "process"), facts({ ...store.store, ...store.console })));
    refill(boxes.pool, [store.ring_depth, store.pool], () => card(heading("Rings and slab pools", "process"), facts({ "messages in rings": store.ring_depth }),
      store.pool.length ? table("Slab pools", Object.keys(store.pool[0]).map((name) => [name.replaceAll("_", " "), "num"]),
        store.pool.map((one) => h("tr", {}, Object.values(one).map((value) => cell(number(value), "num")))), "tight") : nothing("No slab pool is in use.")));
  };
  await again();
  return again;
}
