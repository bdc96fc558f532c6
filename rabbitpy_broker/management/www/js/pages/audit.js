// Who changed what over this API, and the log as it is written.
import { html, useState, useEffect, useMemo, useRef } from "../core/html.js";
import { get } from "../core/api.js";
import { useTopic } from "../core/live.js";
import { route, setQuery } from "../core/router.js";
import { clock, when, int } from "../core/format.js";
import { Badge, Button, Card, Empty, Loading, Note, PageHead, Segmented, Tabs, Time, failed } from "../ui/bits.js";

/** The parts of a path; a vhost "/" is a part like others. */
const parts = (text) => text.split("/").map((part) => { try { return decodeURIComponent(part); } catch { return part; } });

function Audit() {
  const [items, setItems] = useState(null);
  const [total, setTotal] = useState(0);
  const [user, setUser] = useState("");
  const [problem, setProblem] = useState("");
  const load = async (before) => {
    try {
      const found = await get(`audit?limit=100${before ? `&before=${before}` : ""}${user ? `&user=${encodeURIComponent(user)}` : ""}`);
      setItems((old) => (before ? [...(old ?? []), ...found.items] : found.items));
      setTotal(found.total);
      setProblem("");
    } catch (error) { setProblem(error.message); }
  };
  useEffect(() => { const timer = setTimeout(() => load(), 200); return () => clearTimeout(timer); }, [user]);
  const kind = (status) => (status < 300 ? "good" : status < 400 ? "" : "bad");
  return html`<div class="toolbar"><input class="input" style=${{ maxWidth: "260px" }} type="search" aria-label="User" placeholder="Of a user" value=${user} onInput=${(event) => setUser(event.currentTarget.value)} /><${Button} icon="refresh" label="Read again" onClick=${() => load()} /></div>${problem && html`<${Note} kind="bad">${problem}<//>`}
    <${Card} bare label="Audit">${!items ? html`<div class="body"><${Loading} /></div>` : items.length ? html`<div class="plain-wrap" tabindex="0" role="group"><table class="plain"><thead><tr><th>When</th><th>Who</th><th>What</th><th>Answer</th><th>Details</th></tr></thead><tbody>${items.map((one) => html`<tr key=${one.id}><td class="nowrap"><${Time} at=${one.at} /></td><td>${one.user}<div class="small muted">${one.peer} ${one.via}${one.node ? ` at ${one.node}` : ""}</div></td><td><b>${one.method}</b> <span class="mono">${parts(one.path).map((part, i) => html`${i ? html`<span class="muted"> › </span>` : ""}${part}`)}</span></td><td><${Badge} kind=${kind(one.status)}>${one.status}<//></td><td><code class="small muted">${one.details ? JSON.stringify(one.details) : ""}</code></td></tr>`)}</tbody></table></div>` : html`<${Empty} icon="audit" title="Nothing has been changed here yet" />`}
      ${items && items.length < total && items.length > 0 && html`<div class="row" style=${{ padding: "8px", justifyContent: "center" }}><${Button} small onClick=${() => load(items.at(-1).id)}>More<//></div>`}<//>`;
}

const RANK = { debug: 0, info: 1, warning: 2, error: 3, critical: 4 };
function Log() {
  const value = useTopic("log");
  const [least, setLeast] = useState("debug");
  const [text, setText] = useState("");
  const [held, setHeld] = useState(null);
  const lines = held ?? value?.lines;
  const shown = useMemo(() => (lines ?? []).filter((line) => (RANK[line.level] ?? 1) >= RANK[least] && (!text || JSON.stringify(line).toLowerCase().includes(text.toLowerCase()))).slice(-500).reverse(), [lines, least, text]);
  return html`<div class="toolbar"><input class="input" style=${{ maxWidth: "300px" }} type="search" aria-label="Filter the log" placeholder="Filter the log" value=${text} onInput=${(event) => setText(event.currentTarget.value)} /><${Segmented} label="Level at least" value=${least} onValue=${setLeast} options=${[["debug", "All"], ["info", "Info"], ["warning", "Warnings"], ["error", "Errors"]]} /><${Button} icon=${held ? "play" : "stop"} onClick=${() => setHeld(held ? null : value?.lines ?? [])}>${held ? "Go on" : "Hold"}<//></div>
    <${Card} bare label="Log">${!lines ? html`<div class="body"><${Loading} /></div>` : shown.length ? html`<ul class="log" tabindex="0" aria-label="Log, newest first">${shown.map((line) => html`<li key=${line.id}><time class="muted" title=${when(line.at)}>${clock(line.at)}</time><span class=${`level-${line.level}`}>${line.level}</span><span><b>${line.event}</b> ${Object.entries(line.fields ?? {}).map(([name, one]) => html`<span class="f">${name}=</span>${typeof one === "string" ? one : JSON.stringify(one)} `)}</span></li>`)}</ul>` : html`<${Empty} icon="audit" title="No line matches" />`}<//>`;
}

export default function AuditPage() {
  const tab = route.value.query.tab ?? "audit";
  return html`<${PageHead} title="Audit and log" /><${Tabs} label="Part" value=${tab} onValue=${(id) => setQuery({ tab: id === "audit" ? "" : id })} tabs=${[{ id: "audit", title: "Audit" }, { id: "log", title: "Log" }]} />${tab === "log" ? html`<${Log} />` : html`<${Audit} />`}`;
}
