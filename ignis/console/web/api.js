// Talks to the HTTP API. Whoever changes something shows the token of the session with it.

export const state = { user: null, csrf: null, roles: [], login: "none" };

export class ApiError extends Error {
  constructor(status, error) {
    super(error.message);
    this.status = status;
    this.code = error.code;
  }
}

export async function call(method, path, body) {
  const headers = { Accept: "application/json" };
  if (method !== "GET") {
    headers["Content-Type"] = "application/json";
    if (state.csrf) headers["X-CSRF-Token"] = state.csrf;
  }
  let answer;
  try {
    answer = await fetch("ignis/v1" + path, {
      method, headers, credentials: "same-origin", cache: "no-store",
      body: method === "GET" ? undefined : JSON.stringify(body ?? {}),
    });
  } catch {
    throw new ApiError(0, { code: "unreachable", message: "the console does not answer" });
  }
  let found;
  try {
    found = await answer.json();
  } catch {
    found = {};
  }
  if (!answer.ok) throw new ApiError(answer.status, found.error ?? { code: "unknown", message: `status ${answer.status}` });
  return found;
}

export async function whoami() {
  Object.assign(state, await call("GET", "/session"));
  return state;
}

export async function begin(user, password, token) {
  const found = await call("POST", "/session", { user, password, token });
  state.csrf = found.csrf;
  return whoami();
}

// Where nobody logs in a session is still what changes are bound to: it is begun with the first of them.
export async function change(method, path, body) {
  if (!state.csrf && state.login === "none") await begin("", "", "");
  return call(method, path, body);
}

export const at = (queue, rest = "") => `/queues/${encodeURIComponent(queue)}${rest}`;

export const pageOf = (queue, tab = "") => `#/queue/${encodeURIComponent(queue)}${tab && "/" + tab}`;
