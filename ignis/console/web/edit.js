// The dialogs that change what is stored: a message of the sideline sent again, a schedule, how many consumers and shards.

import { ask, at, call, change, h, number, say } from "./api.js";
import { act } from "./parts.js";

const area = (label, name, value) => h("label", {}, label, h("textarea", { name, value, spellcheck: "false" }));
const line = (label, name, value = "", more = {}) => h("label", {}, label, h("input", { name, value, autocomplete: "off", ...more }));

function parsed(text, what) {
  try {
    return JSON.parse(text);
  } catch (error) {
    throw new Error(`${what}: no JSON: ${error.message}`);
  }
}

// What was not changed is not sent: then the stored bytes stay as they are, also where they are no text.
export async function edit(name, one, after) {
  let found;
  try {
    found = await call("GET", at(name, `/sideline/${one.shard}/${one.pointer}`));
  } catch (error) {
    return say(error.message, true);
  }
  const headers = JSON.stringify(found.headers ?? {}, null, 2);
  const text = !found.body_cut && ["json", "text"].includes(found.body_kind);
  ask(`Edit ${found.id}`, [
    h("p", {}, "Sends the message again as a new one, which has the old id in a header. The old one is removed when the new one is stored."),
    text ? area(`Body (${found.body_kind})`, "body", found.body_text) : h("p", { class: "dim" }, "The body is no text, or too long: it stays as it is."),
    area("Headers, as JSON", "headers", headers),
    line("Key", "key", found.key ?? ""),
    h("label", { class: "line" }, h("input", { type: "checkbox", name: "dry" }), "Only check"),
  ], "Send again", "main", async (given) => {
    const asked = { id: found.id, dry_run: given.get("dry") === "on" };
    // A form has its own ends of lines.
    const said = (given.get("body") ?? "").replaceAll("\r\n", "\n");
    if (text && said !== found.body_text) asked.body_text = said;
    const named = given.get("headers").replaceAll("\r\n", "\n");
    if (named !== headers) asked.headers = parsed(named || "{}", "headers");
    if (given.get("key") !== (found.key ?? "")) asked.key = given.get("key") || null;
    const done = await change("POST", at(name, `/sideline/${one.shard}/${one.pointer}/resend`), asked);
    if (done.dry_run) {
      say(`checked: a body of ${number(done.body_bytes)} bytes would be stored`);
      return false; // what was typed is still needed
    }
    say(`sent again as ${done.id}`);
    await after();
    return true;
  });
}

export async function scale(name, again) {
  const { settings } = await call("GET", at(name));
  ask(`Scale ${name}`, [
    h("p", {}, "Holds for the whole fleet. Processes follow within their refresher's interval. More shards may move a key to another shard."),
    line("Consumers in each process", "consumers", String(settings.concurrency), { inputmode: "numeric", required: true }),
    line("Shards", "shards", String(settings.shards), { inputmode: "numeric", required: true }),
    line(`Type ${name} to go on`, "confirm", "", { required: true }),
  ], "Scale", "danger", async (given) => {
    const asked = { confirm: given.get("confirm") };
    if (given.get("consumers") !== String(settings.concurrency)) asked.consumers = Number(given.get("consumers"));
    if (given.get("shards") !== String(settings.shards)) asked.shards = Number(given.get("shards"));
    const { now } = await change("POST", at(name, "/scale"), asked);
    say(`${name}: ${number(now.consumers)} consumers in each process, ${number(now.shards)} shards`);
    await again();
  });
}

const path = (name) => `/schedules/${encodeURIComponent(name)}`;

export function schedule(one, again) {
  ask(one ? `Change ${one.schedule}` : "Add a schedule", [
    one ? null : line("Name", "name", "", { required: true }),
    one ? null : line("Queue", "queue", "", { required: true }),
    line("Every, such as 5m", "every", one && one.every_s ? String(one.every_s) : ""),
    line("Or cron: minute, hour, day, month, weekday", "cron", one?.cron ?? ""),
    line("Time zone of cron", "timezone", one?.timezone ?? ""),
    area("Body: a JSON value, or text for a queue of codec raw", "body", one?.body_text ?? "{}"),
    h("label", {}, "Missed ticks", h("select", { name: "missed" }, ["once", "skip", "all"].map((kind) =>
      h("option", { value: kind, selected: kind === (one?.missed ?? "once") }, kind)))),
  ], one ? "Change" : "Add", "main", async (given) => {
    const name = one ? one.schedule : given.get("name");
    const asked = { missed: given.get("missed") };
    if (!one) asked.queue = given.get("queue");
    for (const field of ["every", "cron", "timezone"]) if (given.get(field)) asked[field] = given.get(field);
    if (asked.every && /^[0-9.]+$/.test(asked.every)) asked.every = Number(asked.every);
    const body = given.get("body").replaceAll("\r\n", "\n");
    if (!one || body !== one.body_text) {
      const { settings } = await call("GET", at(one ? one.queue : given.get("queue")));
      if (settings.codec === "raw") asked.body_text = body;
      else asked.body = parsed(body, "body");
    }
    const made = await change("PUT", path(name), asked);
    say(`${made.schedule}: ${made.made ? "made" : "changed"}`);
    await again();
  });
}

export function unschedule(one, again) {
  ask(`Remove ${one.schedule}`, [h("p", {}, `What it has published to ${one.queue} stays.`)], "Remove", "danger", async () => {
    await act(`${one.schedule}: removed`, () => change("DELETE", path(one.schedule)), again);
  });
}
