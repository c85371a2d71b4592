// The pages. Each is a function that fills the content and returns what is to be done again every few seconds, or nothing.

import { age, ask, at, call, change, chart, h, moment, number, rate, say } from "./api.js";
import { edit, scale } from "./edit.js";
import { act, cell, figure, table } from "./parts.js";

// -- queues

export async function overview(main) {
  const body = h("div");
  main.replaceChildren(h("h1", {}, "Queues"), body);
  const again = async () => {
    const found = await call("GET", "/overview");
    const rows = found.queues.map((one) => h("tr", {},
      h("td", {}, h("a", { href: `#/queue/${encodeURIComponent(one.queue)}` }, one.queue), " ",
        one.settings.state === "active" ? null : h("span", { class: "tag" }, one.settings.state)),
      cell(number(one.pending), "num"),
      cell(number(one.in_flight), "num"),
      h("td", { class: "num" + (one.sideline ? " bad" : "") }, number(one.sideline)),
      cell(number(one.delayed), "num wide"),
      cell(age(one.oldest_age_s), "num"),
      cell(rate(one.published_rate), "num wide"),
      cell(rate(one.finished_rate), "num wide"),
      h("td", { class: "wide" }, chart(found.history[one.queue], [1], "spark"))));
    body.replaceChildren(
      found.queues.length
        ? h("div", { class: "card" }, table("Queues", [["queue"], ["pending", "num"], ["in flight", "num"], ["sideline", "num"], ["delayed", "num wide"],
          ["oldest", "num"], ["in", "num wide"], ["out", "num wide"], ["pending so far", "wide"]], rows))
        : h("p", { class: "card" }, "There is no queue that you may look at."),
      h("p", { class: "dim" }, `Figures of the whole fleet, as of ${moment(found.at_s * 1000)}. Store: ${found.store}`));
  };
  await again();
  return again;
}

const TABS = [["sideline", "Sideline"], ["messages", "Waiting"], ["delayed", "Delayed"], ["workers", "Workers"], ["shards", "Shards"]];

