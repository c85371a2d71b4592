// Chooses the page by the address, logs in and out, and asks again every few seconds while the page can be seen.

import { ApiError, begin, leave, state, whoami } from "./api.js";
import { h, say } from "./dom.js";
import { overview } from "./overview.js";
import { failed } from "./parts.js";
import { queue } from "./queue.js";
import { schedules } from "./schedules.js";
import { system } from "./system.js";

const EVERY_MS = 3000;
const main = document.getElementById("main");
let turn = 0;
let again = null;

// Whoever looks at old figures is told so.
function fresh() {
  document.getElementById("stale").hidden = true;
}

function stale(error) {
  const line = document.getElementById("stale");
  if (line.hidden) line.textContent = `Not up to date since ${new Date().toLocaleTimeString("en-GB")}: ${error.message}`;
  line.hidden = false;
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
        say(error.message, true);
        form.elements.password.value = "";
        form.elements.password.focus();
      }
    },
  },
    h("h1", {}, "Log in"),
    why ? h("p", { class: "bad" }, why) : null,
    h("label", {}, "User", h("input", { name: "user", autocomplete: "username", required: true, autofocus: true })),
    h("label", {}, "Password", h("input", { name: "password", type: "password", autocomplete: "current-password", required: true })),
    h("button", { class: "main", type: "submit" }, "Log in"));
  main.replaceChildren(form);
  form.elements.user.focus();
}

function ended() {
  Object.assign(state, { user: null, via: "nobody", roles: [] });
  document.getElementById("ask").close();
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
  fresh();
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
    if (mine === turn) again = found;
  } catch (error) {
    if (mine !== turn) return;
    if (error.status === 401) ended();
    else failed(main, error);
  }
}

async function tick() {
  const doing = again;
  if (doing && !document.hidden) {
    try {
      await doing();
      if (doing === again) fresh();
    } catch (error) {
      if (doing === again && error.status === 401) ended();
      else if (doing === again) stale(error);
    }
  }
  setTimeout(tick, EVERY_MS);
}

window.addEventListener("hashchange", () => { show(); main.focus(); });
try {
  await whoami();
} catch (error) {
  failed(main, error);
}
showWho();
await show();
tick();
