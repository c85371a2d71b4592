// The pages of schedules and of the system: who leads, which jobs run, and the figures of this process.

import { age, call, change, h, moment, number, state } from "./api.js";
import { schedule, unschedule } from "./edit.js";
import { act, cell, figure, table, told } from "./parts.js";

export async function schedules(main) {
  const again = async () => {
    const found = await call("GET", "/schedules");
    const tool = (one, text, path) => h("button", {
      onclick: () => act(`${one.schedule}: ${text.toLowerCase()}`, () => change("POST", `/schedules/${encodeURIComponent(one.schedule)}/${path}`), again),
    }, text);
    const manages = state.roles.includes("admin");
    main.replaceChildren(...[h("h1", {}, "Schedules"),
      manages ? h("div", { class: "row" }, h("button", { class: "main", onclick: () => schedule(null, again) }, "Add a schedule")) : null,
      found.schedules.length
      ? h("div", { class: "card" }, table("Schedules", [["schedule"], ["queue"], ["times"], ["next"], ["last", "wide"], ["fired", "num wide"], ["do"]], found.schedules.map((one) => h("tr", {},
        cell(one.schedule), h("td", {}, h("a", { href: `#/queue/${encodeURIComponent(one.queue)}` }, one.queue)),
        cell(one.cron ? `${one.cron} ${one.timezone}` : `every ${age(one.every_s)}`), cell(one.paused ? "paused" : moment(one.next_at)),
        cell(moment(one.last_at), "wide"), cell(number(one.fired), "num wide"),
        h("td", { class: "row" }, one.roles.includes("operate") ? [tool(one, "Run now", "run"), one.paused ? tool(one, "Resume", "resume") : tool(one, "Pause", "pause")] : null,
          one.roles.includes("admin") ? [h("button", { onclick: () => schedule(one, again) }, "Change"), h("button", { class: "danger", onclick: () => unschedule(one, again) }, "Remove")] : null)))))
      : h("p", { class: "card" }, "No schedule is stored.")].filter(Boolean));
  };
  await again();
  return null;
}

const facts = (found) => h("dl", { class: "figures" },
  Object.entries(found).map(([name, value]) => figure(name.replaceAll("_", " "), typeof value === "number" ? number(value) : String(value))));

export async function system(main) {
  const parts = h("div");
  const answer = h("div");
  const listing = async () => {
    const client_id = new FormData(looking).get("client_id");
    try {
      const { locks } = await call("GET", "/locks?" + new URLSearchParams(client_id ? { client_id } : {}));
      answer.replaceChildren(locks === null ? h("p", {}, "This store keeps no list of its locks: look one up by its name.")
        : !locks.length ? h("p", {}, "Nobody holds a lock of this application.")
        : table("Locks", [["lock"], ["level"], ["owner"], ["since"], ["until"], ["token", "num"]], locks.map((one) => h("tr", {},
          cell(one.lock), cell(one.level), cell(one.owner), cell(moment(one.acquired_at_ms)), cell(moment(one.expires_at_ms)), cell(String(one.token), "num")))));
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
          ? facts({ ...found.held, acquired_at_ms: moment(found.held.acquired_at_ms), expires_at_ms: moment(found.held.expires_at_ms) })
          : h("p", {}, `Nobody holds ${found.lock}.`));
      } catch (error) {
        answer.replaceChildren(h("p", { class: "bad" }, error.message));
      }
    },
  },
    h("h2", {}, "A lock, by its name (fleet)"),
    h("div", { class: "row" },
      h("label", {}, "Lock", h("input", { name: "id", required: true })),
      h("label", {}, "Level", h("select", { name: "level" }, h("option", { value: "dc" }, "one deployment"), h("option", { value: "xdc" }, "all deployments"))),
      h("label", {}, "Application", h("input", { name: "client_id", size: 12 })),
      h("button", { type: "submit" }, "Look up"), h("button", { type: "button", onclick: listing }, "List all")),
    answer);
  main.replaceChildren(h("h1", {}, "System"), parts, looking);
  const again = async () => {
    const [led, store, work, behind] = await Promise.all(["/leaders", "/store", "/jobs", "/broker"].map((path) => call("GET", path)));
    parts.replaceChildren(...[
      h("div", { class: "card" }, h("h2", {}, "Who leads (fleet)"), table("Leaders", [["scope"], ["leader"], ["epoch", "num"], ["since"], ["decided by"]], led.leaders.map((one) => h("tr", {},
        cell(one.scope), cell(one.available ? one.leader || "nobody" : `unknown: ${one.trouble}`), cell(String(one.epoch), "num"), cell(moment(one.since_ms)), cell(one.kind))))),
      behind.broker ? h("div", { class: "card" }, h("h2", {}, "The broker (its process)"), facts({ ...behind.broker, started_at_s: moment(behind.broker.started_at_s * 1000) })) : null,
      behind.refused ? h("p", { class: "card bad" }, `The broker: ${behind.refused.message}`) : null,
      (behind.brokers ?? []).length ? h("div", { class: "card" }, h("h2", {}, "Brokers of the store (fleet)"), behind.brokers.map(facts)) : null,
      h("div", { class: "card" }, h("h2", {}, "Jobs (this process)"), work.jobs.length ? table("Jobs", [["job"], ["queue"], ["by"], ["state"], ["looked at", "num"], ["do"]], work.jobs.map((one) => h("tr", {},
        cell(one.kind), cell(one.queue), cell(one.by), h("td", { class: one.state === "failed" ? "bad" : "" }, one.error ? one.error.message : one.state + told(one)), cell(number(one.looked_at), "num"),
        h("td", {}, one.state === "running" && state.roles.includes("operate") ? h("button", { onclick: () => act("stopped", () => change("DELETE", `/jobs/${one.job}`), again) }, "Stop") : null)))) : h("p", { class: "dim" }, "None yet.")),
      h("div", { class: "card" }, h("h2", {}, "Figures (this process)"), facts({ ...store.store, ...store.console })),
      h("div", { class: "card" }, h("h2", {}, "Buffers (this process)"), facts({ ring_depth: store.ring_depth }),
        store.pool.length ? table("Slab pools", Object.keys(store.pool[0]).map((name) => [name.replaceAll("_", " "), "num"]),
          store.pool.map((one) => h("tr", {}, Object.values(one).map((value) => cell(number(value), "num"))))) : h("p", { class: "dim" }, "No slab pool is in use.")),
    ].filter(Boolean));
  };
  await again();
  return again;
}
