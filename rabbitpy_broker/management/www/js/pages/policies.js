// Policies and operator policies, with a preview of what a change would do.
import { html, useState } from "../core/html.js";
import { get, del, path, isAdmin, isPolicymaker, isReadOnly } from "../core/api.js";
import { route, setQuery } from "../core/router.js";
import { Arguments, Badge, Button, Card, Empty, FormDialog, Loading, Note, PageHead, Tabs, show, toast, useLoad } from "../ui/bits.js";
import { PolicyForm } from "../ui/adminform.js";
import { PolicyPreview } from "../ui/preview.js";
import { VhostPicker, useVhosts } from "../ui/vhost.js";
import { chosenVhost } from "../core/prefs.js";

function DeletePolicy({ policy, operator, onDone, onClose }) {
  const run = async () => { await del(`${operator ? "operator-policies" : "policies"}/${path(policy.vhost, policy.name)}`); toast("Deleted"); onDone(); };
  return html`<${FormDialog} wide title=${`Delete ${policy.name}`} action="Delete" danger run=${run} onClose=${onClose}><p>Without it:</p><${PolicyPreview} given=${{ ...policy, operator: Boolean(operator), delete: true }} /><//>`;
}

export default function Policies() {
  const { query } = route.value;
  const operator = query.tab === "operator";
  const kind = operator ? "operator-policies" : "policies";
  const { value, error, refresh } = useLoad(() => get(kind), [kind], 10000);
  const vhosts = useVhosts();
  const may = !isReadOnly() && (operator ? isAdmin() : isPolicymaker());
  const wanted = (query.q ?? "").toLowerCase();
  const list = value?.filter((one) => (!chosenVhost.value || one.vhost === chosenVhost.value) && [one.name, one.vhost, one.pattern].some((text) => text.toLowerCase().includes(wanted)));
  const edit = (policy) => show((close) => html`<${PolicyForm} policy=${policy} operator=${operator} vhosts=${vhosts} onClose=${close} onDone=${refresh} />`);
  return html`<${PageHead} title="Policies">${may && vhosts.length > 0 && html`<${Button} icon="plus" kind="primary" onClick=${() => edit()}>Add ${operator ? "operator policy" : "policy"}<//>`}<//>
    <${Tabs} label="Kind" value=${operator ? "operator" : "user"} onValue=${(id) => setQuery({ tab: id === "user" ? "" : id })} tabs=${[{ id: "user", title: "Policies" }, { id: "operator", title: "Operator policies" }]} />
    <div class="toolbar"><input class="input" type="search" style=${{ maxWidth: "320px" }} aria-label="Filter" placeholder="Filter policies" value=${query.q ?? ""} onInput=${(event) => setQuery({ q: event.currentTarget.value })} /><${VhostPicker} /></div>
    ${error && html`<${Note} kind="bad">${error.message}<//>`}<${Card} bare label="Policies">${!list ? html`<div class="body"><${Loading} /></div>` : list.length ? html`<div class="plain-wrap" tabindex="0" role="group"><table class="plain"><thead><tr><th>Name</th><th>Vhost</th><th>Pattern</th><th>Applies to</th><th class="num">Priority</th><th>Definition</th><th><span class="sr">Actions</span></th></tr></thead><tbody>${list.map((one) => html`<tr key=${`${one.vhost}\u0000${one.name}`}><td><b>${one.name}</b></td><td>${one.vhost}</td><td class="mono">${one.pattern}</td><td><${Badge}>${one["apply-to"]}<//></td><td class="num">${one.priority}</td><td><${Arguments} value=${one.definition} /></td><td class="act">${may && html`<${Button} small kind="ghost" icon="edit" label="Change" onClick=${() => edit(one)} /><${Button} small kind="ghost" icon="trash" label="Delete" onClick=${() => show((close) => html`<${DeletePolicy} policy=${one} operator=${operator} onDone=${refresh} onClose=${close} />`)} />`}</td></tr>`)}</tbody></table></div>` : html`<${Empty} icon="policy" title=${wanted ? "No policy matches" : "No policies"}>A policy sets what queues and exchanges whose names match its pattern do.<//>`}<//>`;
}
