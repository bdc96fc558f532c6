// The small parts that every page is made of: buttons, fields, cards, dialogs, menus, toasts.
import { html, signal, useState, useEffect, useRef, useId } from "../core/html.js";
import { when, ago, utc } from "../core/format.js";
import { Icon } from "./icons.js";

export { Icon };

export const cls = (...names) => names.filter(Boolean).join(" ");

export function Button({ icon, label, children, kind = "", busy, small, pressed, ...rest }) {
  const only = icon && !children;
  return html`<button type="button" ...${rest} class=${cls("btn", kind, small && "small", only && "icon-only")} aria-label=${only ? label : undefined}
    title=${only ? label : rest.title} aria-pressed=${pressed === undefined ? undefined : String(pressed)} disabled=${rest.disabled || busy}>
    ${busy ? html`<${Icon} name="spinner" spin />` : icon && html`<${Icon} name=${icon} />`}${children}</button>`;
}

export const Badge = ({ kind = "", title, children }) => html`<span class=${`badge ${kind}`} title=${title}>${children}</span>`;

export function Card({ title, actions, children, className = "", bare, label }) {
  return html`<section class=${`card ${className}`} aria-label=${label ?? (typeof title === "string" ? title : undefined)}>
    ${(title || actions) && html`<header>${title && html`<h2>${title}</h2>`}${actions && html`<div class="actions">${actions}</div>`}</header>`}
    ${bare ? children : html`<div class="body">${children}</div>`}</section>`;
}

export const Empty = ({ icon = "info", title, children }) => html`<div class="empty"><${Icon} name=${icon} /><b>${title}</b>${children && html`<span>${children}</span>`}</div>`;
const NOTE_ICONS = { bad: "attention", warn: "attention", good: "check" };
export const Note = ({ kind = "", children }) => html`<div class=${`note ${kind}`} role=${kind === "bad" ? "alert" : undefined}><${Icon} name=${NOTE_ICONS[kind] ?? "info"} /><div class="grow wrap">${children}</div></div>`;
export const Time = ({ at, relative }) => (at ? html`<time title=${utc(at)} datetime=${utc(at)}>${relative ? ago(at) : when(at)}</time>` : html`<span class="muted">–</span>`);
export const Loading = ({ lines = 4 }) => html`<div class="stack" aria-busy="true"><span class="sr">Loading</span>${Array.from({ length: lines }, () => html`<div class="skeleton"></div>`)}</div>`;
export const Skip = () => html`<span class="muted">–</span>`;

export function KV({ items }) {
  return html`<dl class="kv">${items.filter(Boolean).map(([name, value]) => html`<dt>${name}</dt><dd>${value ?? html`<span class="muted">–</span>`}</dd>`)}</dl>`;
}

/** A table of arguments, headers or any other object. */
export function Arguments({ value, none = "none" }) {
  const entries = Object.entries(value ?? {});
  if (!entries.length) return html`<span class="muted">${none}</span>`;
  return html`<dl class="kv">${entries.map(([name, one]) => html`<dt class="mono">${name}</dt><dd class="mono">${typeof one === "object" ? JSON.stringify(one) : String(one)}</dd>`)}</dl>`;
}

export function Field({ label, hint, error, full, children }) {
  const id = useId();
  const child = typeof children === "function" ? children(id) : children;
  return html`<div class=${cls("field", full && "full")}><label for=${id}>${label}</label>${child}${hint && html`<span class="hint">${hint}</span>`}${error && html`<span class="error">${error}</span>`}</div>`;
}

export function Text({ label, hint, full, value, onValue, list, mono, invalid, rows, ...rest }) {
  const listId = useId();
  const common = { class: cls("input", mono && "mono"), value, onInput: (event) => onValue(event.currentTarget.value), spellcheck: false, autocomplete: "off", ...rest, "aria-invalid": invalid ? "true" : undefined };
  return html`<${Field} label=${label} hint=${hint} full=${full} error=${invalid}>${(id) => rows
    ? html`<textarea id=${id} rows=${rows} ...${common}></textarea>`
    : html`<input id=${id} ...${common} list=${list ? listId : undefined} />${list && html`<datalist id=${listId}>${list.map((one) => html`<option value=${one} />`)}</datalist>`}`}<//>`;
}

