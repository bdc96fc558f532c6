// One event stream for all tabs of a browser. It runs as a SharedWorker; where there is none, each tab has a hub of its own.
// A tab says which topics it wants, and none while it is hidden; the stream is for all of them together, and is closed when nobody
// wants anything. What must stay true: whoever begins to want a table gets a snapshot of it before any delta, and no tick is left out
// when the stream is opened anew: `since` and `known` have the broker tell what has changed meanwhile.
const SILENT_MS = 45_000; // a tab says every few seconds that it is there; one that has crashed does not

export class Hub {
  constructor() {
    this.clients = new Map(); // client -> {topics, send, heard}
    this.source = null;
    this.asked = "";
    this.last = ""; // the id of the last tick that was seen
    this.known = new Set(); // topics that all who want them have up to `last`
    this.isNewlyWanted = false; // somebody waits for a snapshot
    this.timer = 0;
  }

  /** `message` is {topics, url}, {alive} or {bye}; `send` takes what comes back: {kind, data} of events, {state}. */
  hear(client, message, send) {
    if (message.bye) this.clients.delete(client);
    else if (message.topics) {
      const before = new Set(this.clients.get(client)?.topics);
      for (const topic of message.topics) if (!before.has(topic) || message.again) { this.known.delete(topic); this.isNewlyWanted = true; }
      this.clients.set(client, { topics: message.topics, send, heard: Date.now() });
      this.url = message.url;
      if (message.again) this.close();
    } else if (this.clients.has(client)) this.clients.get(client).heard = Date.now();
    this.settle();
  }

  wanted() {
    return [...new Set([...this.clients.values()].flatMap((one) => one.topics))].sort();
  }

  settle() {
    const oldest = Date.now() - SILENT_MS;
    for (const [client, { heard }] of this.clients) if (heard < oldest) this.clients.delete(client);
    const wanted = this.wanted();
    for (const topic of this.known) if (!wanted.includes(topic)) this.known.delete(topic);
    if (!wanted.length) { this.close(); return; }
    if (this.source && wanted.join(",") === this.asked && !this.isNewlyWanted) return;
    clearTimeout(this.timer);
    this.timer = setTimeout(() => this.open(), 15); // a page asks for several at once
  }

  open() {
    this.close();
    const asked = this.wanted().join(",");
    const query = new URLSearchParams({ topics: asked });
    if (this.last) { query.set("since", this.last); query.set("known", [...this.known].join(",")); }
    const made = new EventSource(`${this.url}?${query}`);
    this.source = made;
    this.asked = asked;
    this.isNewlyWanted = false;
    for (const kind of ["snapshot", "delta", "gone", "log"]) made.addEventListener(kind, (event) => this.tell(kind, event));
    made.addEventListener("end", () => { if (this.source === made) { this.close(); this.all({ state: "end" }); } });
    made.onopen = () => this.all({ state: "open" });
    made.onerror = () => {
      if (this.source !== made) return;
      const over = made.readyState === EventSource.CLOSED;
      if (over) this.close();
      this.all({ state: over ? "closed" : "error" });
    };
  }

  close() {
    clearTimeout(this.timer);
    this.source?.close();
    this.source = null;
  }

  tell(kind, event) {
    if (event.lastEventId) this.last = event.lastEventId;
    const topic = JSON.parse(/^\{"topic":("(?:[^"\\]|\\.)*")/.exec(event.data)[1]);
    if (kind === "snapshot" && !/"done":false\}?$/.test(event.data.slice(0, event.data.indexOf(',"rows":[')))) this.known.add(topic);
    for (const { topics, send } of this.clients.values()) if (topics.includes(topic)) send({ kind, data: event.data });
  }

  all(message) {
    for (const { send } of this.clients.values()) send(message);
  }
}

if (typeof SharedWorkerGlobalScope !== "undefined") {
  const hub = new Hub();
  self.onconnect = ({ ports: [port] }) => { port.onmessage = ({ data }) => hub.hear(port, data, (message) => port.postMessage(message)); };
}
