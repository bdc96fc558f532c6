// Requests to the management API, and who is logged in. All addresses are relative: the page may live below a prefix.
// A write carries the session's CSRF token; an answer of 401 to a request that is not the login ends the session here as well.
import { signal } from "./html.js";
import { showRates } from "./format.js";
import { remembered } from "./prefs.js";

export class ApiError extends Error {
  constructor(status, reason, body) {
    super(reason);
    this.status = status;
    this.body = body;
  }
}

export const session = signal(null); // {name, tags, csrf, read_only, rates} when somebody is logged in
export const sessionEnded = signal("");
session.subscribe((found) => showRates(found?.rates !== false));

const enc = encodeURIComponent;

/** A path of encoded segments; the default exchange is "amq.default" in a path. */
export const path = (...segments) => segments.map(enc).join("/");
export const exchangeName = (name) => (name === "" ? "amq.default" : name);

function reasonOf(status, body) {
  const reason = body && (body.reason ?? body.error);
  if (Array.isArray(reason)) return reason.join("; ");
  if (typeof reason === "string" && reason) return reason;
  return status === 0 ? "The broker cannot be reached." : `The broker answered ${status}.`;
}

export async function send(method, url, body, options = {}) {
  const headers = { Accept: "application/json", ...options.headers };
  if (method !== "GET" && session.value?.csrf) headers["X-CSRF-Token"] = session.value.csrf;
  if (body !== undefined && !(body instanceof Blob)) headers["Content-Type"] = "application/json";
  let response;
  try {
    response = await fetch(`api/${url}`, {
      method, headers, signal: options.signal, credentials: "same-origin", cache: "no-store",
      body: body === undefined ? undefined : body instanceof Blob ? body : JSON.stringify(body),
    });
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new ApiError(0, reasonOf(0));
  }
  if (!response.ok) {
    let problem = null;
    try {
      problem = await response.json();
    } catch {
      problem = null; // an answer without a JSON body: its status says it all
    }
    const error = new ApiError(response.status, reasonOf(response.status, problem), problem);
    if (response.status === 401 && session.value && !options.login && problem?.error === "not_authorized") endSession("Please log in again.");
    throw error;
  }
  return response;
}

export async function call(method, url, body, options) {
  const response = await send(method, url, body, options);
  if (response.status === 204) return null;
  const text = await response.text();
  return text ? JSON.parse(text) : null;
}

export const get = (url, options) => call("GET", url, undefined, options);
export const put = (url, body) => call("PUT", url, body ?? {});
export const post = (url, body, options) => call("POST", url, body ?? {}, options);
export const del = (url, options) => call("DELETE", url, undefined, options);

/** The lines of an NDJSON answer, as they come. */
export async function* lines(url, body, signal_) {
  const response = await send("POST", url, body, { signal: signal_ });
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  for (;;) {
    const { value, done } = await reader.read();
    rest += value ?? "";
    const parts = rest.split("\n");
    rest = done ? "" : parts.pop();
    for (const part of parts) if (part.trim()) yield JSON.parse(part);
    if (done) return;
  }
}

// When the session was begun, false when there is none: a page that has never been logged in does not ask. It is no credential. What
// another tab makes of it is true here, too.
const hint = remembered("session", false);
let seen = hint.value;
const note = (begun) => { seen = begun; hint.value = begun; };
hint.subscribe((begun) => {
  if (begun === seen) return;
  seen = begun;
  if (begun) void resume().catch(() => { sessionEnded.value = "The broker cannot be reached."; });
  else endSession("");
});

export function endSession(why) {
  session.value = null;
  note(false);
  sessionEnded.value = why ?? "";
}

/** Finds out whether a session is open. Raises ApiError when the broker cannot be asked. */
export async function resume() {
  if (!hint.value) return;
  try {
    session.value = await get("session", { login: true });
    sessionEnded.value = "";
  } catch (error) {
    if (error.status !== 401) throw error;
    endSession("");
  }
}

export async function login(username, password) {
  session.value = await post("session", { username, password }, { login: true });
  note(Date.now());
  sessionEnded.value = "";
}

export async function logout() {
  try {
    await del("session");
  } finally {
    endSession("");
  }
}

const has = (...tags) => (session.value?.tags ?? []).some((tag) => tags.includes(tag));
export const isAdmin = () => has("administrator");
export const isMonitor = () => has("administrator", "monitoring");
export const isPolicymaker = () => has("administrator", "policymaker");
export const isReadOnly = () => Boolean(session.value?.read_only);