export function Choice({ label, hint, full, value, onValue, options, ...rest }) {
  return html`<${Field} label=${label} hint=${hint} full=${full}>${(id) => html`<select id=${id} value=${value} onChange=${(event) => onValue(event.currentTarget.value)} ...${rest}>
    ${options.map((one) => { const [key, text] = Array.isArray(one) ? one : [one, one]; return html`<option value=${key} selected=${key === value}>${text}</option>`; })}</select>`}<//>`;
}

export const Check = ({ label, value, onValue, ...rest }) => html`<label class="check"><input type="checkbox" checked=${value} onChange=${(event) => onValue(event.currentTarget.checked)} ...${rest} />${label}</label>`;

export function Segmented({ label, value, onValue, options }) {
  return html`<div class="segmented" role="group" aria-label=${label}>${options.map((one) => { const [key, text] = Array.isArray(one) ? one : [one, one]; return html`<button type="button" aria-pressed=${String(key === value)} onClick=${() => onValue(key)}>${text}</button>`; })}</div>`;
}

export function Tabs({ label, value, onValue, tabs }) {
  const onKey = (event) => {
    const step = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
    if (!step) return;
    event.preventDefault();
    const at = tabs.findIndex((tab) => tab.id === value);
    onValue(tabs[(at + step + tabs.length) % tabs.length].id);
    event.currentTarget.querySelectorAll("button")[(at + step + tabs.length) % tabs.length]?.focus();
  };
  return html`<div class="tabs" role="tablist" aria-label=${label} onKeyDown=${onKey}>${tabs.map((tab) => html`<button type="button" role="tab" aria-selected=${String(tab.id === value)} tabindex=${tab.id === value ? 0 : -1} onClick=${() => onValue(tab.id)}>${tab.title}${tab.count != null && html`<span class="count">${tab.count}</span>`}</button>`)}</div>`;
}

export function PageHead({ title, sub, children }) {
  return html`<div class="page-head"><h1 class="wrap">${title}</h1>${sub && html`<span class="sub">${sub}</span>`}${children && html`<div class="actions">${children}</div>`}</div>`;
}

// -- menus

export function Menu({ label, icon = "more", text, left, children, small, kind }) {
  const [open, setOpen] = useState(false);
  const wrap = useRef();
  useEffect(() => {
    if (!open) return undefined;
    const outside = (event) => { if (!wrap.current?.contains(event.target)) setOpen(false); };
    const escape = (event) => { if (event.key === "Escape") { event.stopPropagation(); setOpen(false); wrap.current?.querySelector("button")?.focus(); } };
    document.addEventListener("pointerdown", outside);
    document.addEventListener("keydown", escape, true);
    return () => { document.removeEventListener("pointerdown", outside); document.removeEventListener("keydown", escape, true); };
  }, [open]);
  const shown = typeof children === "function" ? children(() => setOpen(false)) : children;
  return html`<div class="menu-wrap" ref=${wrap}>
    <${Button} icon=${icon} label=${label} small=${small} kind=${kind} aria-expanded=${String(open)} onClick=${() => setOpen(!open)}>${text}<//>
    ${open && html`<div class=${cls("menu", left && "left")} onClick=${(event) => { if (event.target.closest("button,a")) setOpen(false); }}>${shown}</div>`}</div>`;
}

// -- toasts

const toasts = signal([]);
let nextToast = 0;
export function toast(text, kind = "good") {
  const id = (nextToast += 1);
  toasts.value = [...toasts.value.slice(-3), { id, text, kind }];
  setTimeout(() => { toasts.value = toasts.value.filter((one) => one.id !== id); }, kind === "bad" ? 9000 : 4000);
}
export const failed = (error) => { if (error?.name !== "AbortError") toast(error.message, "bad"); };
export function Toasts() {
  return html`<div class="toasts" role="status" aria-live="polite">${toasts.value.map((one) => html`<div key=${one.id} class=${`toast ${one.kind}`}><${Icon} name=${one.kind === "bad" ? "attention" : "check"} /><span>${one.text}</span></div>`)}</div>`;
}

// -- dialogs

