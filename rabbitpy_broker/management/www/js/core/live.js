// What the broker tells as it changes: one stream for all tabs (hub.js), or polling when no stream comes through.
// A page asks for topics (`overview`, `table:queues`, `queue:V/Q`), and for nothing while the tab is hidden. What was shown stays while a
// new snapshot is on its way.
import { signal, batch, useEffect, useMemo } from "./html.js";
import { get, session, endSession, path } from "./api.js";
import { Hub } from "./hub.js";

const POLL_MS = 2000;
const TRY_AGAIN_MS = 20000;
const SILENCE_MS = 6000; // a stream that says nothing for so long after its opening is held back by a proxy
const HIDDEN_MS = 5000;
const ALIVE_MS = 10000;
const KEPT_MS = 120000;

export const status = signal("connecting"); // connecting, live, polling, off, paused
export const asOf = signal(0);

const keyText = (values) => values.join("\u0000");

/** A table of the broker: rows are arrays in the order of `columns`, changed in place; `version` changes when any of them did. */
export class Table {
  constructor(kind) {
    this.kind = kind;
    this.columns = [];
    this.at = {};
    this.key = [];
    this.rows = [];
    this.byKey = new Map();
    this.version = signal(0);
    this.complete = signal(false);
    this.problem = signal("");
  }

  reader(field) {
    const i = this.at[field];
    return i === undefined ? null : (row) => row[i];
  }

  value(row, field) {
    const i = this.at[field];
    return i === undefined ? undefined : row[i];
  }

  keyOf(row) {
    return keyText(this.keyAt.map((i) => row[i]));
  }

  find(...key) {
    return this.byKey.get(keyText(key));
  }

  object(row) {
    return Object.fromEntries(this.columns.map((name, i) => [name, row[i]]));
  }

  _shape(columns, key) {
    this.columns = columns;
    this.at = Object.fromEntries(columns.map((name, i) => [name, i]));
    this.key = key;
    this.keyAt = key.map((name) => this.at[name]);
  }

  _put(row) {
    const key = this.keyOf(row);
    const old = this.byKey.get(key);
    if (old) {
      for (let i = 0; i < row.length; i += 1) old[i] = row[i];
      return;
    }
    row.key = key;
    this.byKey.set(key, row);
    this.rows.push(row);
  }

  _remove(gone) {
    for (const row of gone) this.byKey.delete(row.key);
    this.rows = this.rows.filter((row) => !gone.has(row));
  }

  snapshot({ columns, key, rows, part = 0, done = true }) {
    if (part === 0) {
      if (columns.join() !== this.columns.join()) {
        this.rows = [];
        this.byKey = new Map();
      }
      this._shape(columns, key);
      this.missing = new Set(this.rows);
    }
    for (const row of rows) {
      const old = this.byKey.get(this.keyOf(row));
      if (old) this.missing?.delete(old);
      this._put(row);
    }
    if (done) {
      if (this.missing?.size) this._remove(this.missing);
      this.missing = null;
      this.complete.value = true;
    }
    this.problem.value = "";
    this.version.value += 1;
  }

  delta({ changed = [], added = [], gone = [] }) {
    if (!this.keyAt) return; // a tick that went out before the snapshot, which has it
    for (const [key, values] of changed) {
      const row = this.byKey.get(keyText(key));
      if (!row) continue;
      for (const name in values) row[this.at[name]] = values[name];
    }
    for (const row of added) this._put(row);
    if (gone.length) this._remove(new Set(gone.map((key) => this.byKey.get(keyText(key))).filter(Boolean)));
    if (changed.length || added.length || gone.length) this.version.value += 1;
  }
}

// What has been asked for: topic -> {users, value: Signal | Table, gone: Signal}
const topics = new Map();
let line = null; // to the hub: {send, close}
let asked = "";
let polling = 0;
let retry = 0;
let silence = 0;
let reopening = 0;
let hiding = 0;
let isHidden = document.hidden; // and has been for a while

const isTable = (topic) => topic.startsWith("table:");
const isLog = (topic) => topic === "log";

