// Forms that declare, bind and publish.
import { html, useState, useMemo } from "../core/html.js";
import { put, post, path, exchangeName } from "../core/api.js";
import { go, queueAddress, exchangeAddress } from "../core/router.js";
import { chosenVhost } from "../core/prefs.js";
import { duration, int, bytes, plural } from "../core/format.js";
import { Button, Choice, Check, Text, Field, FormDialog, Icon, Note, Segmented, toast } from "./bits.js";
import { useVhosts } from "./vhost.js";

const TYPES = { number: "Number", string: "Text", boolean: "Yes/no", json: "JSON" };

function typed({ type, value }) {
  if (type === "number") {
    if (value.trim() === "" || Number.isNaN(Number(value))) throw new Error(`“${value}” is no number`);
    return Number(value);
  }
  if (type === "boolean") return value === "true" || value === true;
  if (type === "json") return parseJson(value, "the value");
  return value;
}

export function parseJson(text, what) {
  try {
    return JSON.parse(text);
  } catch (error) {
    throw new Error(`${what} is no JSON: ${error.message}`);
  }
}

export const toObject = (rows) => Object.fromEntries(rows.filter((row) => row.name.trim()).map((row) => [row.name.trim(), typed(row)]));
export const toRows = (object) => Object.entries(object ?? {}).map(([name, value]) => {
  const type = typeof value === "number" ? "number" : typeof value === "boolean" ? "boolean" : typeof value === "string" ? "string" : "json";
  return { name, type, value: type === "json" ? JSON.stringify(value) : String(value) };
});

/** Names with typed values: arguments, headers, a policy's definition. `known` are those offered: [name, type, hint]. */
export function ArgumentsEditor({ label, rows, onRows, known = [], add = "Add" }) {
  const change = (i, changes) => onRows(rows.map((row, at) => (at === i ? { ...row, ...changes } : row)));
  const types = Object.fromEntries(known.map(([name, type]) => [name, type]));
  const list = useMemo(() => `args-${Math.random().toString(36).slice(2)}`, []);
  return html`<fieldset style=${{ border: 0, margin: 0, padding: 0, minWidth: 0 }} class="stack tight"><legend class="label" style=${{ padding: 0 }}>${label}</legend>
    <datalist id=${list}>${known.map(([name]) => html`<option value=${name} />`)}</datalist>
    ${rows.map((row, i) => html`<div class="row tight" key=${i}>
      <input class="input mono" style=${{ flex: "3 1 120px" }} aria-label=${`${label}: name`} placeholder="name" list=${list} value=${row.name} onInput=${(event) => { const name = event.currentTarget.value; change(i, types[name] ? { name, type: types[name], value: types[name] === "boolean" ? "true" : row.value } : { name }); }} />
      <select aria-label=${`${label}: type`} style=${{ flex: "0 1 92px" }} value=${row.type} onChange=${(event) => change(i, { type: event.currentTarget.value, value: event.currentTarget.value === "boolean" ? "true" : row.value })}>${Object.entries(TYPES).map(([id, text]) => html`<option value=${id} selected=${id === row.type}>${text}</option>`)}</select>
      ${row.type === "boolean" ? html`<select aria-label=${`${label}: value`} style=${{ flex: "3 1 100px" }} value=${row.value} onChange=${(event) => change(i, { value: event.currentTarget.value })}><option value="true">yes</option><option value="false" selected=${row.value === "false"}>no</option></select>` : html`<input class="input mono" style=${{ flex: "3 1 100px" }} aria-label=${`${label}: value`} placeholder="value" value=${row.value} onInput=${(event) => change(i, { value: event.currentTarget.value })} />`}
      <${Button} icon="close" label="Remove" kind="ghost" small onClick=${() => onRows(rows.filter((_, at) => at !== i))} /></div>`)}
    <div class="row wrapped tight"><${Button} small icon="plus" onClick=${() => onRows([...rows, { name: "", type: "string", value: "" }])}>${add}<//>
      ${known.filter(([name, , , quick]) => quick && !rows.some((row) => row.name === name)).map(([name, type, hint, quick]) => html`<${Button} small kind="ghost" title=${hint} onClick=${() => onRows([...rows, { name, type, value: type === "boolean" ? "true" : "" }])}>${quick}<//>`)}</div></fieldset>`;
}