export function Dialog({ title, onClose, wide, children, footer, className = "", onSubmit, scrolls }) {
  const element = useRef();
  useEffect(() => {
    const before = document.activeElement;
    element.current.showModal();
    element.current.querySelector("[autofocus]")?.focus();
    return () => before?.isConnected && before.focus?.();
  }, []);
  const inside = html`${title && html`<header><h2>${title}</h2><${Button} icon="close" label="Close" kind="ghost" small onClick=${onClose} /></header>`}<div class="body" tabindex=${scrolls ? 0 : -1}>${children}</div>${footer && html`<footer>${footer}</footer>`}`;
  return html`<dialog ref=${element} class=${cls(wide && "wide", className)} aria-label=${typeof title === "string" ? title : undefined} onCancel=${(event) => { event.preventDefault(); onClose(); }}
    onPointerDown=${(event) => { if (event.target === element.current) onClose(); }}>
    ${onSubmit ? html`<form onSubmit=${(event) => { event.preventDefault(); onSubmit(event); }}>${inside}</form>` : html`<div class="dlg">${inside}</div>`}</dialog>`;
}

/** A form in a dialog; `run` does the work and its error is shown in place. */
export function FormDialog({ title, action, danger, run, onClose, wide, disabled, children, extra }) {
  const [busy, setBusy] = useState(false);
  const [problem, setProblem] = useState("");
  const submit = async () => {
    setBusy(true);
    setProblem("");
    try {
      if ((await run()) !== false) onClose();
    } catch (error) {
      setProblem(error.message);
    }
    setBusy(false);
  };
  return html`<${Dialog} title=${title} onClose=${onClose} wide=${wide} onSubmit=${submit}
    footer=${html`${extra}<span class="grow"></span><${Button} onClick=${onClose}>Cancel<//><${Button} type="submit" kind=${danger ? "danger primary" : "primary"} busy=${busy} disabled=${disabled}>${action}<//>`}>
    ${children}${problem && html`<${Note} kind="bad">${problem}<//>`}<//>`;
}

const shownDialogs = signal([]);
let nextDialog = 0;
/** Shows a dialog: `make(close)` returns it. */
export function show(make) {
  const id = (nextDialog += 1);
  const close = () => { shownDialogs.value = shownDialogs.value.filter((one) => one.id !== id); };
  shownDialogs.value = [...shownDialogs.value, { id, element: make(close) }];
  return close;
}
export const Dialogs = () => html`${shownDialogs.value.map((one) => html`<div key=${one.id}>${one.element}</div>`)}`;
export const closeDialogs = () => { shownDialogs.value = []; };

function ConfirmDialog({ title, text, action, danger, run, typed, onClose }) {
  const [said, setSaid] = useState("");
  return html`<${FormDialog} title=${title} action=${action} danger=${danger} run=${run} onClose=${onClose} disabled=${typed !== undefined && said !== typed}>
    <p class="wrap">${text}</p>${typed !== undefined && html`<${Text} label=${html`Type <code>${typed}</code> to go on`} value=${said} onValue=${setSaid} autofocus />`}<//>`;
}
/** Asks before something is done that cannot be undone. */
export const confirm = (options) => show((close) => html`<${ConfirmDialog} ...${options} onClose=${close} />`);

/** Copies a text, and says so. */
export async function copy(text, what = "Copied") {
  try {
    await navigator.clipboard.writeText(text);
    toast(what);
  } catch {
    show((close) => html`<${Dialog} title="Copy this" onClose=${close}><textarea class="input mono" rows="8" readonly aria-label="Text to copy">${text}</textarea><//>`);
  }
}

/** `load` is run when a dependency changes; what it returns is in `value`. */
export function useLoad(load, dependencies, every = 0) {
  const [state, setState] = useState({ value: null, error: null, loading: true });
  const turn = useRef(0);
  const refresh = async () => {
    const mine = (turn.current += 1);
    try {
      const value = await load();
      if (mine === turn.current) setState({ value, error: null, loading: false });
    } catch (error) {
      if (mine === turn.current && error.name !== "AbortError") setState((old) => ({ value: error.status === 404 ? null : old.value, error, loading: false }));
    }
  };
  useEffect(() => {
    setState((old) => ({ ...old, loading: true }));
    void refresh();
    const timer = every ? setInterval(() => { if (!document.hidden) void refresh(); }, every) : 0;
    return () => { turn.current += 1; clearInterval(timer); };
  }, dependencies);
  return { ...state, refresh };
}
