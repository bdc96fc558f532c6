// The message browser: a list of what waits or is held, in place, beside the message that is looked at. A page is named by the position
// of a message and not by a number, so that it stays where it is while consumers take messages away.
import { html, useState, useEffect, useRef, useMemo, useCallback } from "../core/html.js";
import { isReadOnly, path } from "../core/api.js";
import { route, setQuery } from "../core/router.js";
import { bindKeys } from "../core/keys.js";
import { int, short, bytes, plural, percent, download, duration } from "../core/format.js";
import { Badge, Button, Card, Check, Choice, Empty, Icon, Loading, Menu, Note, Segmented, Text, cls, confirm, show, toast, failed } from "../ui/bits.js";
import { PublishForm } from "../ui/forms.js";
import { page, one, rawAddress, search, replace, idOf, PAGE } from "./browse.js";
import { MessageView, CopyMenu, hasDied } from "./message.js";
import { ActDialog } from "./actions.js";
import { bytesOf, textOf } from "./decode.js";
import { placeOf } from "./stream.js";

const STATES = [["ready", "Ready"], ["unacked", "Unacked"], ["all", "All"]];
const ORDERS = [["head", "Oldest first"], ["tail", "Newest first"]];

function preview(item) {
  if (item.damaged) return "damaged";
  const text = item.payload_encoding === "base64" ? textOf(bytesOf(item).subarray(0, 200)) : item.payload;
  return item.payload == null ? "" : text == null ? `${bytes(item.payload_bytes)} of bytes` : text.slice(0, 200).replaceAll(/\s+/g, " ") || "(empty)";
}

function Item({ item, current, selected, onOpen, onToggle }) {
  const died = hasDied(item);
  return html`<div class=${cls("msg", current && "current")} role="listitem" onClick=${(event) => { if (!event.target.closest("input,button")) onOpen(); }}>
    <input type="checkbox" checked=${selected} aria-label=${`Select message ${item.seq_id}`} onChange=${onToggle} style=${{ marginTop: "3px" }} />
    <div class="grow"><div class="line1"><button type="button" class="linklike" aria-current=${current ? "true" : undefined} onClick=${onOpen}><span class="mono ellipsis">${item.routing_key ?? "damaged"}${item.routing_key === "" ? "(empty key)" : ""}</span></button>${item.state === "unacked" && html`<${Badge} kind="warn">unacked<//>`}${item.delivery_count > 0 ? html`<${Badge} kind=${item.delivery_count > 2 ? "warn" : ""} title=${`has come back ${plural(item.delivery_count, "time")}`}>${item.delivery_count}× back<//>` : item.redelivered && html`<${Badge} title="redelivered">again<//>`}${died && html`<${Badge} kind="bad" title="has been dead-lettered">died<//>`}${item.expired && html`<${Badge} kind="bad">expired<//>`}</div>
      <div class="preview">${preview(item)}</div></div>
    <div class="meta"><div>${item.stage === "stream" ? `@${int(item.seq_id)}` : item.position != null ? `#${int(item.position)}` : item.holder?.held_at_least_s > 0 ? `≥ ${duration(item.holder.held_at_least_s)}` : ""}</div><div>${bytes(item.payload_bytes)}</div></div></div>`;
}

// -- searching

const WHERES = [["text", "Text in the body"], ["any case", "Text, in any case"], ["regex", "Regular expression in the body"], ["json", "JSON path = value"], ["header", "Header = value"], ["property", "Property = value"], ["routing_key", "Routing key"], ["exchange", "Exchange"], ["reason", "Reason of a death"]];

/** 2, true and null are meant as such; "2" in quotes is a text. */
function meant(value) {
  try {
    const found = JSON.parse(value);
    return typeof found === "object" && found !== null ? value : found;
  } catch {
    return value; // a text, as most are
  }
}

function whereOf({ kind, name, value }) {
  if (kind === "header") return { headers: { [name]: meant(value) } };
  if (kind === "property") return { properties: { [name]: meant(value) } };
  if (kind === "json") return { json: [value === "" ? { path: name, op: "exists" } : { path: name, op: "=", value: meant(value) }] };
  if (kind === "any case") return { text: value, case: false };
  return { [kind]: value };
}

function SearchPanel({ onSearch, onCancel, running, progress, total }) {
  const [kind, setKind] = useState("text");
  const [name, setName] = useState("");
  const [value, setValue] = useState("");
  const pair = ["header", "property", "json"].includes(kind);
  const submit = (event) => { event.preventDefault(); if (value !== "" || (pair && name)) onSearch(whereOf({ kind, name, value })); };
  return html`<form class="row wrapped" onSubmit=${submit} role="search" style=${{ padding: "8px 12px", borderBottom: "1px solid var(--line)" }}>
    <select aria-label="Where to search" style=${{ width: "auto", flex: "0 1 190px" }} value=${kind} onChange=${(event) => setKind(event.currentTarget.value)}>${WHERES.map(([id, text]) => html`<option value=${id} selected=${id === kind}>${text}</option>`)}</select>
    ${pair && html`<input class="input mono" style=${{ flex: "1 1 90px", width: "auto" }} aria-label="Name" placeholder=${kind === "json" ? "customer.name" : "name"} value=${name} onInput=${(event) => setName(event.currentTarget.value)} />`}
    <input class="input mono" style=${{ flex: "2 1 120px", width: "auto" }} aria-label="Search for" placeholder="search for" value=${value} onInput=${(event) => setValue(event.currentTarget.value)} />
    ${running ? html`<${Button} key="cancel" icon="stop" onClick=${onCancel}>Cancel<//>` : html`<${Button} key="search" type="submit" icon="search" kind="primary">Search<//>`}
    ${progress && html`<div class="row wrapped small muted" style=${{ flexBasis: "100%" }} role="status">${running && html`<${Icon} name="spinner" spin />`}<span>${int(progress.scanned)}${total ? ` of ${int(total)}` : ""} looked at${total ? ` (${percent(Math.min(progress.scanned, total), total)})` : ""}, ${plural(progress.matched, "match", "matches")}</span>${progress.note && html`<span class="warn">${progress.note}</span>`}</div>`}</form>`;
}

/** Where to begin in a stream. */
function GoTo({ value, bad, onValue }) {
  const [text, setText] = useState(value);
  useEffect(() => setText(value), [value]);
  return html`<form class="row tight" onSubmit=${(event) => { event.preventDefault(); onValue(text.trim()); }}><input class="input mono" style=${{ width: "170px" }} aria-label="From an offset or a time" aria-invalid=${bad ? "true" : undefined} placeholder="offset, 2h, 2026-01-31 08:00" title="An offset; an age: 90s, 15m, 2h, 3d; or a time: 2026-01-31 08:00" value=${text} onInput=${(event) => setText(event.currentTarget.value)} /><${Button} small type="submit">Go<//></form>`;
}

