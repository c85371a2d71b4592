// Talks to the HTTP API. Whoever changes something shows the token of the session with it.

// `trouble`: why the store's figures are old, as the last overview said.
export const state = { user: null, roles: [], login: "none", trouble: null };

// The token of the session, which its login answered and nothing tells again. It is kept by origin, port included: the cookie
// goes to every port of this host, and is worth nothing without it. All tabs of the console have it, also after a reload.
const KEPT = `ignis.csrf ${new URL(".", location).pathname}`;

const token = () => localStorage.getItem(KEPT);

function keep(csrf) {
  if (csrf) localStorage.setItem(KEPT, csrf);
  else localStorage.removeItem(KEPT);
}

export class ApiError extends Error {
  constructor(status, error) {
    super(error.message);
    this.status = status;
    this.code = error.code;
  }
}

// Reading is quick or in vain. What changes something may take as long as it takes.
const READ_MS = 15000;

export async function call(method, path, body) {
  const headers = { Accept: "application/json" };
  if (method !== "GET") headers["Content-Type"] = "application/json";
  if (token()) headers["X-CSRF-Token"] = token();
  let answer;
  try {
    answer = await fetch("ignis/v1" + path, {
      method, headers, credentials: "same-origin", cache: "no-store",
      body: method === "GET" ? undefined : JSON.stringify(body ?? {}),
      signal: method === "GET" ? AbortSignal.timeout(READ_MS) : undefined,
    });
  } catch (error) {
    const late = error.name === "TimeoutError";
    throw new ApiError(0, { code: "unreachable", message: late ? `the console gave no answer within ${READ_MS / 1000} s` : "the console does not answer" });
  }
  let found;
  try {
    found = await answer.json();
  } catch {
    found = {};
  }
  if (!answer.ok) throw new ApiError(answer.status, found.error ?? { code: "unknown", message: `status ${answer.status}` });
  if ("trouble" in found) state.trouble = found.trouble;
  return found;
}

export async function whoami() {
  Object.assign(state, await call("GET", "/session"));
  return state;
}

export async function begin(user, password, token) {
  const found = await call("POST", "/session", { user, password, token });
  keep(found.csrf);
  return whoami();
}

// Where nobody logs in a session is still what changes are bound to: it is begun with the first of them.
export async function change(method, path, body) {
  if (state.login !== "none") return call(method, path, body);
  if (state.via !== "session") await begin("", "", "");
  try {
    return await call(method, path, body);
  } catch (error) {
    if (error.status !== 401) throw error;
    await begin("", "", "");  // it had ended
    return call(method, path, body);
  }
}

export async function leave() {
  try {
    await call("DELETE", "/session");
  } finally {
    keep(null);
  }
}

export const at = (queue, rest = "") => `/queues/${encodeURIComponent(queue)}${rest}`;

export const pageOf = (queue, tab = "") => `#/queue/${encodeURIComponent(queue)}${tab && "/" + tab}`;
