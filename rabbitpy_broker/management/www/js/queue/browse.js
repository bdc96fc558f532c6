// Requests for the messages of a queue. Looking takes nothing, marks nothing and moves nothing.
import { get, post, del, lines, path } from "../core/api.js";

const base = (vhost, name) => `queues/${path(vhost, name)}/messages`;
export const PAGE = 50;
export const PREVIEW_BYTES = 16384;

export function page(vhost, name, { state = "ready", order = "head", after, before, offset, time, limit = PAGE, truncate = PREVIEW_BYTES }, signal) {
  const query = new URLSearchParams({ state, order, limit, truncate });
  if (after) query.set("after", after);
  if (before) query.set("before", before);
  if (!after && !before && offset !== undefined) query.set("offset", offset);
  if (!after && !before && time !== undefined) query.set("time", time);
  return get(`${base(vhost, name)}?${query}`, { signal });
}

export const one = (vhost, name, id, truncate = 1 << 20) => get(`${base(vhost, name)}/${path(id)}?truncate=${truncate}`);
export const remove = (vhost, name, id) => del(`${base(vhost, name)}/${path(id)}`);
export const rawAddress = (vhost, name, id) => `api/${base(vhost, name)}/${path(id)}?raw=1`;
export const search = (vhost, name, body, signal) => lines(`${base(vhost, name)}/search`, body, signal);
export const replace = (vhost, name, id, body) => post(`${base(vhost, name)}/${path(id)}/replace`, body);
export const copies = (vhost, body, signal) => lines(`messages/${path(vhost)}/copies`, body, signal);
export const idOf = (item) => item.cursor;

const SEQS_MAX = 1000;

/**
 * Does something to chosen messages: {seqs} or {filter, up_to_seq}. The broker does as much as it may in one request; what is left is asked for
 * again, so that the answer is for all.
 */
export async function act(vhost, name, verb, { seqs, ...rest }) {
  const whole = { matched: 0, done: 0, skipped: [], skipped_count: 0, complete: true };
  const parts = seqs ? Array.from({ length: Math.ceil(seqs.length / SEQS_MAX) }, (_, i) => ({ ...rest, seqs: seqs.slice(i * SEQS_MAX, (i + 1) * SEQS_MAX) })) : [rest];
  while (parts.length) {
    const part = parts.shift();
    const found = await post(`${base(vhost, name)}/${verb}`, part);
    for (const key of ["matched", "done", "skipped_count"]) whole[key] += found[key];
    whole.skipped.push(...found.skipped.slice(0, SEQS_MAX - whole.skipped.length));
    if (found.fault) throw new Error(`${found.fault.reason ?? found.fault.error ?? "it failed"}; ${found.done} were done before`);
    if (!found.complete && part.filter && found.at && found.at !== part.after) parts.unshift({ ...part, after: found.at });
    else if (!found.complete) whole.complete = false;
  }
  return whole;
}
export const tailAddress = (vhost, name) => `api/${base(vhost, name)}/tail?limit=50`;
export const exchangeTailAddress = (vhost, name) => `api/exchanges/${path(vhost, name)}/tail?limit=50`;
