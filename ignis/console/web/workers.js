// Who works on a queue and at what, and how its shards are filled.

import { at, call, change } from "./api.js";
import { ask, h, refill } from "./dom.js";
import { age, number } from "./format.js";
import { bar, carry, cell, heading, keyed, nothing, table, tag } from "./parts.js";

const HEADS = [["message"], ["key"], ["attempt", "num"], ["for", "num"], ["progress"]];
const DOES = [...HEADS, ["actions", "do"]];

// Of a worker the messages that it has had longest are known, and the progress of more.
function messagesOf(worker, progress) {
  const known = new Set(worker.messages.map((one) => one.id));
  return [...worker.messages, ...progress.filter((one) => one.owner === worker.owner && !known.has(one.id))];
}

function cancel(name, id, again) {
  ask("Cancel a message", [
    h("p", {}, "Its handler is told to end. The message then goes to the sideline with the reason cancelled. A handler that does not look whether it was cancelled goes on to its end."),
    h("p", { class: "id" }, id),
  ], "Cancel the message", "danger", async () => {
    await carry(`${id}: told to end`, () => change("POST", at(name, "/cancel"), { id }));
  }, again);
}

const working = (worker, progress, tool) => h("section", { class: "worker" },
  h("div", { class: "heading" }, h("h3", {}, worker.owner), worker.dead ? tag("dead", "bad") : null, worker.magazine.endsWith("_SIDELINE") ? tag("of the sideline") : null,
    h("span", { class: "dim" }, `${number(worker.in_flight)} in flight, the longest for ${age(worker.oldest_claim_s)}`)),
  table(`What ${worker.owner} is at in ${worker.magazine}`, tool ? DOES : HEADS, messagesOf(worker, progress).map((one) => h("tr", {},
    cell(one.id ?? "–", "text id"), keyed(one), cell(number(one.attempt), "num"), cell(age(one.claimed_s), "num"),
    h("td", { class: "text" }, one.fraction === undefined ? h("span", { class: "dim" }, "not told") : bar(one.fraction, one.text, `progress of ${one.id}`)),
    tool ? h("td", { class: "do" }, one.id ? tool(one.id) : null) : null))),
  worker.in_flight > worker.messages.length ? h("p", { class: "dim" }, `and ${number(worker.in_flight - worker.messages.length)} claimed later`) : null);

export async function workers(content, name, roles) {
  const box = h("div", { class: "card" });
  content.replaceChildren(box);
  const again = async () => {
    const found = await call("GET", at(name, "/workers"));
    const may = roles().includes("operate");
    const tool = (id) => h("button", { class: "danger", "aria-label": `Cancel ${id}`, onclick: () => cancel(name, id, again) }, "Cancel");
    refill(box, [found, may], () => [
      heading("Who works, and at what", "fleet"),
      found.workers.length ? found.workers.map((one) => working(one, found.progress, may && !one.magazine.endsWith("_SIDELINE") ? tool : null)) : nothing("Nobody has claimed anything. Who is idle holds nothing."),
    ]);
  };
  await again();
  return again;
}

const SHARDS = [["shard", "num"], ["pending", "num"], ["in flight", "num"], ["expired", "num"], ["load pointer", "num"], ["fire pointer", "num"]];

export async function shards(content, name) {
  const box = h("div", { class: "stacked" });
  content.replaceChildren(box);
  const rows = (some) => some.map((one) => h("tr", {}, cell(String(one.shard), "num"), cell(number(one.pending), "num"), cell(number(one.in_flight), "num"),
    cell(number(one.expired), "num"), cell(String(one.load_pointer), "num"), cell(String(one.fire_pointer), "num")));
  const part = (text, label, some) => {
    const used = some.filter((one) => one.load_pointer);
    const empty = some.length - used.length;
    return h("div", { class: "card" }, heading(text, "fleet"),
      used.length ? table(label, SHARDS, rows(used), "tight") : null,
      empty ? h("p", { class: "dim" }, `${number(empty)} of ${number(some.length)} shards never had a message.`) : null,
      some.length ? null : nothing("No shards are declared."));
  };
  const again = async () => {
    const found = await call("GET", at(name, "/shards"));
    refill(box, found, () => [part("Queue", "Shards of the queue", found.shards), part("Sideline", "Shards of the sideline", found.sideline_shards)]);
  };
  await again();
  return again;
}