export const QUEUE_ARGUMENTS = [
  ["x-message-ttl", "number", "Milliseconds that a message lives", "Message TTL"], ["x-expires", "number", "Milliseconds without use after which the queue goes", "Expires"],
  ["x-max-length", "number", "Ready messages at most", "Max length"], ["x-max-length-bytes", "number", "Bytes of ready messages at most", "Max bytes"],
  ["x-overflow", "string", "drop-head, reject-publish or reject-publish-dlx", "Overflow"], ["x-dead-letter-exchange", "string", "Where rejected and expired messages go", "Dead-letter exchange"],
  ["x-dead-letter-routing-key", "string", "Their routing key", "Dead-letter key"], ["x-single-active-consumer", "boolean", "One consumer at a time", "Single active consumer"],
  ["x-max-priority", "number", "Priorities from 0 to this", "Priorities"], ["x-delivery-limit", "number", "Deliveries of a message at most (quorum)"], ["x-confirm-mode", "string", "When a publish is confirmed"], ["x-queue-mode", "string", "lazy or default"],
];

const STREAM_ARGUMENTS = [["x-max-age", "string", "How long messages are kept: 7D, 12h", "Max age"], ["x-max-length-bytes", "number", "Bytes that are kept", "Max bytes"], ["x-stream-max-segment-size-bytes", "number", "Bytes of a segment: what is dropped at once", "Segment size"]];
const NOT_QUORUM = ["x-max-priority", "x-queue-mode", "x-confirm-mode"];

/** What a type of queue may be declared with; those with a title have a button. */
function argumentsOf(type) {
  if (type === "stream") return STREAM_ARGUMENTS;
  if (type !== "quorum") return QUEUE_ARGUMENTS;
  return QUEUE_ARGUMENTS.filter(([name]) => !NOT_QUORUM.includes(name)).map((one) => (one[0] === "x-delivery-limit" ? ["x-delivery-limit", "number", "How often a message may come back", "Delivery limit"] : one));
}

function VhostField({ value, onValue, fixed }) {
  const names = useVhosts();
  if (fixed) return null;
  return html`<${Choice} label="Virtual host" value=${value} onValue=${onValue} options=${names.includes(value) || !names.length ? (names.length ? names : [value]) : [value, ...names]} />`;
}

export function QueueForm({ onClose, vhost: given }) {
  const [vhost, setVhost] = useState(given ?? (chosenVhost.value || "/"));
  const [name, setName] = useState("");
  const [type, setType] = useState("classic");
  const [durable, setDurable] = useState(true);
  const [autoDelete, setAutoDelete] = useState(false);
  const [rows, setRows] = useState([]);
  const run = async () => {
    const args = { ...toObject(rows), ...(type === "classic" ? {} : { "x-queue-type": type }) };
    await put(`queues/${path(vhost, name)}`, { durable, auto_delete: autoDelete, arguments: args });
    toast(`Queue ${name} is declared`);
    go(queueAddress(vhost, name).slice(1));
  };
  return html`<${FormDialog} title="Declare a queue" action="Declare" run=${run} onClose=${onClose} disabled=${!name}>
    <div class="fields"><${Text} label="Name" value=${name} onValue=${setName} autofocus required mono full /><${VhostField} value=${vhost} onValue=${setVhost} />
    <${Choice} label="Type" value=${type} onValue=${(next) => { setType(next); if (next !== "classic") { setDurable(true); setAutoDelete(false); } }} options=${[["classic", "Classic"], ["quorum", "Quorum"], ["stream", "Stream"]]} /></div>
    <div class="row wrapped"><${Check} label="Durable" value=${durable} onValue=${setDurable} disabled=${type !== "classic"} /><${Check} label="Auto-delete" value=${autoDelete} onValue=${setAutoDelete} disabled=${type !== "classic"} /></div>
    <${ArgumentsEditor} label="Arguments" rows=${rows} onRows=${setRows} known=${argumentsOf(type)} /><//>`;
}

