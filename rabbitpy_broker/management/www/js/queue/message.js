// One message: what it is, what its body means, where it has been. Bodies are text nodes or bytes to save, never HTML.
import { html, useState, useEffect, useRef } from "../core/html.js";
import { path } from "../core/api.js";
import { to, queueAddress } from "../core/router.js";
import { bytes, int, when, exchangeLabel, duration, download, plural } from "../core/format.js";
import { Arguments, Badge, Button, Card, Icon, KV, Menu, Note, Segmented, Time, copy } from "../ui/bits.js";
import { decode, hexLines } from "./decode.js";
import { copies } from "./browse.js";

const TREE_MAX = 200;

function Leaf({ value }) {
  if (value === null) return html`<span class="lit">null</span>`;
  if (typeof value === "string") return html`<span class="str">${JSON.stringify(value)}</span>`;
  if (typeof value === "number") return html`<span class="n">${String(value)}</span>`;
  return html`<span class="lit">${String(value)}</span>`;
}

/** JSON as a tree that opens. What is long is cut, with its length. */
export function Tree({ value, name, depth = 0 }) {
  const label = name !== undefined && html`<span class="key">${name}</span>: `;
  if (value === null || typeof value !== "object") return html`<div class="leaf">${label}<${Leaf} value=${value} /></div>`;
  const entries = Array.isArray(value) ? value.map((one, i) => [i, one]) : Object.entries(value);
  const [open, close] = Array.isArray(value) ? "[]" : "{}";
  if (!entries.length) return html`<div class="leaf">${label}${open}${close}</div>`;
  return html`<details open=${depth < 3}><summary>${label}<span class="muted">${open}${entries.length}${close}</span></summary><div>${entries.slice(0, TREE_MAX).map(([key, one]) => html`<${Tree} key=${key} name=${key} value=${one} depth=${depth + 1} />`)}${entries.length > TREE_MAX && html`<div class="leaf muted">${entries.length - TREE_MAX} more</div>`}</div></details>`;
}

function Celery({ celery }) {
  const { call } = celery;
  return html`<div class="stack tight"><${KV} items=${[["Task", html`<b class="mono">${celery.task}</b>`], ["Id", html`<span class="mono">${celery.id}</span>`], celery.retries != null && ["Retries", celery.retries], celery.eta && ["Due", html`<${Time} at=${celery.eta} />`], celery.origin && ["From", celery.origin]]} />
    ${call && html`<div class="payload"><div class="jt"><${Tree} name="args" value=${call.args} /><${Tree} name="kwargs" value=${call.kwargs} /><${Tree} name="embed" value=${call.embed} depth=${3} /></div></div>`}</div>`;
}

