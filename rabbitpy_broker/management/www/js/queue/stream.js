// What a stream has: its offsets from the oldest to the newest, its segments, who reads where and with which lag.
import { html } from "../core/html.js";
import { to, setQuery } from "../core/router.js";
import { int, short, bytes, plural, duration } from "../core/format.js";
import { Badge, Card, Empty, KV, Time } from "../ui/bits.js";
import { CancelButton } from "../ui/consumer.js";

const READERS_ON_BAR = 40;

/** All offsets as a bar: segments by what they begin with, a mark where each reader and each kept offset is. */
function OffsetBar({ stream }) {
  const first = stream.first_offset;
  const span = Math.max(1, stream.last_offset + 1 - first);
  const at = (offset) => `${Math.min(100, Math.max(0, (100 * (offset - first)) / span)).toFixed(2)}%`;
  const marks = [...stream.readers.map((one) => ({ at: stream.last_offset + 1 - one.lag, title: `${one.consumer_tag}: ${int(one.lag)} behind`, kind: "reader" })), ...stream.offsets.map((one) => ({ at: one.offset + 1, title: `${one.reference}: kept at ${int(one.offset)}`, kind: "kept" }))];
  return html`<div class="offsetbar" role="img" aria-label=${`Offsets ${first} to ${stream.last_offset}, ${plural(stream.readers.length, "reader")}`}>
    ${stream.segment_list.slice(1).filter((one) => one.first_offset > first).map((one) => html`<i class="segment" style=${{ left: at(one.first_offset) }} title=${`Segment from ${int(one.first_offset)}, ${bytes(one.bytes)}`}></i>`)}
    ${marks.slice(0, READERS_ON_BAR).map((one) => html`<i class=${one.kind} style=${{ left: at(one.at) }} title=${one.title}></i>`)}</div>
    <div class="row small muted tnum"><span>${int(first)}</span><span class="grow"></span>${stream.readers.length > 0 && html`<span class="markkey"><i class="reader"></i>reader</span>`}${stream.offsets.length > 0 && html`<span class="markkey"><i class="kept"></i>offset kept by name</span>`}<span class="grow"></span><span>${int(stream.last_offset)}</span></div>`;
}

const lag = (count) => (count ? html`<span class=${count > 10_000 ? "warn" : ""}>${int(count)}</span>` : html`<span class="good">at the end</span>`);
const go = (offset) => (event) => { event.preventDefault(); setQuery({ tab: "messages", at: String(offset), order: "", state: "" }, true); };

function Readers({ stream, vhost, name, refresh }) {
  if (!stream.readers.length) return html`<${Empty} icon="consumer" title="Nobody reads">A consumer says by x-stream-offset where it begins: first, last, next, an offset, a time.<//>`;
  return html`<div class="plain-wrap" tabindex="0" role="group"><table class="plain"><thead><tr><th>Consumer</th><th>Client</th><th class="num">Last offset</th><th class="num">Lag</th><th class="num">Delivered</th><th class="num">Credit</th><th><span class="sr">Actions</span></th></tr></thead><tbody>${stream.readers.map((one) => html`<tr key=${one.channel + one.consumer_tag}><td class="mono wrap">${one.consumer_tag}</td><td><a href=${to(["channels", one.channel])} title=${one.channel}>${one.client_name || one.channel}</a> <span class="muted">${one.user}</span></td><td class="num mono">${one.offset == null ? "–" : html`<a href="#" onClick=${go(one.offset)}>${int(one.offset)}</a>`}</td><td class="num">${lag(one.lag)}</td><td class="num">${short(one.delivered)}</td><td class="num">${one.credits ? int(one.credits) : html`<${Badge} kind="warn" title="All of its prefetch is unacked: it gets nothing until it acks">none<//>`}</td><td class="act"><${CancelButton} one=${{ ...one, vhost, queue: name }} onDone=${refresh} /></td></tr>`)}</tbody></table></div>`;
}

function Offsets({ list }) {
  return html`<div class="plain-wrap" tabindex="0" role="group"><table class="plain"><thead><tr><th>Name</th><th class="num">Offset</th><th class="num">Lag</th></tr></thead><tbody>${list.map((one) => html`<tr key=${one.reference}><td class="mono wrap">${one.reference}</td><td class="num mono"><a href="#" onClick=${go(one.offset)}>${int(one.offset)}</a></td><td class="num">${lag(one.lag)}</td></tr>`)}</tbody></table></div>`;
}

export function StreamCards({ stream, vhost, name, refresh }) {
  const damaged = stream.segment_list.filter((one) => one.damaged).length;
  return html`<${Card} title="The stream"><div class="stack">${stream.last_offset < 0 ? html`<p class="muted">Nothing has been published yet.</p>` : html`<${OffsetBar} stream=${stream} />`}
    <${KV} items=${[["Oldest message", stream.first_timestamp ? html`<${Time} at=${stream.first_timestamp} /> <span class="muted">(<${Time} at=${stream.first_timestamp} relative />)</span>` : null], ["Newest message", stream.last_timestamp ? html`<${Time} at=${stream.last_timestamp} /> <span class="muted">(<${Time} at=${stream.last_timestamp} relative />)</span>` : null],
      ["Segments", html`${int(stream.segments)} of at most ${bytes(stream.max_segment_bytes)}, ${bytes(stream.bytes)} in all${damaged ? html` <${Badge} kind="bad">${damaged} damaged<//>` : ""}`],
      ["Kept", [stream.max_length_bytes != null && `at most ${bytes(stream.max_length_bytes)}`, stream.max_age_ms != null && `for ${duration(stream.max_age_ms / 1000)}`].filter(Boolean).join(", ") || "everything: there is no limit of size or age"]]} /></div><//>
    <${Card} title="Readers" bare><${Readers} stream=${stream} vhost=${vhost} name=${name} refresh=${refresh} /><//>
    ${stream.offsets.length > 0 && html`<${Card} title="Offsets kept by name" bare><${Offsets} list=${stream.offsets} /><//>`}`;
}

const AGES = { s: 1e3, m: 6e4, h: 36e5, d: 864e5 };

/** Where a text leads in a stream: {offset}, {time} in ms, or null. An offset, an age like 90s, 15m, 2h, 3d, or a time. */
export function placeOf(text, now = Date.now()) {
  const given = text.trim();
  if (/^\d{1,18}$/.test(given)) return { offset: given };
  const age = /^(\d+(?:\.\d+)?)\s*([smhd])$/i.exec(given);
  if (age) return { time: Math.floor(now - Number(age[1]) * AGES[age[2].toLowerCase()]) };
  const time = /\d{4}-\d\d?-\d\d?/.test(given) ? Date.parse(given.replace(" ", "T")) : NaN;
  return Number.isNaN(time) || time < 0 ? null : { time };
}