function entry(topic) {
  let found = topics.get(topic);
  if (!found) {
    const value = isTable(topic) ? new Table(topic.slice(6).split("?")[0]) : signal(null);
    found = { users: 0, value, gone: signal(false) };
    topics.set(topic, found);
  }
  return found;
}

const wanted = () => (session.value && !isHidden ? [...topics].filter(([, one]) => one.users > 0).map(([topic]) => topic).sort() : []);

/** The line to the hub: a worker that all tabs of this browser and user share, or a hub of this page where there are no such workers. */
function connect(user) {
  const own = () => {
    const hub = new Hub();
    const me = {};
    return { send: (message) => hub.hear(me, message, hear), close: () => hub.hear(me, { bye: true }) };
  };
  if (typeof SharedWorker === "undefined") return own();
  const worker = new SharedWorker(import.meta.resolve("./hub.js"), { type: "module", name: user });
  worker.port.onmessage = ({ data }) => hear(data);
  worker.onerror = () => { if (line?.worker === worker) { line = own(); asked = ""; open(); } }; // a browser without modules in workers
  return { worker, send: (message) => worker.port.postMessage(message), close: () => { worker.port.postMessage({ bye: true }); worker.port.close(); } };
}

function hear({ kind, data, state }) {
  if (!line || !asked) return;
  if (kind) { stopPolling(); stopWaiting(); onData(kind, JSON.parse(data)); }
  else if (state === "closed") startPolling();
  else if (state === "end") { void poll(); retry = setTimeout(() => open(true), 1000); }
  else if (state === "error") { if (status.value === "live") status.value = "connecting"; expectNews(); } // the browser tries again by itself
}

function onData(kind, message) {
  const found = topics.get(message.topic);
  if (status.value !== "live") status.value = "live";
  if (message.as_of) asOf.value = message.as_of;
  if (!found) return;
  batch(() => {
    if (kind === "gone") found.gone.value = true;
    else if (kind === "log") {
      const before = found.value.value?.lines ?? [];
      const last = before.at(-1)?.id ?? 0;
      found.value.value = { lines: [...before, ...message.lines.filter((one) => one.id > last)].slice(-2000) };
    } else if (found.value instanceof Table) found.value[kind](message);
    else if (kind === "snapshot") {
      found.value.value = message.value;
      found.gone.value = false;
    } else found.value.value = { ...found.value.value, ...message.value };
  });
}

function expectNews() {
  if (!polling) silence ||= setTimeout(startPolling, SILENCE_MS);
}

function stopWaiting() {
  clearTimeout(silence);
  silence = 0;
}

function stopPolling() {
  clearTimeout(retry);
  clearInterval(polling);
  polling = 0;
}

/** Tells the hub what this tab wants; `again`: by a new stream in any case. */
function open(again = false) {
  const list = wanted();
  const text = list.join(",");
  if (text === asked && !again) return;
  asked = text;
  if (!list.length) { stopWaiting(); stopPolling(); line?.send({ topics: [] }); return; }
  line ??= connect(session.value.name);
  line.send({ topics: list, url: new URL("api/events", document.baseURI).href, again });
  expectNews();
}

function startPolling() {
  stopPolling();
  stopWaiting();
  if (!wanted().length) return;
  void poll();
  polling = setInterval(poll, POLL_MS);
  retry = setTimeout(() => open(true), TRY_AGAIN_MS);
}

setInterval(() => { if (asked) line?.send({ alive: true }); }, ALIVE_MS);
addEventListener("pagehide", () => { line?.close(); line = null; asked = ""; });
addEventListener("pageshow", (event) => { if (event.persisted) open(); });

const details = (stats, name) => stats?.[`${name}_details`]?.rate ?? 0;

/** A queue as the classic API shows it, in the words of the table. */
export function queueOfClassic(queue) {
  const stats = queue.message_stats;
  return {
    ...queue, publish_rate: details(stats, "publish"), deliver_rate: details(stats, "deliver_get"), ack_rate: details(stats, "ack"),
    redeliver_rate: details(stats, "redeliver"), consumers: queue.consumers,
  };
}

