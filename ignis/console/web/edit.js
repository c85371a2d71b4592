// The dialogs that change what is stored: a message published or sent again, a schedule, consumers and shards, a queue purged.

import { at, call, change } from "./api.js";
import { ask, h, say } from "./dom.js";
import { number } from "./format.js";
import { area, carry, check, field } from "./parts.js";

const line = (label, name, value = "", more = {}) => field(label, name, { value, ...more });

function parsed(text, what) {
  try {
    return JSON.parse(text);
  } catch (error) {
    throw new Error(`${what}: no JSON value: ${error.message}`);
  }
}

export const confirmation = (name) => line(`This cannot be undone. Type ${name} to go on`, "confirm");

export function publish(name, again) {
  ask(`Publish to ${name}`, [
    area("Body: a JSON value, or text for a queue of codec raw", "body", "", { required: true }),
    area("Headers, as JSON", "headers", "", { class: "low", placeholder: "{}" }),
    line("Key", "key"), line("Delay, such as 5m", "delay"), line("Expires in, such as 1h", "expires_in"),
  ], "Publish", "main", async (given) => {
    const text = given.get("body");
    const { settings } = await call("GET", at(name));
    const message = settings.codec === "raw" ? { body_text: text } : { body: parsed(text, "the body") };
    if (given.get("headers").trim()) message.headers = parsed(given.get("headers"), "headers");
    if (given.get("key")) message.key = given.get("key");
    const found = await change("POST", at(name, "/publish"), {
      messages: [message], delay: given.get("delay") || null, expires_in: given.get("expires_in") || null,
    });
    say(`published ${found.ids[0]}`);
  }, again);
}

export function purge(name, again) {
  ask(`Purge ${name}`, [
    h("p", {}, "Removes all messages that wait in the queue. Nobody handles them."), confirmation(name), check("Also what is claimed", "in_flight"),
  ], "Purge", "danger", async (given) => {
    await carry("purged", () => change("POST", at(name, "/purge"), { confirm: given.get("confirm"), in_flight: given.get("in_flight") === "on" }));
  }, again);
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
    check("Only check", "dry"),
  ], "Send again", "main", async (given, tell) => {
    const asked = { id: found.id, dry_run: given.get("dry") === "on" };
    // A form has its own ends of lines.
    const said = (given.get("body") ?? "").replaceAll("\r\n", "\n");
    if (text && said !== found.body_text) asked.body_text = said;
    const named = given.get("headers").replaceAll("\r\n", "\n");
    if (named !== headers) asked.headers = parsed(named || "{}", "headers");
    if (given.get("key") !== (found.key ?? "")) asked.key = given.get("key") || null;
    const done = await change("POST", at(name, `/sideline/${one.shard}/${one.pointer}/resend`), asked);
    if (done.dry_run) {
      tell(`checked: a body of ${number(done.body_bytes)} bytes would be stored`);
      return false; // what was typed is still needed
    }
    say(`sent again as ${done.id}`);
    return true;
  }, after);
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
  }, again);
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
    asked.queue = one ? one.queue : given.get("queue");
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
  }, again);
}

export function unschedule(one, again) {
  ask(`Remove ${one.schedule}`, [h("p", {}, `What it has published to ${one.queue} stays.`)], "Remove", "danger", async () => {
    await carry(`${one.schedule}: removed`, () => change("DELETE", `${path(one.schedule)}?queue=${encodeURIComponent(one.queue)}`));
  }, again);
}
