// What stands around every page: navigation, the bar at the top, the palette, the help on keys. Pages are loaded when first shown.
import { html, useState, useEffect, useRef, signal, useMemo, useErrorBoundary } from "../core/html.js";
import { session, logout, isAdmin, isMonitor, isPolicymaker, get } from "../core/api.js";
import { route, go, to } from "../core/router.js";
import { theme, isDark } from "../core/prefs.js";
import { bindKeys, boundKeys } from "../core/keys.js";
import { status, asOf, useTopic, Table } from "../core/live.js";
import { short, when, bytes } from "../core/format.js";
import { Button, Icon, Menu, Dialog, Empty, Loading, show, closeDialogs, failed, cls } from "./bits.js";

const PAGES = {
  overview: { title: "Overview", icon: "overview", key: "g o", load: () => import("../pages/overview.js") },
  queues: { title: "Queues", icon: "queue", key: "g q", count: "queues", load: () => import("../pages/queues.js"), one: () => import("../queue/page.js") },
  exchanges: { title: "Exchanges", icon: "exchange", key: "g e", count: "exchanges", load: () => import("../pages/exchanges.js"), one: () => import("../pages/exchange.js") },
  topology: { title: "Topology", icon: "route", key: "g t", load: () => import("../pages/topology.js") },
  connections: { title: "Connections", icon: "connection", key: "g c", count: "connections", load: () => import("../pages/connections.js"), one: () => import("../pages/connection.js") },
  channels: { title: "Channels", icon: "channel", key: "g h", count: "channels", load: () => import("../pages/channels.js"), one: () => import("../pages/channel.js") },
  consumers: { title: "Consumers", icon: "consumer", key: "g s", count: "consumers", load: () => import("../pages/consumers.js") },
  attention: { title: "Attention", icon: "attention", key: "g a", load: () => import("../pages/attention.js") },
  vhosts: { title: "Virtual hosts", icon: "vhost", key: "g v", load: () => import("../pages/vhosts.js"), one: () => import("../pages/vhost.js") },
  users: { title: "Users", icon: "user", key: "g u", may: isAdmin, load: () => import("../pages/users.js"), one: () => import("../pages/user.js") },
  policies: { title: "Policies", icon: "policy", key: "g p", load: () => import("../pages/policies.js") },
  limits: { title: "Limits", icon: "limit", key: "g l", load: () => import("../pages/limits.js") },
  definitions: { title: "Definitions", icon: "definitions", key: "g d", may: isAdmin, load: () => import("../pages/definitions.js") },
  node: { title: "Node", icon: "node", key: "g n", may: isMonitor, load: () => import("../pages/node.js") },
  audit: { title: "Audit and log", icon: "audit", key: "g g", may: isAdmin, load: () => import("../pages/audit.js") },
};
const GROUPS = [["", ["overview", "attention"]], ["Messaging", ["queues", "exchanges", "topology", "connections", "channels", "consumers"]], ["Administration", ["vhosts", "users", "policies", "limits", "definitions", "node", "audit"]]];
const mayOpen = (id) => !PAGES[id].may || PAGES[id].may();

const drawer = signal(false);

