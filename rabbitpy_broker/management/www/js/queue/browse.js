// Requests for the messages of a queue. Looking takes nothing, marks nothing and moves nothing.
import { get, post, del, lines, path } from "../core/api.js";

const base = (vhost, name) => `queues/${path(vhost, name)}/messages`;
export const PAGE = 50;
export const PREVIEW_BYTES = 16384;

export function page(vhost, name, { state = "ready", order = "head", after, before, limit = PAGE, truncate = PREVIEW_BYTES }, signal) {
  const query = new URLSearchParams({ state, order, limit, truncate });
  if (after) query.set("after", after);
  if (before) query.set("before", before);
  return get(`${base(vhost, name)}?${query}`, { signal });
}

export const one = (vhost, name, id, truncate = 1 << 20) => get(`${base(vhost, name)}/${path(id)}?truncate=${truncate}`);
export const remove = (vhost, name, id) => del(`${base(vhost, name)}/${path(id)}`);
export const rawAddress = (vhost, name, id) => `api/${base(vhost, name)}/${path(id)}?raw=1`;
export const search = (vhost, name, body, signal) => lines(`${base(vhost, name)}/search`, body, signal);
export const act = (vhost, name, verb, body) => post(`${base(vhost, name)}/${verb}`, body);
export const tailAddress = (vhost, name, mode) => `api/${base(vhost, name)}/tail?mode=${mode}`;