export function ExchangeForm({ onClose, types = ["direct", "fanout", "topic", "headers"], vhost: given }) {
  const [vhost, setVhost] = useState(given ?? (chosenVhost.value || "/"));
  const [name, setName] = useState("");
  const [type, setType] = useState("direct");
  const [flags, setFlags] = useState({ durable: true, auto_delete: false, internal: false });
  const [rows, setRows] = useState([]);
  const run = async () => {
    await put(`exchanges/${path(vhost, name)}`, { type, ...flags, arguments: toObject(rows) });
    toast(`Exchange ${name} is declared`);
    go(exchangeAddress(vhost, name).slice(1));
  };
  return html`<${FormDialog} title="Declare an exchange" action="Declare" run=${run} onClose=${onClose} disabled=${!name}>
    <div class="fields"><${Text} label="Name" value=${name} onValue=${setName} autofocus required mono full /><${VhostField} value=${vhost} onValue=${setVhost} /><${Choice} label="Type" value=${type} onValue=${setType} options=${types} /></div>
    <div class="row wrapped">${[["durable", "Durable"], ["auto_delete", "Auto-delete"], ["internal", "Internal"]].map(([id, text]) => html`<${Check} label=${text} value=${flags[id]} onValue=${(value) => setFlags({ ...flags, [id]: value })} />`)}</div>
    <${ArgumentsEditor} label="Arguments" rows=${rows} onRows=${setRows} known=${[["alternate-exchange", "string", "Where unroutable messages go", "Alternate exchange"], ["x-delayed-type", "string", "The type behind a delayed exchange"], ["hash-header", "string", "The header that is hashed"]]} /><//>`;
}

/** Binds: with `queue` given to it, from an exchange; with `source` given from it, to a queue or exchange. */
export function BindForm({ onClose, vhost, queue, source, onDone }) {
  const [from, setFrom] = useState(source ?? "");
  const [kind, setKind] = useState("q");
  const [destination, setDestination] = useState(queue ?? "");
  const [key, setKey] = useState("");
  const [rows, setRows] = useState([]);
  const run = async () => {
    await post(`bindings/${path(vhost)}/e/${path(exchangeName(from))}/${kind}/${path(destination)}`, { routing_key: key, arguments: toObject(rows) });
    toast("Bound");
    onDone?.();
  };
  return html`<${FormDialog} title=${queue !== undefined ? `Bind ${queue}` : `Bind to ${source}`} action="Bind" run=${run} onClose=${onClose} disabled=${!from || !destination}>
    <div class="fields">${queue !== undefined ? html`<${Text} label="From exchange" value=${from} onValue=${setFrom} required mono autofocus full />` : html`<${Choice} label="To" value=${kind} onValue=${setKind} options=${[["q", "Queue"], ["e", "Exchange"]]} /><${Text} label="Name" value=${destination} onValue=${setDestination} required mono autofocus />`}
    <${Text} label="Routing key" value=${key} onValue=${setKey} mono full /></div>
    <${ArgumentsEditor} label="Arguments" rows=${rows} onRows=${setRows} known=${[["x-match", "string", "all or any (headers exchange)", "x-match"]]} /><//>`;
}

const PROPERTIES = [["content_type", "Content type"], ["content_encoding", "Content encoding"], ["correlation_id", "Correlation id"], ["reply_to", "Reply to"], ["message_id", "Message id"], ["type", "Type"], ["app_id", "App id"], ["user_id", "User id"], ["expiration", "Expiration (ms)"]];

async function base64Of(file) {
  const bytes_ = new Uint8Array(await file.arrayBuffer());
  let text = "";
  for (let i = 0; i < bytes_.length; i += 32768) text += String.fromCharCode(...bytes_.subarray(i, i + 32768));
  return btoa(text);
}