function Nav() {
  const overview = useTopic("overview");
  const current = route.value.segments[0] ?? "overview";
  useEffect(() => { drawer.value = false; }, [route.value]);
  const alarms = overview?.alarms?.length ?? 0;
  return html`<nav class=${cls("side", drawer.value && "open")} aria-label="Main">
    <a class="brand" href="#/overview"><img src="favicon.svg" alt="" width="22" height="22" /><span>rabbitpy-broker<small class="ellipsis">${location.host}</small></span></a>
    ${GROUPS.map(([title, ids]) => html`${title && html`<h2>${title}</h2>`}${ids.filter(mayOpen).map((id) => { const page = PAGES[id]; const count = page.count && overview?.totals?.[page.count]; return html`<a key=${id} class="nav" href=${`#/${id}`} aria-current=${current === id ? "page" : undefined} title=${page.key}><${Icon} name=${page.icon} />${page.title}${count != null && count !== false && html`<span class="count">${short(count)}</span>`}${id === "attention" && alarms > 0 && html`<span class="count alert">${alarms}</span>`}</a>`; })}`)}
    <div class="foot">${overview?.node?.mem_used != null && html`<div>Memory ${bytes(overview.node.mem_used)}</div>`}<div><a href="api/index.html" class="muted">API reference</a></div></div></nav>`;
}

const LIVE = { live: "Live", polling: "Polling", off: "No connection", connecting: "Connecting", paused: "Paused" };
function LiveDot() {
  const text = LIVE[status.value];
  return html`<span class=${`livedot ${status.value === "connecting" ? "paused" : status.value}`} role="status" title=${asOf.value ? `${text}: figures of ${when(asOf.value)}` : text}><i></i><span class="hide-narrow">${text}</span></span>`;
}

function Crumbs() {
  const { segments } = route.value;
  const id = segments[0] ?? "overview";
  const rest = segments.slice(1);
  return html`<nav aria-label="Breadcrumb" class="grow"><ol class="crumbs"><li>${rest.length ? html`<a href=${`#/${id}`}>${PAGES[id]?.title ?? id}</a>` : html`<b>${PAGES[id]?.title ?? id}</b>`}</li>
    ${rest.map((part, i) => html`<li key=${i} class=${i < rest.length - 1 ? "hide-narrow" : ""}><${Icon} name="right" />${i === rest.length - 1 ? html`<b class="ellipsis" title=${part}>${part}</b>` : html`<span>${part}</span>`}</li>`)}</ol></nav>`;
}

const THEMES = [["auto", "As the system", "system"], ["light", "Light", "sun"], ["dark", "Dark", "moon"]];
function TopBar() {
  return html`<header class="topbar"><${Button} icon="menu" label="Menu" kind="ghost drawer-button" onClick=${() => { drawer.value = true; }} /><${Crumbs} /><${LiveDot} />
    <${Button} icon="search" label="Go to anything (Ctrl K)" kind="ghost" onClick=${openPalette} />
    <${Menu} icon=${isDark() ? "moon" : "sun"} label="Theme" kind="ghost">${THEMES.map(([id, text, icon]) => html`<button type="button" onClick=${() => { theme.value = id; }}><${Icon} name=${icon} />${text}${theme.value === id && html`<${Icon} name="check" />`}</button>`)}<//>
    <${Menu} icon="user" label="Account" kind="ghost"><div class="k">${session.value.name}<br />${(session.value.tags ?? []).join(", ") || "no tags"}${session.value.read_only && html`<br />read-only`}</div><hr />
      <button type="button" onClick=${openHelp}><${Icon} name="keyboard" />Keys</button><button type="button" onClick=${() => logout().catch(failed)}><${Icon} name="out" />Log out</button><//></header>`;
}

function openHelp() {
  show((close) => html`<${Dialog} title="Keys" onClose=${close} scrolls><table class="plain"><tbody>${[["Ctrl K", "Go to anything"], ...boundKeys().filter(([key]) => key !== "Ctrl K")].map(([key, what]) => html`<tr><td style=${{ width: "110px" }}>${key.split(" ").map((one) => html`<kbd>${one}</kbd> `)}</td><td>${what}</td></tr>`)}</tbody></table><//>`);
}

// -- the palette: pages, queues, exchanges, connections, by a few letters

/** How well the letters of `text` are found in `name`, in order; -1 when they are not. */
export function fuzzy(name, text) {
  const at = name.indexOf(text);
  if (at >= 0) return 1000 - at * 2 - name.length + (at === 0 ? 200 : 0);
  let score = 0;
  let from = 0;
  for (const letter of text) {
    const found = name.indexOf(letter, from);
    if (found < 0) return -1;
    score += found === from ? 6 : 1;
    from = found + 1;
  }
  return score - name.length / 8;
}

function Palette({ onClose }) {
  const [text, setText] = useState("");
  const [at, setAt] = useState(0);
  const [things, setThings] = useState([]);
  const list = useRef();
  useEffect(() => {
    const kinds = [["queues", "queue", ["vhost", "name"]], ["exchanges", "exchange", ["vhost", "name"]], ["connections", "connection", ["name"]]];
    for (const [kind, icon, columns] of kinds) {
      get(`table/${kind}?columns=${columns.join()}`).then((answer) => {
        const table = new Table(kind);
        table.snapshot(answer);
        setThings((old) => [...old, ...table.rows.map((row) => { const key = columns.map((column) => table.value(row, column)); return { icon, title: key.at(-1) === "" ? "(default)" : key.at(-1), where: key.length > 1 ? key[0] : "", find: key.at(-1).toLowerCase(), run: () => go(to([kind, ...key]).slice(1)) }; })]);
      }, failed);
    }
  }, []);
  const pages = useMemo(() => [
    ...Object.entries(PAGES).filter(([id]) => mayOpen(id)).map(([id, page]) => ({ icon: page.icon, title: page.title, where: page.key, find: page.title.toLowerCase(), page: true, run: () => go(`/${id}`) })),
    ...THEMES.map(([id, title, icon]) => ({ icon, title: `Theme: ${title.toLowerCase()}`, find: `theme ${title.toLowerCase()}`, page: true, where: "", run: () => { theme.value = id; } })),
    { icon: "plus", title: "Declare a queue", find: "declare new queue add", where: "", page: true, run: () => go("/queues?new=1") },
    { icon: "plus", title: "Declare an exchange", find: "declare new exchange add", where: "", page: true, run: () => go("/exchanges?new=1") },
    { icon: "out", title: "Log out", find: "log out", where: "", page: true, run: () => logout().catch(failed) },
  ], []);
  const found = useMemo(() => {
    const wanted = text.trim().toLowerCase();
    if (!wanted) return pages.slice(0, 15);
    return [...pages, ...things].map((one) => ({ one, score: fuzzy(one.find, wanted) + (one.page ? 30 : 0) })).filter((entry) => entry.score > -1 && !(entry.one.page && fuzzy(entry.one.find, wanted) < 0)).sort((a, b) => b.score - a.score).slice(0, 40).map((entry) => entry.one);
  }, [text, things]);
  useEffect(() => { setAt(0); }, [text]);
  useEffect(() => { list.current?.children[at]?.scrollIntoView({ block: "nearest" }); }, [at]);
  const run = (one) => { onClose(); one?.run(); };
  const onKey = (event) => {
    if (event.key === "ArrowDown") { event.preventDefault(); setAt(Math.min(found.length - 1, at + 1)); }
    if (event.key === "ArrowUp") { event.preventDefault(); setAt(Math.max(0, at - 1)); }
    if (event.key === "Enter") { event.preventDefault(); run(found[at]); }
  };
  return html`<${Dialog} onClose=${onClose} className="palette"><div class="stack tight" style=${{ margin: "-16px" }}>
    <input class="input" autofocus placeholder="Go to a page, queue, exchange, connection…" aria-label="Go to" role="combobox" aria-expanded="true" aria-controls="palette-list" aria-activedescendant=${`palette-${at}`} value=${text} onInput=${(event) => setText(event.currentTarget.value)} onKeyDown=${onKey} autocomplete="off" spellcheck=${false} />
    <ul id="palette-list" role="listbox" aria-label="Found" ref=${list}>${found.map((one, i) => html`<li id=${`palette-${i}`} role="option" aria-selected=${String(i === at)} onPointerMove=${() => { if (i !== at) setAt(i); }} onClick=${() => run(one)}><${Icon} name=${one.icon} /><span>${one.title}</span><span class="where">${one.where}</span></li>`)}</ul>${found.length === 0 && html`<${Empty} icon="search" title="Nothing of that name" />`}</div><//>`;
}
const openPalette = () => show((close) => html`<${Palette} onClose=${close} />`);

// -- the page

const loaded = new Map();
function usePage(load) {
  const [, again] = useState(0);
  const found = loaded.get(load);
  useEffect(() => {
    if (loaded.has(load)) return;
    load().then((module) => { loaded.set(load, module.default); again((n) => n + 1); }, failed);
  }, [load]);
  return found;
}

function CurrentPage() {
  const { segments } = route.value;
  const id = segments[0] ?? "overview";
  const page = PAGES[id];
  useEffect(() => { closeDialogs(); document.title = `${segments.at(-1) && segments.length > 1 ? `${segments.at(-1)} · ` : ""}${page?.title ?? "Not found"} · rabbitpy-broker`; scrollTo(0, 0); }, [segments.join("\u0000")]);
  const one = segments.length > 1 && page?.one;
  const Page = usePage(one || page?.load || PAGES.overview.load);
  if (!page) return html`<${Empty} title="There is no such page"><a href="#/overview">To the overview</a><//>`;
  if (!mayOpen(id)) return html`<${Empty} icon="lock" title="Your tags do not allow this page" />`;
  const given = segments.slice(1).map((part, i) => (id === "exchanges" && i === 1 && part === "amq.default" ? "" : part));
  const key = id + segments.slice(1).join("\u0000");
  return Page ? html`<${Guarded} key=${key}><${Page} segments=${given} /><//>` : html`<${Loading} />`;
}

/** A fault in a page is shown in its place; the rest goes on. */
function Guarded({ children }) {
  const [fault, again] = useErrorBoundary((error) => console.error(error));
  return fault ? html`<${Empty} icon="attention" title="This page has failed">${String(fault.message ?? fault)}<${Button} icon="refresh" onClick=${again}>Try again<//><//>` : children;
}

export function Shell() {
  const overview = useTopic("overview");
  useEffect(() => {
    const keys = Object.fromEntries(Object.entries(PAGES).filter(([id]) => mayOpen(id)).map(([id, page]) => [page.key, { what: `Go to ${page.title.toLowerCase()}`, run: () => go(`/${id}`) }]));
    return bindKeys({ ...keys, "?": { what: "Show these keys", run: openHelp }, "Ctrl K": { what: "Go to anything", run: openPalette }, Escape: { run: () => { drawer.value = false; return false; } } });
  }, [session.value]);
  const fills = ["queues", "exchanges", "connections", "channels", "consumers"].includes(route.value.segments[0]) && route.value.segments.length === 1;
  const alarms = overview?.alarms ?? [];
  return html`<div class="shell"><${Nav} />${drawer.value && html`<button type="button" class="scrim" aria-label="Close the menu" onClick=${() => { drawer.value = false; }}></button>`}
    <div class="main"><${TopBar} />${status.value === "off" && html`<div class="alarm-bar off" role="alert"><${Icon} name="attention" /><span><b>The broker cannot be reached.</b>${asOf.value ? ` What is shown is of ${when(asOf.value)}.` : ""} It is asked again every few seconds.</span></div>`}${alarms.length > 0 && html`<div class="alarm-bar" role="alert"><${Icon} name="attention" /><span><b class="capital">${alarms.map((one) => one.resource ?? one).join(" and ")} alarm:</b> publishers are blocked until there is room again. ${isPolicymaker() || isMonitor() ? html`<a href="#/node">What is used</a>` : ""}</span></div>`}
    <main class=${cls("content", fills && "fill")} id="content" tabindex="-1"><${CurrentPage} /></main></div></div>`;
}
