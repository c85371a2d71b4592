// What waits in a queue, what waits for its time, and one message with all that is known of it.

import { at, call, change } from "./api.js";
import { ask, h, refill, say } from "./dom.js";
import { number } from "./format.js";
import { act, cell, due, figure, keyed, nothing, passing, preview, stamp, table, tag, wrong } from "./parts.js";

const published = (one) => stamp(one.enqueued_at_us ? one.enqueued_at_us / 1000 : null);

const attempts = (history) => h("ol", { class: "history" }, history.map((each) => h("li", {},
  h("div", { class: "tags" }, tag(each.reason, "bad"), stamp(each.at_ms),
    each.took_ms === null ? null : h("span", { class: "dim" }, `after ${number(each.took_ms)} ms`), h("span", { class: "dim" }, each.worker)),
  each.error ? h("p", { class: "error-text" }, each.error) : null,
  each.trace ? h("pre", { tabindex: "0" }, each.trace) : null)));

// `found`: a message as the API gives it, whole or in a list.
export function shown(found, more = []) {
  const history = found.history ?? [];
  ask(`Message ${found.id ?? ""}`, [
    h("dl", { class: "facts" }, more, figure("reason", found.reason ?? "–"), figure("failures", number(found.failures)),
      found.returns === undefined ? null : figure("returns", number(found.returns)), figure("published", published(found)),
      figure("key", found.key ?? found.key_hex ?? "–"), figure("place", `shard ${found.shard}, pointer ${found.pointer}`)),
    found.error ? [h("h3", {}, "Error"), h("pre", { tabindex: "0" }, found.error)] : null,
    h("h3", {}, `Body (${found.body_kind})`), h("pre", { tabindex: "0", "data-body": true }, found.body_text + (found.body_cut ? "\n[cut]" : "")),
    h("h3", {}, "Headers"), h("pre", { tabindex: "0" }, JSON.stringify(found.headers ?? {}, null, 2)),
    history.length ? [h("h3", {}, history.length === 1 ? "History: one attempt" : `History: the last ${history.length} attempts, oldest first`), attempts(history)] : null,
  ]);
}

export async function look(name, place, one) {
  try {
    shown(await call("GET", at(name, `${place}/${one.shard}/${one.pointer}`)));
  } catch (error) {
    say(error.message, true);
  }
}

export async function messages(content, name) {
  const list = async (from) => {
    const found = await call("GET", at(name, "/messages?" + new URLSearchParams({ limit: "50", after: from })));
    content.replaceChildren(h("div", { class: "card" },
      h("div", { class: "row tools" }, h("button", { onclick: () => list("") }, "Read again")),
      found.messages.length ? table("Waiting messages", [["published"], ["id"], ["key"], ["attempt", "num"], ["body"], ["actions", "do"]], found.messages.map((one) => h("tr", {},
        cell(published(one), "when first"), cell(one.id ?? "–", "text id"), keyed(one), cell(number(one.attempt), "num"), preview(one.body_text),
        h("td", { class: "do" }, h("button", { onclick: () => look(name, "/messages", one) }, "Look"))))) : nothing("No message waits."),
      found.next ? h("button", { onclick: () => list(found.next) }, "Next page") : ""));
  };
  await list("");
  return null;
}

export async function delayed(content, name, roles, again) {
  const box = h("div", { class: "card" });
  content.replaceChildren(box);
  const tool = (text, path, id) => h("button", {
    onclick: () => act(text, () => change("POST", at(name, path), { ids: [id] }), async () => { await list(); await again(); }),
  }, text);
  const line = (one) => h("tr", {},
    h("td", { class: "when first" }, due(one.due, "soon"), h("div", { class: "dim" }, stamp(one.due))),
    h("td", { class: "text plain" }, one.kind === "retry" ? tag(`retry, attempt ${one.attempt} next`, "warn") : tag(one.kind)),
    one.kind === "retry" ? wrong(one) : h("td", {}, "–"), keyed(one), preview(one.body_text),
    h("td", { class: "do" },
      h("button", { onclick: () => shown(one, [figure("kind", one.kind), figure("due", stamp(one.due)), figure("next attempt", number(one.attempt))]) }, "Look"),
      one.id && roles().includes("operate") ? [tool("Run now", "/delayed/run", one.id), tool("Cancel", "/delayed/cancel", one.id)] : null));
  const list = async () => {
    let found;
    try {
      found = await call("GET", at(name, "/delayed"));
    } catch (error) {
      refill(box, error.message, () => nothing(error.message));
      return;
    }
    const retries = found.messages.filter((one) => one.kind === "retry").length;
    refill(box, [found, roles()], () => (found.messages.length ? [
      h("p", { class: "dim" }, `${number(found.total)} ${found.total === 1 ? "waits for its" : "wait for their"} time; the next ones first.${retries ? ` Retries among the ${number(found.messages.length)} shown: ${number(retries)}.` : ""}`),
      table("Delayed messages", [["due"], ["what"], ["last error"], ["key"], ["body"], ["actions", "do"]], found.messages.map(line)),
    ] : nothing("No message waits for its time.")));
    passing(box);
  };
  await list();
  return list;
}