/** Publishes one message or many, and says where it went and how long the confirm took. `first` fills the form in. */
export function PublishForm({ onClose, vhost, exchange = "", routingKey = "", fixedKey, first, title, instead }) {
  const [to, setTo] = useState(exchange);
  const [key, setKey] = useState(routingKey);
  const [body, setBody] = useState(first?.payload ?? "");
  const [encoding, setEncoding] = useState(first?.payload_encoding ?? "string");
  const [file, setFile] = useState(null);
  const [copies, setCopies] = useState("1");
  const { headers: firstHeaders, delivery_mode: firstMode, priority: firstPriority, timestamp, ...firstProperties } = first?.properties ?? {};
  const [persistent, setPersistent] = useState((firstMode ?? 2) === 2);
  const [priority, setPriority] = useState(firstPriority == null ? "" : String(firstPriority));
  const [properties, setProperties] = useState(firstProperties);
  const [headers, setHeaders] = useState(toRows(firstHeaders));
  const [more, setMore] = useState(Boolean(first && (Object.keys(firstProperties).length || firstHeaders)));
  const [result, setResult] = useState(null);
  const [drops, setDrops] = useState(false);
  const invalid = encoding === "string" && /json/.test(properties.content_type ?? "") && body && (() => { try { JSON.parse(body); return ""; } catch (error) { return `No JSON: ${error.message}`; } })();
  const run = async () => {
    const given = Object.fromEntries(Object.entries(properties).filter(([, value]) => value !== "" && value != null));
    const table = toObject(headers);
    const message = {
      routing_key: key, payload: file ? await base64Of(file) : body, payload_encoding: file ? "base64" : encoding,
      properties: { ...given, delivery_mode: persistent ? 2 : 1, ...(priority !== "" ? { priority: Number(priority) } : {}), ...(Object.keys(table).length ? { headers: table } : {}) },
    };
    if (instead && drops) { await instead({ exchange: to, ...message }); return true; }
    const count = Math.max(1, Math.min(10000, Math.floor(Number(copies)) || 1));
    const started = performance.now();
    let routed = 0;
    for (let i = 0; i < count; i += 1) {
      const answer = await post(`exchanges/${path(vhost, exchangeName(to))}/publish`, message);
      routed += answer.routed ? 1 : 0;
      if (count > 1 && i % 25 === 0) setResult({ count: i + 1, routed, ms: performance.now() - started, going: true });
    }
    setResult({ count, routed, ms: performance.now() - started });
    return false;
  };
  return html`<${FormDialog} wide title=${title ?? "Publish"} action="Publish" run=${run} onClose=${onClose}>
    <div class="fields">${!fixedKey && html`<${Text} label="Exchange" hint="Empty: the default exchange; the key is then a queue's name" value=${to} onValue=${setTo} mono />`}<${Text} label="Routing key" value=${key} onValue=${setKey} mono readonly=${Boolean(fixedKey)} />
      <${Text} label="Copies" type="number" min="1" max="10000" value=${copies} onValue=${setCopies} /><${Text} label="Content type" value=${properties.content_type ?? ""} onValue=${(value) => setProperties({ ...properties, content_type: value })} mono list=${["application/json", "text/plain", "application/x-msgpack", "application/octet-stream"]} /></div>
    ${file ? html`<${Note}>The body is the file <b>${file.name}</b> (${bytes(file.size)}). <a href="#" onClick=${(event) => { event.preventDefault(); setFile(null); }}>Take the text instead</a><//>` : html`<${Text} label="Body" rows=${8} value=${body} onValue=${setBody} mono invalid=${invalid || undefined} />`}
    <div class="row wrapped"><${Segmented} label="How the text is meant" value=${encoding} onValue=${setEncoding} options=${[["string", "Text"], ["base64", "Base64"]]} />
      <label class="btn small"><${Icon} name="upload" />File<input class="sr" type="file" onChange=${(event) => setFile(event.currentTarget.files[0] ?? null)} /></label>
      <${Check} label="Persistent" value=${persistent} onValue=${setPersistent} /><span class="grow"></span><${Button} small kind="ghost" aria-expanded=${String(more)} onClick=${() => setMore(!more)}>${more ? "Fewer" : "Properties and headers"}<//></div>
    ${more && html`<div class="fields">${PROPERTIES.slice(1).map(([id, text]) => html`<${Text} label=${text} value=${properties[id] ?? ""} onValue=${(value) => setProperties({ ...properties, [id]: value })} mono />`)}<${Text} label="Priority" type="number" min="0" max="255" value=${priority} onValue=${setPriority} /></div>
      <${ArgumentsEditor} label="Headers" rows=${headers} onRows=${setHeaders} add="Add header" />`}
    ${instead && html`<${Check} label="Take the original out of the queue, in one step" value=${drops} onValue=${setDrops} />`}
    ${result && html`<${Note} kind=${result.going ? "" : result.routed === result.count ? "good" : "warn"}>${result.going ? "Publishing… " : ""}${plural(result.count, "message")} confirmed in ${duration(result.ms / 1000)}${result.count > 1 ? ` (${int(result.count / (result.ms / 1000))} /s)` : ""}. ${result.routed === result.count ? (result.count === 1 ? "It reached a queue." : "All reached a queue.") : result.routed ? `${int(result.count - result.routed)} reached no queue.` : "No queue is bound for it: the message is gone."}<//>`}<//>`;
}
