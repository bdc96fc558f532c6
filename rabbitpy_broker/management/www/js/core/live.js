// What the broker tells as it changes: one EventSource for all that the page shows, or polling when no stream comes through.
// A page asks for topics (`overview`, `table:queues`, `queue:V/Q`); the stream is opened anew when the set of topics changes, and
// closed while the tab is hidden. What was shown stays while a new snapshot is on its way.
import { signal, batch, useEffect, useMemo } from "./html.js";
import { get, session, endSession, path } from "./api.js";

const POLL_MS = 2000;
const TRY_AGAIN_MS = 20000;
const SILENCE_MS = 6000; // a stream that says nothing for so long after its opening is held back by a proxy
const HIDDEN_MS = 5000;
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

// What has been asked for: topic -> {users, value: Signal | Table, freed: ms}
const topics = new Map();
let source = null;
let asked = "";
let polling = 0;
let retry = 0;
let silence = 0;
let reopening = 0;
let hiding = 0;

const isTable = (topic) => topic.startsWith("table:");
const isLog = (topic) => topic === "log";

function entry(topic) {
  let found = topics.get(topic);
  if (!found) {
    const value = isTable(topic) ? new Table(topic.slice(6).split("?")[0]) : signal(null);
    found = { users: 0, value, gone: signal(false), freed: 0 };
    topics.set(topic, found);
  }
  return found;
}

const wanted = () => [...topics].filter(([, one]) => one.users > 0).map(([topic]) => topic).sort();

function onData(kind, event) {
  clearTimeout(silence);
  const message = JSON.parse(event.data);
  const found = topics.get(message.topic);
  if (status.value !== "live") status.value = "live";
  if (message.as_of) asOf.value = message.as_of;
  if (!found) return;
  batch(() => {
    if (kind === "gone") found.gone.value = true;
    else if (found.value instanceof Table) found.value[kind](message);
    else if (kind === "snapshot") {
      found.value.value = message.value;
      found.gone.value = false;
    } else found.value.value = { ...found.value.value, ...message.value };
  });
}

function close() {
  clearTimeout(silence);
  clearTimeout(retry);
  clearInterval(polling);
  polling = 0;
  source?.close();
  source = null;
  asked = "";
}

function open() {
  const list = wanted();
  const text = list.join(",");
  if (!session.value || !list.length) { close(); return; }
  if (source && text === asked) return;
  if (document.hidden && hiding === -1) return;
  close();
  asked = text;
  const made = new EventSource(`api/events?topics=${encodeURIComponent(text)}`);
  source = made;
  made.addEventListener("snapshot", (event) => onData("snapshot", event));
  made.addEventListener("delta", (event) => onData("delta", event));
  made.addEventListener("gone", (event) => onData("gone", event));
  made.addEventListener("log", (event) => {
    const found = topics.get("log");
    if (found) found.value.value = { lines: [...(found.value.value?.lines ?? []), ...JSON.parse(event.data).lines].slice(-2000) };
    status.value = "live";
    clearTimeout(silence);
  });
  made.addEventListener("end", () => { if (source === made) { close(); retry = setTimeout(open, 1000); void poll(); } });
  made.onerror = () => {
    if (source !== made) return;
    if (made.readyState === EventSource.CLOSED) startPolling();
    else if (status.value === "live") status.value = "connecting";
  };
  silence = setTimeout(startPolling, SILENCE_MS);
}

function startPolling() {
  close();
  if (!session.value) return;
  void poll();
  polling = setInterval(poll, POLL_MS);
  retry = setTimeout(() => { close(); open(); }, TRY_AGAIN_MS);
}

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
  reopening = setTimeout(open, 15);
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
  if (document.hidden) hiding = setTimeout(() => { hiding = -1; close(); status.value = "paused"; }, HIDDEN_MS);
  else {
    hiding = 0;
    if (status.value === "paused") status.value = "connecting";
    open();
  }
});
session.subscribe((user) => {
  if (user) { changed(); return; }
  close();
  topics.clear();
  status.value = "connecting";
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