function overviewOfClassic(overview) {
  const names = ["publish", "confirm", "deliver_get", "deliver", "deliver_no_ack", "ack", "redeliver", "return_unroutable", "drop_unroutable"];
  const rates = Object.fromEntries(names.map((name) => [name, details(overview.message_stats, name)]));
  return { totals: { ...overview.object_totals, ...overview.queue_totals }, rates, node: null, alarms: [] };
}

async function pollOne(topic, found) {
  if (isTable(topic)) {
    const [kind, query] = topic.slice(6).split("?");
    found.value.snapshot(await get(`table/${kind}${query ? `?${query}` : ""}`));
  } else if (topic === "overview") found.value.value = overviewOfClassic(await get("overview?columns=object_totals,queue_totals,message_stats"));
  else if (isLog(topic)) found.value.value = await get("log?limit=1000");
  else if (topic.startsWith("queue:")) {
    try {
      found.value.value = queueOfClassic(await get(`queues/${topic.slice(6)}`));
    } catch (error) {
      if (error.status !== 404) throw error;
      found.gone.value = true;
    }
  }
}

async function poll() {
  for (const topic of wanted()) {
    const found = topics.get(topic);
    try {
      await pollOne(topic, found);
      if (polling) status.value = "polling";
    } catch (error) {
      if (error.status === 0) status.value = "off";
      else if (found?.value instanceof Table) found.value.problem.value = error.message;
      if (error.status === 401 && !(await get("session", { login: true }).catch((again) => again.status !== 401))) endSession("Your session has ended.");
    }
    if (!session.value) return;
  }
}

function changed() {
  clearTimeout(reopening);
  reopening = setTimeout(() => open(), 15);
}

/** Asks for a topic; what comes back is told when it is not needed any more. */
export function follow(topic) {
  const found = entry(topic);
  found.users += 1;
  changed();
  return () => {
    found.users -= 1;
    if (found.users === 0) {
      if (isLog(topic)) topics.delete(topic);
      else setTimeout(() => { if (found.users === 0) topics.delete(topic); }, KEPT_MS);
    }
    changed();
  };
}

document.addEventListener("visibilitychange", () => {
  clearTimeout(hiding);
  if (document.hidden) hiding = setTimeout(() => { isHidden = true; open(); status.value = "paused"; }, HIDDEN_MS);
  else {
    isHidden = false;
    if (status.value === "paused") status.value = "connecting";
    open();
  }
});
let user = null;
session.subscribe((now) => {
  if (now?.name === user) return;
  user = now?.name ?? null;
  stopPolling();
  stopWaiting();
  line?.close();
  line = null;
  asked = "";
  status.value = "connecting";
  if (user === null) topics.clear();
  else changed();
});

function useEntry(topic) {
  const found = useMemo(() => (topic ? entry(topic) : null), [topic, session.value]);
  useEffect(() => (topic ? follow(topic) : undefined), [topic, session.value]);
  return found;
}

/** The value of a topic: null until the first snapshot. */
export function useTopic(topic) {
  return useEntry(topic)?.value.value ?? null;
}

export function useQueue(vhost, name) {
  const found = useEntry(`queue:${path(vhost, name)}`);
  return { queue: found.value.value, gone: found.gone.value };
}

/** A live table; its `version` is what to look at. */
export function useTable(kind, query = "") {
  return useEntry(`table:${kind}${query ? `?${query}` : ""}`).value;
}

/** A table that is fetched when it is looked at and every few seconds after; `refresh` fetches it now. */
export function useFetchedTable(kind, query = "", every = 5000) {
  const table = useMemo(() => new Table(kind), [kind, query]);
  const refresh = async () => {
    try {
      table.snapshot(await get(`table/${kind}${query ? `?${query}` : ""}`));
    } catch (error) {
      table.problem.value = error.message;
      table.complete.value = true;
    }
  };
  useEffect(() => {
    void refresh();
    const timer = setInterval(() => { if (!document.hidden) void refresh(); }, every);
    return () => clearInterval(timer);
  }, [table]);
  return [table, refresh];
}
