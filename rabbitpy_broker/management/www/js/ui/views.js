// Views of a table under a name: filter, order, columns and vhost. They are kept in this browser; a link says the same to anybody.
import { html, useState } from "../core/html.js";
import { remembered, tableState, chosenVhost } from "../core/prefs.js";
import { route, setQuery } from "../core/router.js";
import { Button, FormDialog, Icon, Menu, Text, copy, show, toast } from "./bits.js";

const kept = new Map();
const viewsOf = (kind) => {
  if (!kept.has(kind)) kept.set(kind, remembered(`views.${kind}`, []));
  return kept.get(kind);
};
const PARTS = ["q", "sort", "cols", "vhost"];
const same = (a, b) => PARTS.every((part) => (a[part] ?? "") === (b[part] ?? ""));

/** What the table shows now; `cols` is empty where as many columns are shown as fit. */
function current(kind, keys) {
  const { query } = route.value;
  const columns = query[keys.cols] ?? tableState(kind).value?.join(",") ?? "";
  return { q: query[keys.q] ?? "", sort: query[keys.sort] ?? "", cols: columns, vhost: chosenVhost.value };
}

function SaveForm({ views, view, onClose }) {
  const [name, setName] = useState("");
  const run = async () => { views.value = [...views.value.filter((one) => one.name !== name), { ...view, name }].sort((a, b) => a.name.localeCompare(b.name)); toast(`View ${name} is kept in this browser`); };
  return html`<${FormDialog} title="Keep this view" action=${views.value.some((one) => one.name === name) ? "Replace" : "Keep"} run=${run} onClose=${onClose} disabled=${!name.trim()}>
    <${Text} label="Name" value=${name} onValue=${setName} autofocus required maxlength="60" /><p class="small muted">Filter, order, columns and virtual host, in this browser. “Copy a link” in the same menu makes an address of them for somebody else.</p><//>`;
}

/** `keys` are the names in the address: {q, sort, cols}. */
export function ViewsMenu({ kind, keys }) {
  const views = viewsOf(kind);
  const now = current(kind, keys);
  const active = views.value.find((one) => same(one, now));
  const apply = (one) => { chosenVhost.value = one.vhost ?? ""; setQuery({ [keys.q]: one.q, [keys.sort]: one.sort, [keys.cols]: one.cols }, true); };
  const link = () => {
    const parts = new URLSearchParams({ ...(now.q ? { [keys.q]: now.q } : {}), ...(now.sort ? { [keys.sort]: now.sort } : {}), ...(now.cols ? { [keys.cols]: now.cols } : {}), vhost: now.vhost || "*" });
    void copy(`${location.href.split("#")[0]}${route.value.path}?${parts}`, "The link is copied");
  };
  return html`<${Menu} icon="bookmark" label="Views" text=${active?.name ?? ""}>${views.value.length > 0 && html`<div class="k">Views</div>${views.value.map((one) => html`<div class="pair" key=${one.name}><button type="button" onClick=${() => apply(one)}><${Icon} name=${one === active ? "check" : "bookmark"} /><span class="ellipsis">${one.name}</span></button><${Button} small kind="ghost" icon="trash" label=${`Forget ${one.name}`} onClick=${() => { views.value = views.value.filter((other) => other !== one); }} /></div>`)}<hr />`}
    <button type="button" onClick=${() => show((close) => html`<${SaveForm} views=${views} view=${now} onClose=${close} />`)}><${Icon} name="plus" />Keep this view…</button>
    <button type="button" onClick=${link}><${Icon} name="link" />Copy a link to it</button>
    ${(now.q || now.sort || now.cols) && html`<button type="button" onClick=${() => { tableState(kind).value = null; setQuery({ [keys.q]: "", [keys.sort]: "", [keys.cols]: "" }); }}><${Icon} name="close" />Back to the plain table</button>`}<//>`;
}
