// Chooses the page by the address, logs in and out, and asks again every few seconds while the page can be seen.

import { ApiError, begin, call, leave, state, whoami } from "./api.js";
import { h } from "./dom.js";
import { clock, zone } from "./format.js";
import { overview } from "./overview.js";
import { failed } from "./parts.js";
import { queue } from "./queue.js";
import { schedules } from "./schedules.js";
import { system } from "./system.js";

const EVERY_MS = 3000;
const LATE_MS = 8000;
const main = document.getElementById("main");
let turn = 0;
let again = null;

// Whoever looks at old figures is told so, since when they are old, and why: a bar that stays, and the figures grey.
let freshAt = Date.now() / 1000;

function fresh() {
  if (state.trouble) return stale(state.trouble.message, state.trouble.since_s);
  freshAt = Date.now() / 1000;
  current();
}

function current() {
  document.getElementById("stale").hidden = true;
  main.classList.remove("old");
}

function stale(why, since = freshAt) {
  const line = document.getElementById("stale");
  const text = `No answer since ${clock(since)}: ${why}`;
  if (line.textContent !== text || line.hidden) line.textContent = text;
  line.hidden = false;
  main.classList.add("old");
}

function showWho() {
  const who = document.getElementById("who");
  const parts = [];
  if (state.via === "session" && state.login === "users") {
    parts.push(h("span", {}, state.user), h("button", { onclick: logOut }, "Log out"));
  } else if (state.user) {
    parts.push(h("span", {}, `${state.user}: ${state.roles.includes("admin") ? "admin" : state.roles.includes("operate") ? "operate" : "read"}`));
  }
  who.replaceChildren(...parts);
}

async function logOut() {
  try {
    await leave();
  } catch (error) {
    if (!(error instanceof ApiError)) throw error;
  }
  location.reload();
}

function logIn(why) {
  again = null;
  const wrong = h("p", { class: "error", role: "alert", hidden: true });
  const form = h("form", {
    class: "card narrow",
    onsubmit: async (event) => {
      event.preventDefault();
      const given = new FormData(form);
      try {
        await begin(given.get("user"), given.get("password"), "");
        showWho();
        await show();
      } catch (error) {
        wrong.textContent = error.message;
        wrong.hidden = false;
        form.elements.password.value = "";
        form.elements.password.focus();
      }
    },
  },
    h("h1", {}, "Log in"),
    why ? h("p", { class: "bad" }, why) : null,
    h("label", {}, "User", h("input", { name: "user", autocomplete: "username", required: true, autofocus: true })),
    h("label", {}, "Password", h("input", { name: "password", type: "password", autocomplete: "current-password", required: true })),
    wrong,
    h("button", { class: "main", type: "submit" }, "Log in"));
  main.replaceChildren(form);
  form.elements.user.focus();
}

function ended() {
  Object.assign(state, { user: null, via: "nobody", roles: [] });
  document.getElementById("ask").close();
  current(); // it answers
  showWho();
  logIn("Your session has ended. Log in again.");
}

// The parts of the address. A link from elsewhere may be no address at all: then it is the overview's.
function addressed() {
  try {
    return location.hash.replace(/^#\/?/, "").split("/").map(decodeURIComponent);
  } catch {
    return [""];
  }
}

async function show() {
  const mine = ++turn;
  again = null;
  state.trouble = null;
  document.getElementById("ask").close(); // it was about another page
  if (!state.user) return logIn();
  const [page = "", ...rest] = addressed();
  for (const link of document.querySelectorAll("nav a")) {
    const to = link.getAttribute("href").slice(2);
    if (to === (page === "queue" ? "" : page)) link.setAttribute("aria-current", "page");
    else link.removeAttribute("aria-current");
  }
  document.title = page === "queue" ? `${rest[0]} - ignis` : "ignis";
  try {
    const found = await ({ queue, schedules, system }[page] ?? overview)(main, ...rest);
    if (mine !== turn) return;
    again = found;
    fresh();
  } catch (error) {
    if (mine !== turn) return;
    if (error.status === 401) return ended();
    current(); // the page says it itself
    failed(main, error, show);
    // What may pass is tried again by itself.
    if (!error.status || error.status >= 500) again = async () => { await call("GET", "/overview"); if (mine === turn) await show(); };
  }
}

async function begun() {
  try {
    await whoami();
  } catch (error) {
    return failed(main, error, begun);
  }
  showWho();
  await show();
}

async function tick() {
  const doing = again;
  if (doing && !document.hidden) {
    state.trouble = null;
    const late = setTimeout(() => { if (doing === again) stale("still waiting for it"); }, LATE_MS);
    try {
      await doing();
      if (doing === again) fresh();
    } catch (error) {
      if (doing === again && error.status === 401) ended();
      else if (doing === again) stale(error.message);
    } finally {
      clearTimeout(late);
    }
  }
  setTimeout(tick, EVERY_MS);
}

window.addEventListener("hashchange", () => { show(); main.focus(); });
document.getElementById("zone").textContent = zone() === "UTC" ? "Times are in UTC." : `Times are in ${zone()}; each says its time in UTC when pointed at.`;
await begun();
tick();
