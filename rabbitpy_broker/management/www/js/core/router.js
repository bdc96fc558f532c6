// The address after `#`: `#/queues/%2F/orders?tab=messages`. `route` is the decoded path and the query; changing it changes the page.
// What a page is looking at (filter, order, tab) stands in the query, so that an address can be sent to somebody.
import { signal } from "./html.js";

function parse() {
  const text = location.hash.replace(/^#\/?/, "");
  const at = text.indexOf("?");
  const path = at < 0 ? text : text.slice(0, at);
  const segments = path.split("/").filter(Boolean).map((part) => {
    try {
      return decodeURIComponent(part);
    } catch {
      return part; // typed by hand: a lone % is a %
    }
  });
  return { segments, query: Object.fromEntries(new URLSearchParams(at < 0 ? "" : text.slice(at + 1))), path: `#/${path}` };
}

export const route = signal(parse());
addEventListener("hashchange", () => { route.value = parse(); });

export const to = (segments, query) => {
  const search = query ? new URLSearchParams(Object.entries(query).filter(([, value]) => value !== "" && value != null)).toString() : "";
  return `#/${segments.map((part) => (part === "" ? "amq.default" : encodeURIComponent(part))).join("/")}${search ? `?${search}` : ""}`;
};

export function go(address) {
  location.hash = address;
}

/** Changes the query in place, without a new entry in the history unless `push`. */
export function setQuery(changes, push = false) {
  const query = { ...route.value.query, ...changes };
  const entries = Object.entries(query).filter(([, value]) => value !== "" && value != null && value !== false);
  const search = new URLSearchParams(entries).toString();
  const address = route.value.path + (search ? `?${search}` : "");
  if (push) history.pushState(null, "", address);
  else history.replaceState(null, "", address);
  route.value = parse();
}

export const queueAddress = (vhost, name, query) => to(["queues", vhost, name], query);
export const exchangeAddress = (vhost, name, query) => to(["exchanges", vhost, name], query);