export function Body({ message }) {
  const [made, setMade] = useState(null);
  const [view, setView] = useState("");
  useEffect(() => { let here = true; setMade(null); setView(""); decode(message).then((found) => { if (here) setMade(found); }); return () => { here = false; }; }, [message]);
  if (!made) return html`<div class="skeleton" style=${{ height: "80px" }}></div>`;
  const views = [made.celery && ["celery", "Celery"], made.value !== undefined && ["tree", made.kind], made.text !== null && ["text", "Text"], ["hex", "Hex"]].filter(Boolean);
  const shown = views.some(([id]) => id === view) ? view : views[0][0];
  const pretty = () => (made.kind === "JSON" && !message.truncated ? JSON.stringify(made.value, null, 2) : made.text);
  return html`<div class="stack tight"><div class="row wrapped"><${Segmented} label="Form of the body" value=${shown} onValue=${setView} options=${views} /><span class="small muted">${bytes(message.payload_bytes)}${made.steps.length ? ` · ${made.steps.join(" → ")}` : ""}</span><span class="grow"></span><${Button} small kind="ghost" icon="copy" label="Copy the body" onClick=${() => copy(pretty() ?? hexLines(made.bytes, 1 << 20), "Body copied")} /></div>
    ${message.truncated && html`<${Note}>Only the first ${bytes(made.bytes.length)} are shown.<//>`}
    ${shown === "celery" ? html`<${Celery} celery=${made.celery} />` : shown === "tree" ? html`<div class="payload" tabindex="0" role="region" aria-label="Body as a tree"><div class="jt"><${Tree} value=${made.value} /></div></div>` : shown === "text" ? html`<pre class="payload" tabindex="0" aria-label="Body as text">${pretty()}</pre>` : html`<pre class="payload hex" tabindex="0" aria-label="Body as bytes">${hexLines(made.bytes)}</pre>`}</div>`;
}

/** Where a message died and came again, the first death on top; each entry counts its repetitions. */
export function DeathTimeline({ message, vhost, queue }) {
  const list = [...deathsOf(message)].reverse();
  return html`<ol class="timeline">${list.map((one) => html`<li><div class="row wrapped tight"><a href=${queueAddress(vhost, one.queue ?? "")}><b>${one.queue}</b></a><${Badge} kind=${one.reason === "rejected" || one.reason === "delivery_limit" ? "bad" : "warn"}>${String(one.reason ?? "").replaceAll("_", " ")}<//>${Number(one.count) > 1 && html`<${Badge}>${int(Number(one.count))} times<//>`}</div>
    <div class="small muted">${one.time != null && html`<${Time} at=${typeof one.time === "object" ? one.time.timestamp : one.time} /> · `}came by ${exchangeLabel(one.exchange)} with ${one.routing_keys.map((key) => html`<code>${key || "(empty key)"}</code> `)}</div></li>`)}
    <li class="now"><b>${queue}</b><div class="small muted">is here now</div></li></ol>`;
}

/** The record of deaths, the last first; of a message that was got, out of its header. */
function deathsOf(message) {
  if (message.deaths) return message.deaths;
  const list = message.properties?.headers?.["x-death"];
  return Array.isArray(list) ? list.map((one) => ({ ...one, routing_keys: one["routing-keys"] ?? [] })) : [];
}
export const hasDied = (message) => deathsOf(message).length > 0;

const quote = (text) => `'${String(text).replaceAll("'", `'\\''`)}'`;
function asCurl(message, vhost) {
  const body = JSON.stringify({ routing_key: message.routing_key, payload: message.payload, payload_encoding: message.payload_encoding, properties: message.properties ?? {} });
  return `curl -u USER ${quote(new URL(`api/exchanges/${path(vhost, message.exchange || "amq.default")}/publish`, location.href.split("#")[0]).href)} -d ${quote(body)}`;
}
function asPython(message) {
  const { headers, ...properties } = message.properties ?? {};
  const given = [...Object.entries(properties).map(([name, value]) => `${name}=${JSON.stringify(value)}`), ...(headers ? [`headers=json.loads(${JSON.stringify(JSON.stringify(headers))})`] : [])];
  const body = message.payload_encoding === "base64" ? `base64.b64decode(${JSON.stringify(message.payload)})` : `${JSON.stringify(message.payload)}.encode()`;
  return `import base64, json, pika\n\nconnection = pika.BlockingConnection(pika.URLParameters("amqp://USER:PASSWORD@${location.hostname}/"))\nconnection.channel().basic_publish(\n    ${JSON.stringify(message.exchange)}, ${JSON.stringify(message.routing_key)}, ${body},\n    pika.BasicProperties(${given.join(", ")}),\n)\n`;
}
const slim = (message) => Object.fromEntries(["seq_id", "exchange", "routing_key", "redelivered", "persistent", "properties", "payload", "payload_encoding"].map((name) => [name, message[name]]));

export function CopyMenu({ message, vhost }) {
  return html`<${Menu} small icon="copy" label="Copy as"><button type="button" onClick=${() => copy(JSON.stringify(slim(message), null, 1), "Copied as JSON")}>Copy as JSON</button><button type="button" onClick=${() => copy(asCurl(message, vhost), "Copied as curl")}>Copy as curl</button><button type="button" onClick=${() => copy(asPython(message), "Copied as Python")}>Copy as Python</button><hr /><button type="button" onClick=${async () => { const made = await decode(message); download(`${message.properties?.message_id ?? message.seq_id ?? "message"}.bin`, new Blob([made.bytes])); }}><${Icon} name="download" />Save what is shown</button><//>`;
}

export function MessageView({ message, vhost, queue, plain, actions, limit }) {
  const { headers, ...properties } = message.properties ?? {};
  const holder = message.holder;
  return html`<div class="stack wide">
    ${!plain && html`<div class="row wrapped"><b>${message.stage === "stream" ? `Offset ${int(message.seq_id)}` : message.position != null ? `Position ${int(message.position)}` : `Message ${message.seq_id}`}</b>${message.stage !== "stream" && html`<${Badge} kind=${message.state === "unacked" ? "warn" : "info"}>${message.state}<//>`}${message.redelivered && html`<${Badge} kind="warn">redelivered<//>`}${message.persistent && html`<${Badge}>persistent<//>`}${message.expired && html`<${Badge} kind="bad">expired<//>`}<span class="grow"></span>${actions}</div>`}
    ${message.damaged && html`<${Note} kind="bad">The message cannot be read: ${message.damaged}<//>`}
    ${holder && html`<${Note} kind="warn">${holder.kind === "dead_letter" ? "Its dead letter waits to be taken." : html`Held by <b class="mono">${holder.kind === "get" ? "basic.get" : holder.consumer_tag}</b> of ${holder.user} on <a href=${to(["channels", holder.channel])}>${holder.channel}</a>${holder.held_at_least_s > 0 ? ` for at least ${duration(holder.held_at_least_s)}` : ""}, delivery tag ${int(holder.delivery_tag)}.`}<//>`}
    ${message.payload != null && html`<${Body} message=${message} />`}
    <${KV} items=${[["Exchange", html`<a href=${to(["exchanges", vhost, message.exchange ?? ""])}>${exchangeLabel(message.exchange)}</a>`], ["Routing key", html`<span class="mono">${message.routing_key}</span>`], message.seq_id != null && message.stage !== "stream" && ["Sequence", html`<span class="mono">${message.seq_id}${message.lane ? ` of priority ${message.lane}` : ""}</span>`], message.stage && message.stage !== "stream" && ["Stage", message.stage], message.stored_at && ["Stored", html`<${Time} at=${message.stored_at} />`], plain && ["Redelivered", message.redelivered ? "yes" : "no"], message.expires_at && ["Expires", html`<${Time} at=${message.expires_at} />`], message.delivery_count != null && ["Came back", `${plural(message.delivery_count, "time")}${limit != null ? `; the delivery limit is ${int(limit)}` : ""}`]]} />
    ${Object.keys(properties).length > 0 && html`<div class="stack tight"><h3>Properties</h3><${KV} items=${Object.entries(properties).map(([name, value]) => [name, html`<span class="mono">${name === "timestamp" ? html`${value} (${when(value)})` : String(value)}</span>`])} /></div>`}
    ${headers && Object.keys(headers).length > 0 && html`<div class="stack tight"><h3>Headers</h3><${Arguments} value=${Object.fromEntries(Object.entries(headers).filter(([name]) => name !== "x-death"))} /></div>`}
    ${hasDied(message) && html`<div class="stack tight"><h3>Dead letters</h3><${DeathTimeline} message=${message} vhost=${vhost} queue=${queue} /></div>`}
    ${!plain && (properties.message_id || properties.correlation_id) && html`<${Copies} key=${message.cursor} vhost=${vhost} properties=${properties} here=${queue} />`}</div>`;
}

/** Where else the message is: queues are looked through for its message_id or correlation_id. */
function Copies({ vhost, properties, here }) {
  const [found, setFound] = useState(null);
  const stop = useRef();
  useEffect(() => () => stop.current?.abort(), []);
  const look = async () => {
    stop.current = new AbortController();
    const result = { items: [], going: true, note: "" };
    setFound({ ...result });
    try {
      const wanted = properties.message_id ? { message_id: properties.message_id } : { correlation_id: properties.correlation_id };
      for await (const line of copies(vhost, wanted, stop.current.signal)) {
        if (line.item) result.items.push(line.item);
        if (line.end) result.note = `${int(line.end.scanned)} messages in ${plural(line.end.queues, "queue")} looked at${line.end.incomplete.length ? `; not all of ${line.end.incomplete.slice(0, 5).join(", ")}` : ""}`;
        if (line.error) result.note = line.error.reason;
        setFound({ ...result });
      }
    } catch (error) { if (error.name !== "AbortError") result.note = error.message; }
    setFound({ ...result, going: false });
  };
  return html`<div class="stack tight"><div class="row"><h3>Copies</h3><${Button} small icon="search" busy=${found?.going} onClick=${look}>Find copies<//></div>
    ${found && html`<div class="small">${found.items.map((item) => html`<div><a href=${queueAddress(vhost, item.queue, { tab: "messages" })}>${item.queue}</a> <span class="muted">${item.position != null ? `position ${int(item.position)}` : item.state}${item.queue === here ? ", this queue" : ""}</span></div>`)}<span class="muted">${found.note}</span></div>`}</div>`;
}
