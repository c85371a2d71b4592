// The sideline: searched, looked at, and brought back or dropped: one, some, or all that the list stands for.

import { at, call, change } from "./api.js";
import { ask, h, say } from "./dom.js";
import { confirmation, edit } from "./edit.js";
import { number, secondsOf } from "./format.js";
import { look } from "./messages.js";
import { carry, cell, check, due, field, keyed, nothing, passing, preview, stamp, table, wrong } from "./parts.js";

const HEADS = [["choose"], ["failed"], ["error"], ["key"], ["failures", "num"], ["comes back"], ["body"], ["actions", "do"]];

// What the list is asked for, and the same conditions as the jobs take them.
function whereOf(query) {
  const found = {};
  if (query.reason) found.reasons = [query.reason];
  if (query.id) found.ids = [query.id];
  for (const name of ["key", "error", "text"]) if (query[name]) found[name] = query[name];
  if (query.older_than_s) found.older_than_s = Number(query.older_than_s);
  if (query.header) {
    const [header, ...value] = query.header.split("=");
    found.headers = { [header]: value.join("=") };
  }
  return found;
}

export async function sideline(content, name, roles, again) {
  const filter = h("form", { class: "filter", id: "filter", onsubmit: (event) => { event.preventDefault(); search(); } },
    field("Reason", "reason"), field("Error contains", "error"), field("Body contains", "text"), field("Key", "key"),
    field("Header", "header", { placeholder: "name=value" }), field("Failed longer ago than", "older", { placeholder: "2h" }), field("Id", "id"));
  const reasons = h("div", { class: "row reasons" });
  const rows = h("div");
  const chosen = new Map();
  const tools = h("div", { class: "row" });
  const changed = h("div", { class: "row" });
  content.replaceChildren(h("div", { class: "card" }, reasons,
    h("details", { class: "search", open: matchMedia("(min-width: 721px)").matches }, h("summary", {}, "Search"), filter,
      h("div", { class: "row" }, h("button", { type: "submit", form: "filter" }, "Search"),
        h("button", { type: "reset", form: "filter", onclick: () => setTimeout(search) }, "Clear"))),
    tools, changed, rows));

  let query = {}; // of the list that is shown: what is typed since then means nothing yet
  let listed = null;

  const meant = () => {
    if (chosen.size) return { where: { ids: [...chosen.keys()] } };
    const where = whereOf(query);
    return Object.keys(where).length ? { where } : { all: true };
  };
  const meantText = () => (chosen.size ? `${chosen.size} chosen` : Object.keys(query).length ? "all that were searched for" : "all");
  const after = async () => { await list(""); await again(); };

  let dry = false;
  const unlessDry = () => (dry ? null : after());

  const redrive = () => ask(`Bring back ${meantText()}`, [
    h("p", {}, "The messages go to the tail of the queue and are handled again."),
    field("At most so many (empty: no bound)", "limit", { inputmode: "numeric" }),
    field("No more than so many a second (empty: as fast as it goes)", "rate", { inputmode: "decimal" }),
    check("Only count", "dry"),
  ], "Bring back", "main", async (given) => {
    dry = given.get("dry") === "on";
    const more = { limit: given.get("limit") ? Number(given.get("limit")) : null, rate: given.get("rate") ? Number(given.get("rate")) : null };
    await carry(dry ? "only counted" : "brought back", () => change("POST", at(name, "/sideline/redrive"), { ...meant(), ...more, dry_run: dry }));
  }, unlessDry);

  const drop = () => {
    const ids = [...chosen.keys()];
    ask(`Drop ${meantText()}`, [
      h("p", {}, "Removes the messages for good."), ids.length ? null : confirmation(name), check("Only count", "dry"),
    ], "Drop", "danger", async (given) => {
      dry = given.get("dry") === "on";
      await carry(dry ? "only counted" : "dropped", () => (ids.length
        ? change("POST", at(name, "/sideline/drop"), { ids, dry_run: dry })
        : change("POST", at(name, "/sideline/drop-all"), { ...meant(), confirm: given.get("confirm"), dry_run: dry })));
    }, unlessDry);
  };

  let empty = true; // then there is nothing to bring back or drop
  const show = () => {
    const mine = empty ? [] : roles();
    tools.replaceChildren(...[
      mine.includes("operate") ? h("button", { class: "main", onclick: redrive }, `Bring back ${meantText()}`) : null,
      mine.includes(chosen.size ? "operate" : "admin") ? h("button", { class: "danger", onclick: drop }, `Drop ${meantText()}`) : null,
    ].filter(Boolean));
  };

  const search = async () => {
    const given = Object.fromEntries([...new FormData(filter)].filter(([, value]) => value));
    try {
      const older = secondsOf(given.older ?? "");
      delete given.older;
      if (older !== null) given.older_than_s = String(older);
      if (given.header && !/^[^=]+=/.test(given.header)) throw new Error("a header is searched for as name=value");
      query = given;
      await list("");
    } catch (error) {
      say(error.message, true);
    }
  };

  const list = async (from) => {
    const found = await call("GET", at(name, "/sideline?" + new URLSearchParams({ ...query, limit: "50", after: from })));
    chosen.clear();
    empty = !found.messages.length && !found.next;
    show();
    listed = null;
    changed.replaceChildren();
    const choose = (one, on) => { if (on) chosen.set(one.id, one); else chosen.delete(one.id); show(); };
    const boxes = [];
    const line = (one) => {
      const box = one.id ? h("input", { type: "checkbox", "aria-label": `choose ${one.id}`, onchange: (event) => choose(one, event.target.checked) }) : null;
      if (box) boxes.push([box, one]);
      return h("tr", {}, h("td", { class: "choose" }, box), cell(stamp(one.failed_at_ms), "when first"), wrong(one), keyed(one), cell(number(one.failures), "num"),
        h("td", { class: "when" }, one.next_at_ms ? due(one.next_at_ms) : one.comes_back ? "by itself" : "by hand"), preview(one.body_text),
        h("td", { class: "do" }, h("button", { onclick: () => look(name, "/sideline", one) }, "Look"),
          one.id && roles().includes("operate") ? h("button", { onclick: () => edit(name, one, after) }, "Edit") : null));
    };
    const lines = found.messages.map(line);
    const every = h("input", { type: "checkbox", "aria-label": "choose every message of this page", onchange: () => {
      for (const [box, one] of boxes) { box.checked = every.checked; choose(one, every.checked); }
    } });
    rows.replaceChildren(
      ...(lines.length
        ? [boxes.length > 1 ? h("label", { class: "line every" }, every, "Choose this page") : "", table("Sideline", HEADS, lines)]
        : [nothing(Object.keys(query).length ? `Nothing like that among ${number(found.looked_at)} messages.` : "Nothing is here: no message has failed.")]),
      found.next ? h("button", { onclick: () => list(found.next) }, "Next page") : "");
  };
  await list("");
  const said = await call("GET", at(name, "/sideline/reasons"));
  reasons.replaceChildren(...Object.entries(said.reasons).map(([reason, one]) => h("button", {
    class: "chip", onclick: () => { filter.elements.reason.value = reason; search(); },
  }, `${reason} ${number(one.count)}`)));

  return async (now) => {
    passing(rows);
    listed ??= empty && !Object.keys(query).length ? 0 : now.sideline;
    if (listed === now.sideline || changed.firstChild) return;
    changed.append(h("span", { class: "dim" }, "The sideline is another one by now."), h("button", { onclick: () => list("") }, "Show it"));
  };
}
