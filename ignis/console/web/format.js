// Numbers, ages, rates and times as people read them. What is not known is a dash.

const NONE = "–";
const missing = (value) => value === null || value === undefined;

export const number = (value) => (missing(value) ? NONE : Number(value).toLocaleString("en"));

export function age(seconds) {
  if (missing(seconds)) return NONE;
  for (const [size, unit] of [[86400, "d"], [3600, "h"], [60, "min"]]) if (seconds >= size) return `${(seconds / size).toFixed(1)} ${unit}`;
  if (seconds > 0 && seconds < 0.0995) return `${Math.max(1, Math.round(seconds * 1000))} ms`;
  return `${seconds.toFixed(seconds < 10 ? 1 : 0)} s`;
}

export const rate = (value) => (missing(value) ? NONE : `${value >= 100 ? Math.round(value).toLocaleString("en") : value.toFixed(1)}/s`);

const two = (part) => String(part).padStart(2, "0");
const clockOf = (at) => `${two(at.getHours())}:${two(at.getMinutes())}:${two(at.getSeconds())}`;

export const clock = (seconds) => clockOf(new Date(seconds * 1000));

// By the clock of who looks, and sortable.
export function moment(value) {
  if (missing(value)) return NONE;
  const at = new Date(value);
  return `${at.getFullYear()}-${two(at.getMonth() + 1)}-${two(at.getDate())} ${clockOf(at)}`;
}

// The same time as the command line says it.
export const utc = (value) => `${new Date(value).toISOString().slice(0, 19).replace("T", " ")} UTC`;

// What the times of the pages are in: Europe/Berlin, UTC+01:00.
export function zone() {
  const minutes = -new Date().getTimezoneOffset();
  const name = Intl.DateTimeFormat().resolvedOptions().timeZone;
  if (!minutes && ["UTC", "Etc/UTC"].includes(name)) return "UTC";
  return `${name}, UTC${minutes < 0 ? "−" : "+"}${two(Math.floor(Math.abs(minutes) / 60))}:${two(Math.abs(minutes) % 60)}`;
}

// So many bytes, in the largest unit that is at least one.
export function size(bytes) {
  if (missing(bytes)) return NONE;
  for (const [power, unit] of [[40, "TiB"], [30, "GiB"], [20, "MiB"], [10, "KiB"]]) {
    if (bytes >= 2 ** power) return `${(bytes / 2 ** power).toFixed(1).replace(/\.0$/, "")} ${unit}`;
  }
  return `${number(bytes)} B`;
}

// How far away a time is: in 5.0 min, 3.0 s ago.
export function until(value) {
  if (missing(value)) return "";
  const seconds = (new Date(value) - Date.now()) / 1000;
  if (Math.abs(seconds) < 0.5) return "now";
  return seconds > 0 ? `in ${age(seconds)}` : `${age(-seconds)} ago`;
}

// Seconds of what people type: 90, 30s, 5m, 2h, 1d. Nothing where nothing is typed.
export function secondsOf(text) {
  const found = /^\s*([0-9]+(?:\.[0-9]+)?)\s*(s|m|min|h|d)?\s*$/.exec(text);
  if (!text.trim()) return null;
  if (!found) throw new Error(`${text}: give a time such as 90s, 5m, 2h or 1d`);
  return Number(found[1]) * { s: 1, m: 60, min: 60, h: 3600, d: 86400 }[found[2] ?? "s"];
}