const ENDS = { limit: "more may match: this is the most that is shown", max_scan: "stopped: as many as may be looked at", timeout: "stopped: it took too long" };

export function MessageBrowser({ vhost, name, queue, limit }) {
  const { query } = route.value;
  const state = query.state ?? "ready";
  const order = query.order ?? "head";
  const [items, setItems] = useState([]);
  const [answer, setAnswer] = useState(null);
  const [problem, setProblem] = useState(null);
  const [loading, setLoading] = useState(true);
  const [current, setCurrent] = useState(null);
  const [chosen, setChosen] = useState(new Map());
  const [found, setFound] = useState(null); // {where, items, progress, running, done} while a search is shown
  const [searching, setSearching] = useState(false);
  const cancel = useRef(null);
  const turn = useRef(0);
  const list = useRef();

  const isStream = queue.type === "stream";
  const place = isStream && query.at ? placeOf(query.at) : null;
  const from = useMemo(() => place ?? {}, [query.at, isStream]);
  const load = useCallback(async (more) => {
    const mine = (turn.current += 1);
    setLoading(true);
    try {
      const got = await page(vhost, name, { state, order, ...from, ...(more ?? {}) });
      if (mine !== turn.current) return;
      const fresh = (old) => got.items.filter((item) => !old.some((one_) => idOf(one_) === idOf(item)));
      setItems((old) => (more?.before ? [...fresh(old), ...old] : more ? [...old, ...fresh(old)] : got.items));
      setAnswer((old) => (more?.before ? { ...got, next: old.next } : more ? { ...got, previous: old.previous } : got));
      setProblem(null);
      if (!more) setChosen(new Map());
    } catch (error) {
      if (mine === turn.current) setProblem(error.status === 410 ? new Error("The queue is another one now, or the broker has been restarted: read it from the start.") : error);
    }
    if (mine === turn.current) setLoading(false);
  }, [vhost, name, state, order, from]);
  useEffect(() => { setItems([]); setCurrent(null); void load(); return () => { turn.current += 1; }; }, [load]);
  useEffect(() => () => cancel.current?.abort(), []);

  const start = async (where) => {
    cancel.current?.abort();
    const stop = new AbortController();
    cancel.current = stop;
    const result = { where, items: [], progress: { scanned: 0, matched: 0 }, running: true };
    setFound(result);
    setChosen(new Map());
    try {
      for await (const line of search(vhost, name, { where, state, order, limit: 1000, max_scan: 10_000_000, timeout_ms: 600_000 }, stop.signal)) {
        if (line.item) result.items.push(line.item);
        if (line.progress) result.progress = line.progress;
        if (line.end) result.progress = { ...line.end, note: ENDS[line.end.reason] ?? "" };
        if (line.error) result.progress = { ...result.progress, note: line.error.reason ?? line.error.error };
        if (!line.item || result.items.length % 20 === 1) setFound({ ...result });
      }
    } catch (error) {
      if (error.name !== "AbortError") result.progress = { ...result.progress, note: error.message };
      else result.progress = { ...result.progress, note: "cancelled" };
    }
    setFound({ ...result, running: false });
  };

  const fixed = isReadOnly() || queue.type === "stream"; // what is in a stream stays there
  const shown = found ? found.items : items;
  const view = current && shown.find((item) => idOf(item) === current);
  const toggle = (item) => setChosen((old) => { const next = new Map(old); if (!next.delete(idOf(item))) next.set(idOf(item), item); return next; });
  const all = shown.length > 0 && shown.every((item) => chosen.has(idOf(item)));
  const step = (by) => {
    const at = shown.findIndex((item) => idOf(item) === current);
    const next = shown[Math.max(0, Math.min(shown.length - 1, at + by))];
    if (next) { setCurrent(idOf(next)); list.current?.children[shown.indexOf(next)]?.scrollIntoView({ block: "nearest" }); }
  };
  const latest = useRef();
  latest.current = { step, toggle, view };
  useEffect(() => bindKeys({ j: { what: "Next message", run: () => latest.current.step(1) }, k: { what: "Previous message", run: () => latest.current.step(-1) }, x: { what: "Select the message", run: () => latest.current.view && latest.current.toggle(latest.current.view) } }), []);

  const changed = () => { setChosen(new Map()); if (found) setFound({ ...found, items: found.items.filter((item) => !chosen.has(idOf(item))) }); void load(); };
  const act = (verb, which) => {
    const ids = [...which.keys()];
    const origins = [...new Set([...which.values()].map((item) => item.deaths?.[0]?.queue).filter(Boolean))];
    show((close) => html`<${ActDialog} verb=${verb} vhost=${vhost} name=${name} chosen=${{ seqs: ids }} origins=${origins} onDone=${changed} onClose=${close} />`);
  };
  const single = (item) => new Map([[idOf(item), item]]);
  const full = async (item) => (item.truncated ? one(vhost, name, idOf(item), 32 << 20) : item);
  const edit = async (item) => {
    try {
      const whole = await full(item);
      show((close) => html`<${PublishForm} title="Edit and publish" vhost=${vhost} exchange=${whole.exchange} routingKey=${whole.routing_key} first=${whole} onClose=${close} instead=${whole.state === "ready" && !fixed ? async (message) => { await replace(vhost, name, idOf(whole), message); toast("Published in its place"); close(); setCurrent(null); changed(); } : undefined} />`);
    } catch (error) { failed(error); }
  };
  const letters = (which) => [...which.values()].some(hasDied);
  const save = (which) => download(`${name}.jsonl`, [...which.values()].map((item) => JSON.stringify(item)).join("\n") + "\n", "application/x-ndjson");
  const matching = found && !found.running && found.progress.matched > 0 && answer?.end;
  const actMatching = (verb) => show((close) => html`<${ActDialog} verb=${verb} vhost=${vhost} name=${name} chosen=${{ filter: found.where, up_to_seq: answer.end }} onDone=${() => { setFound(null); setChosen(new Map()); void load(); }} onClose=${close} />`);

  return html`<div class=${cls("browser", !view && "single")}>
    <section class="card" aria-label="Messages" style=${{ display: "flex", flexDirection: "column", maxHeight: "calc(100dvh - 170px)", minHeight: "420px" }}>
      <div class="row wrapped" style=${{ padding: "8px 12px", borderBottom: "1px solid var(--line)" }}>
        ${isStream ? html`<${GoTo} value=${query.at ?? ""} bad=${query.at && !place} onValue=${(at) => { setFound(null); setQuery({ at }); }} />` : html`<${Segmented} label="Which messages" value=${state} onValue=${(value) => { setFound(null); setQuery({ state: value === "ready" ? "" : value }); }} options=${STATES} />`}<${Segmented} label="Order" value=${order} onValue=${(value) => { setFound(null); setQuery({ order: value === "head" ? "" : value }); }} options=${ORDERS} />
        <span class="grow"></span><span class="row tight"><${Button} small icon="search" label="Search in the messages" pressed=${searching} onClick=${() => { setSearching(!searching); if (searching) { cancel.current?.abort(); setFound(null); } }} /><${Button} small icon="refresh" label="Read again" busy=${loading} onClick=${() => load()} /></span></div>
      ${searching && html`<${SearchPanel} onSearch=${start} onCancel=${() => cancel.current?.abort()} running=${found?.running} progress=${found?.progress} total=${queue.messages} />`}
      ${chosen.size > 0 ? html`<div class="selbar"><b>${plural(chosen.size, "message")}</b><span class="grow"></span>${!isReadOnly() && queue.type !== "stream" && html`<${Button} small icon="copy" onClick=${() => act("copy", chosen)}>Copy<//>`}${!fixed && html`<${Button} small icon="move" onClick=${() => act("move", chosen)}>Move<//>${letters(chosen) && html`<${Button} small icon="retry" onClick=${() => act("retry", chosen)}>Retry<//>`}<${Button} small kind="danger" icon="trash" onClick=${() => act("delete", chosen)}>Delete<//>`}<${Button} small icon="download" label="Save as JSON lines" onClick=${() => save(chosen)} /><${Button} small kind="ghost" icon="close" label="Clear the selection" onClick=${() => setChosen(new Map())} /></div>`
        : matching && !fixed ? html`<div class="selbar"><b>${plural(found.progress.matched, "match", "matches")}</b><span class="grow"></span><${Button} small icon="move" onClick=${() => actMatching("move")}>Move all<//><${Button} small kind="danger" icon="trash" onClick=${() => actMatching("delete")}>Delete all<//></div>` : null}
      ${shown.length > 0 && html`<div class="row small muted" style=${{ padding: "5px 12px 5px 8px", borderBottom: "1px solid var(--line)" }}><input type="checkbox" aria-label="Select all shown" checked=${all} onChange=${() => setChosen(all ? new Map() : new Map(shown.map((item) => [idOf(item), item])))} /><span>${int(shown.length)} shown${answer && !found ? (isStream ? ` of ${int(answer.ready)}` : ` · ${int(answer.ready)} ready, ${int(answer.unacknowledged)} unacked`) : ""}</span></div>`}
      ${problem && html`<div style=${{ padding: "10px" }}><${Note} kind="bad">${problem.message} <a href="#" onClick=${(event) => { event.preventDefault(); void load(); }}>Read again</a><//></div>`}
      ${!found && answer?.previous && html`<div class="row" style=${{ padding: "8px 12px", borderBottom: "1px solid var(--line)", justifyContent: "center" }}><${Button} small busy=${loading} onClick=${() => load({ before: answer.previous })}>${PAGE} before these<//></div>`}
      <div class="msglist" role="list" aria-label="Messages" tabindex="0" ref=${list}>${shown.map((item) => html`<${Item} key=${idOf(item)} item=${item} current=${idOf(item) === current} selected=${chosen.has(idOf(item))} onOpen=${() => setCurrent(idOf(item))} onToggle=${() => toggle(item)} />`)}</div>
      ${!shown.length && (loading || found?.running ? html`<div class="body" style=${{ padding: "14px" }}><${Loading} /></div>` : !problem && html`<${Empty} icon="queue" title=${found ? "No message matches" : state === "unacked" ? "Nobody holds a message" : "No messages here"}>${answer?.confirm_mode && !found ? "In this confirm mode messages are forgotten once they are handed out." : ""}<//>`)}
      ${!found && answer?.next && html`<div class="row" style=${{ padding: "8px 12px", borderTop: "1px solid var(--line)", justifyContent: "center" }}><${Button} small busy=${loading} onClick=${() => load({ after: answer.next })}>${PAGE} more<//></div>`}</section>
    ${view && html`<section class="card msgview" aria-label="Message" style=${{ maxHeight: "calc(100dvh - 170px)" }}><div class="body"><${MessageView} limit=${limit} message=${view} vhost=${vhost} queue=${name} actions=${html`
        ${!isReadOnly() && html`<${Button} small icon="edit" onClick=${() => edit(view)}>Edit and publish<//>`}<${CopyMenu} message=${view} vhost=${vhost} /><a class="btn small icon-only" href=${rawAddress(vhost, name, idOf(view))} aria-label="Save the body" title="Save the body" download><${Icon} name="download" /></a>
        ${!fixed && view.state !== "unacked" && html`<${Menu} small label="More"><button type="button" onClick=${() => act("move", single(view))}><${Icon} name="move" />Move…</button><button type="button" onClick=${() => act("copy", single(view))}><${Icon} name="copy" />Copy…</button>${hasDied(view) && html`<button type="button" onClick=${() => act("retry", single(view))}><${Icon} name="retry" />Retry…</button>`}<hr /><button type="button" class="danger" onClick=${() => act("delete", single(view))}><${Icon} name="trash" />Delete…</button><//>`}
        <${Button} small kind="ghost" icon="close" label="Close the message" onClick=${() => setCurrent(null)} />`} /></div></section>`}</div>`;
}