export async function queue(main, name, tab = "sideline") {
  const figures = h("div");
  const actions = h("div", { class: "row" });
  const content = h("div");
  const chosen = TABS.some(([one]) => one === tab) ? tab : "sideline";
  main.replaceChildren(
    h("h1", {}, name), figures, actions,
    h("nav", { class: "row", "aria-label": "About the queue" },
      TABS.map(([one, text]) => h("a", {
        class: "button", href: `#/queue/${encodeURIComponent(name)}/${one}`, "aria-current": one === chosen ? "true" : null,
      }, text))),
    content);
  let roles = [];
  let shown = "";
  const again = async () => {
    const [all, now] = await Promise.all([call("GET", "/overview"), call("GET", at(name))]);
    roles = now.roles;
    const points = all.history[name] ?? [];
    const row = all.queues.find((one) => one.queue === name) ?? {};
    figures.replaceChildren(h("div", { class: "card" },
      h("dl", { class: "figures" },
        figure("pending", number(now.pending)), figure("in flight", number(now.in_flight)),
        figure("sideline", number(now.sideline), now.sideline ? "bad" : ""), figure("delayed", number(now.delayed)),
        figure("oldest", age(now.oldest_age_s)), figure("in", rate(row.published_rate)), figure("out", rate(row.finished_rate)),
        figure("state", now.settings.state), figure("codec", now.settings.codec)),
      h("p", { class: "dim" }, "Figures of the whole fleet."),
      h("div", { class: "charts" },
        h("figure", {}, h("figcaption", {}, "pending", h("span", {}, number(now.pending))), chart(points, [1])),
        h("figure", {}, h("figcaption", {}, "in flight", h("span", {}, number(now.in_flight))), chart(points, [2])),
        h("figure", {}, h("figcaption", {}, "in and out a second"), chart(points, [4, 5])))));
    const wanted = JSON.stringify([roles, now.paused]);
    if (wanted !== shown) actions.replaceChildren(...buttons(name, roles, now.paused, again));
    shown = wanted;
  };
  await again();
  await { sideline, messages, delayed, workers, shards }[chosen](content, name, () => roles, again);
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

function publish(name, again) {
  ask(`Publish to ${name}`, [
    h("label", {}, "Body: a JSON value, or text for a queue of codec raw", h("textarea", { name: "body", required: true })),
    h("label", {}, "Key", h("input", { name: "key" })),
    h("label", {}, "Delay, such as 5m", h("input", { name: "delay" })),
  ], "Publish", "main", async (given) => {
    const text = given.get("body");
    const { settings } = await call("GET", at(name));
    let message;
    if (settings.codec === "raw") message = { body_text: text };
    else {
      try {
        message = { body: JSON.parse(text) };
      } catch (error) {
        throw new Error(`the body is no JSON value: ${error.message}`);
      }
    }
    if (given.get("key")) message.key = given.get("key");
    const found = await change("POST", at(name, "/publish"), { messages: [message], delay: given.get("delay") || null });
    say(`published ${found.ids[0]}`);
    await again();
  });
}

const confirmation = (name) => h("label", {}, `This cannot be undone. Type ${name} to go on`, h("input", { name: "confirm", required: true, autocomplete: "off" }));

function purge(name, again) {
  ask(`Purge ${name}`, [
    h("p", {}, "Removes all messages that wait in the queue. Nobody handles them."), confirmation(name),
  ], "Purge", "danger", async (given) => {
    await act("purged", () => change("POST", at(name, "/purge"), { confirm: given.get("confirm") }), again);
  });
}

// -- messages

async function sideline(content, name, roles, again) {
  const filter = h("form", { class: "row", onsubmit: (event) => { event.preventDefault(); list(""); } },
    h("label", {}, "Reason", h("input", { name: "reason", size: 12 })),
    h("label", {}, "Key", h("input", { name: "key", size: 12 })),
    h("label", {}, "Error contains", h("input", { name: "error", size: 16 })),
    h("button", { type: "submit" }, "Search"));
  const reasons = h("div", { class: "row" });
  const rows = h("div");
  const chosen = new Map();
  const tools = h("div", { class: "row" });
  content.replaceChildren(h("div", { class: "card" }, reasons, filter, tools, rows));

  const where = () => {
    const given = new FormData(filter);
    const found = {};
    if (given.get("reason")) found.reasons = [given.get("reason")];
    if (given.get("key")) found.key = given.get("key");
    if (given.get("error")) found.error = given.get("error");
    return found;
  };
  const after = async () => { chosen.clear(); await list(""); await again(); };
  const meant = () => {
    if (chosen.size) return { where: { ids: [...chosen.keys()] } };
    const found = where();
    return Object.keys(found).length ? { where: found } : { all: true };
  };
  const meantText = () => (chosen.size ? `${chosen.size} chosen` : Object.keys(where()).length ? "all that were searched for" : "all");
  const redrive = () => ask(`Bring back ${meantText()}`, [
    h("p", {}, "The messages go to the tail of the queue and are handled again."),
    h("label", {}, "No more than so many a second (empty: as fast as it goes)", h("input", { name: "rate", inputmode: "decimal" })),
    h("label", { class: "line" }, h("input", { type: "checkbox", name: "dry" }), "Only count"),
  ], "Bring back", "main", async (given) => {
    await act(given.get("dry") === "on" ? "only counted" : "brought back", () => change("POST", at(name, "/sideline/redrive"),
      { ...meant(), rate: given.get("rate") ? Number(given.get("rate")) : null, dry_run: given.get("dry") === "on" }), after);
  });
  const drop = () => {
    const ids = [...chosen.keys()];
    ask(`Drop ${meantText()}`, [
      h("p", {}, "Removes the messages for good."), ids.length ? null : confirmation(name),
    ], "Drop", "danger", async (given) => {
      await act("dropped", () => (ids.length
        ? change("POST", at(name, "/sideline/drop"), { ids })
        : change("POST", at(name, "/sideline/drop-all"), { ...meant(), confirm: given.get("confirm") })), after);
    });
  };
  const show = () => {
    const mine = roles();
    tools.replaceChildren(...[
      mine.includes("operate") ? h("button", { class: "main", onclick: redrive }, `Bring back ${meantText()}`) : null,
      mine.includes(chosen.size ? "operate" : "admin") ? h("button", { class: "danger", onclick: drop }, `Drop ${meantText()}`) : null,
    ].filter(Boolean));
  };
  const list = async (from) => {
    const given = Object.fromEntries([...new FormData(filter)].filter(([, value]) => value));
    const found = await call("GET", at(name, "/sideline?" + new URLSearchParams({ ...given, limit: "50", after: from })));
    chosen.clear();
    show();
    rows.replaceChildren(
      found.messages.length ? table("Sideline", [["choose"], ["failed"], ["reason"], ["error"], ["key", "wide"], ["failures", "num wide"], ["body"], ["look"]],
        found.messages.map((one) => h("tr", {},
          h("td", {}, one.id ? h("input", {
            type: "checkbox", "aria-label": `choose ${one.id}`,
            onchange: (event) => { if (event.target.checked) chosen.set(one.id, one); else chosen.delete(one.id); show(); },
          }) : null),
          cell(moment(one.failed_at_ms), "when"), cell(one.reason ?? "–"), h("td", {}, h("div", { class: "preview" }, one.error ?? "")),
          cell(one.key ?? "–", "wide"), cell(number(one.failures), "num wide"), h("td", {}, h("div", { class: "preview" }, one.body_text)),
          h("td", { class: "row" }, h("button", { onclick: () => look(name, "/sideline", one) }, "Look"),
            one.id && roles().includes("operate") ? h("button", { onclick: () => edit(name, one, after) }, "Edit") : null)))) : h("p", { class: "dim" }, "Nothing is here."),
      found.next ? h("button", { onclick: () => list(found.next) }, "Next page") : "");
  };
  await list("");
  const said = await call("GET", at(name, "/sideline/reasons"));
  reasons.replaceChildren(...Object.entries(said.reasons).map(([reason, one]) => h("button", {
    onclick: () => { filter.elements.reason.value = reason; list(""); },
  }, `${reason} ${number(one.count)}`)));
}

async function look(name, place, one) {
  try {
    const found = await call("GET", at(name, `${place}/${one.shard}/${one.pointer}`));
    ask(`Message ${found.id ?? ""}`, [
      h("dl", { class: "figures" }, figure("reason", found.reason ?? "–"), figure("failures", number(found.failures)),
        figure("returns", number(found.returns)), figure("published", moment(found.enqueued_at_us ? found.enqueued_at_us / 1000 : null)),
        figure("key", found.key ?? found.key_hex ?? "–"), figure("place", `${found.shard}.${found.pointer}`)),
      found.error ? [h("h2", {}, "Error"), h("pre", { tabindex: "0" }, found.error)] : null,
      h("h2", {}, `Body (${found.body_kind})`), h("pre", { tabindex: "0", "data-body": true }, found.body_text + (found.body_cut ? "\n[cut]" : "")),
      h("h2", {}, "Headers"), h("pre", { tabindex: "0" }, JSON.stringify(found.headers ?? {}, null, 2)),
      (found.history ?? []).length ? [h("h2", {}, "History"), found.history.map((each) => h("pre", { tabindex: "0" },
        `${moment(each.at_ms)}  ${each.reason}  ${each.took_ms === null ? "" : each.took_ms + " ms"}  ${each.worker}\n${each.error}\n${each.trace}`))] : null,
    ], "Done", "main", async () => {});
  } catch (error) {
    say(error.message, true);
  }
}

async function messages(content, name) {
  const list = async (from) => {
    const found = await call("GET", at(name, "/messages?" + new URLSearchParams({ limit: "50", after: from })));
    content.replaceChildren(h("div", { class: "card" },
      found.messages.length ? table("Waiting messages", [["id", "wide"], ["published"], ["key"], ["body"], ["look"]], found.messages.map((one) => h("tr", {},
        cell(one.id ?? "–", "wide"), cell(moment(one.enqueued_at_us ? one.enqueued_at_us / 1000 : null), "when"), cell(one.key ?? "–"),
        h("td", {}, h("div", { class: "preview" }, one.body_text)),
        h("td", {}, h("button", { onclick: () => look(name, "/messages", one) }, "Look"))))) : h("p", { class: "dim" }, "No message waits."),
      found.next ? h("button", { onclick: () => list(found.next) }, "Next page") : ""));
  };
  await list("");
}

async function delayed(content, name, roles, again) {
  const list = async () => {
    let found;
    try {
      found = await call("GET", at(name, "/delayed"));
    } catch (error) {
      content.replaceChildren(h("p", { class: "card dim" }, error.message));
      return;
    }
    const tool = (text, path, id) => h("button", { onclick: () => act(text, () => change("POST", at(name, path), { ids: [id] }), async () => { await list(); await again(); }) }, text);
    content.replaceChildren(h("div", { class: "card" },
      h("p", { class: "dim" }, `${number(found.total)} wait for their time; the next ones first.`),
      found.messages.length ? table("Delayed messages", [["due"], ["id", "wide"], ["key"], ["body"], ["do"]], found.messages.map((one) => h("tr", {},
        cell(moment(one.due), "when"), cell(one.id ?? "–", "wide"), cell(one.key ?? "–"), h("td", {}, h("div", { class: "preview" }, one.body_text)),
        h("td", { class: "row" }, one.id && roles().includes("operate") ? [tool("Run now", "/delayed/run", one.id), tool("Cancel", "/delayed/cancel", one.id)] : null)))) : ""));
  };
  await list();
}

async function workers(content, name) {
  const found = await call("GET", at(name, "/workers"));
  content.replaceChildren(h("div", { class: "card" },
    found.workers.length ? table("Workers", [["owner"], ["of"], ["in flight", "num"], ["longest", "num"], ["state"]], found.workers.map((one) => h("tr", {},
      cell(one.owner), cell(one.magazine), cell(number(one.in_flight), "num"), cell(age(one.oldest_claim_s), "num"),
      h("td", { class: one.dead ? "bad" : "" }, one.dead ? "dead" : "–")))) : h("p", { class: "dim" }, "Nobody has claimed anything. Who is idle holds nothing."),
    found.progress.length ? table("Progress", [["message"], ["progress", "num"], ["at"]], found.progress.map((one) => h("tr", {},
      cell(one.id), cell(`${Math.round(one.fraction * 100)} %`, "num"), cell(one.text)))) : ""));
}

async function shards(content, name) {
  const found = await call("GET", at(name, "/shards"));
  const rows = (some) => some.filter((one) => one.load_pointer).map((one) => h("tr", {}, cell(String(one.shard), "num"), cell(number(one.pending), "num"),
    cell(number(one.in_flight), "num"), cell(String(one.load_pointer), "num"), cell(String(one.fire_pointer), "num")));
  const heads = [["shard", "num"], ["pending", "num"], ["in flight", "num"], ["load pointer", "num"], ["fire pointer", "num"]];
  content.replaceChildren(
    h("div", { class: "card" }, h("h2", {}, "Queue"), table("Shards of the queue", heads, rows(found.shards))),
    h("div", { class: "card" }, h("h2", {}, "Sideline"), table("Shards of the sideline", heads, rows(found.sideline_shards))));
}
