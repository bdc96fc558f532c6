// One virtual host: charts, permissions, tracing, protection from deletion.
import { html } from "../core/html.js";
import { get, put, post, del, path, isAdmin, isMonitor, isReadOnly } from "../core/api.js";
import { go, to } from "../core/router.js";
import { int } from "../core/format.js";
import { Badge, Button, Card, Check, Empty, Icon, KV, Loading, Menu, Note, confirm, show, toast, useLoad, failed } from "../ui/bits.js";
import { History } from "../ui/chart.js";
import { Replication, replicationOf, useCluster } from "../ui/cluster.js";
import { Backups, replicate, unreplicate } from "../ui/clusterforms.js";
import { MoveForm, PermissionForm, VhostForm } from "../ui/adminform.js";

/** A virtual host of which no node has answered. */
function Elsewhere({ it, refresh, nodes }) {
  return html`<div class="page-head"><h1 class="wrap"><span class="muted">Virtual host</span> ${it.name}</h1></div>
    <div class="stack wide"><${Note}>${it.owner ? html`Node <b class="mono">${it.owner}</b> owns it, and does not answer.` : "Nobody owns it now. A node that follows takes it over when the lease of the former owner has ended."}<//><${Replication} it=${it} refresh=${refresh} nodes=${nodes} /></div>`;
}

export default function VhostPage({ segments }) {
  const [name] = segments;
  const { cluster, refresh } = useCluster();
  const all = useLoad(() => get("vhosts"), [name], 3000);
  const it = all.value?.find((one) => one.name === name);
  const isHere = Boolean(it);
  const permissions = useLoad(() => (isAdmin() && isHere ? get(`vhosts/${path(name)}/permissions`) : Promise.resolve([])), [name, isHere], 10000);
  const users = useLoad(() => (isAdmin() ? get("users?columns=name") : Promise.resolve([])), []);
  const nodes = useLoad(() => (isMonitor() ? get("nodes?columns=workers") : Promise.resolve([])), [name], 5000);
  const workers = nodes.value?.[0]?.workers ?? []; // of a daemon of one process: none
  const worker = workers.find((one) => one.vhosts.includes(name))?.worker;
  if (!all.value) return all.error ? html`<${Note} kind="bad">${all.error.message}<//>` : html`<${Loading} />`;
  const replicated = replicationOf(cluster, name);
  if (!it && replicated) return html`<${Elsewhere} it=${replicated} refresh=${refresh} nodes=${cluster.nodes} />`;
  if (!it) return html`<${Empty} icon="vhost" title=${`There is no virtual host ${name}`}><a href="#/vhosts">All virtual hosts</a><//>`;
  const may = isAdmin() && !isReadOnly();
  const isProtected = it.metadata?.protected_from_deletion ?? it.protected_from_deletion;
  const remove = () => confirm({ title: `Delete ${name}`, danger: true, action: "Delete virtual host", typed: name, text: "The virtual host goes with its queues, messages, exchanges, policies and permissions. Its connections are closed. This cannot be undone.", run: async () => { await del(`vhosts/${path(name)}`); toast("Deleted"); go("/vhosts"); } });
  const change = (work) => work().then(() => { toast("Changed"); void all.refresh(); }, failed);
  const changed = () => { void refresh(); void all.refresh(); };
  const revoke = (one) => confirm({ title: "Take permissions away", danger: true, action: "Take away", text: `${one.user} may not enter ${name} any more. Its connections stay until they end.`, run: async () => { await del(`permissions/${path(name, one.user)}`); void permissions.refresh(); } });
  return html`<div class="page-head"><h1 class="wrap"><span class="muted">Virtual host</span> ${name}</h1>${it.tracing && html`<${Badge} kind="warn">tracing<//>`}${isProtected && html`<${Badge} kind="info">protected<//>`}<span class="sub">${it.description}</span><div class="actions">${may && html`<${Button} icon="edit" onClick=${() => show((close) => html`<${VhostForm} vhost=${it} onClose=${close} onDone=${all.refresh} />`)}>Change<//><${Menu} label="More" text="Actions"><button type="button" onClick=${() => change(() => put(`vhosts/${path(name)}`, { tracing: !it.tracing }))}><${Icon} name="route" />${it.tracing ? "Switch tracing off" : "Switch tracing on"}</button><button type="button" onClick=${() => change(() => (isProtected ? del(`vhosts/${path(name)}/deletion/protection`) : post(`vhosts/${path(name)}/deletion/protection`)))}><${Icon} name="lock" />${isProtected ? "Allow its deletion" : "Protect from deletion"}</button>${workers.length > 1 && html`<button type="button" onClick=${() => show((close) => html`<${MoveForm} name=${name} workers=${workers} now=${worker} onClose=${close} onDone=${() => { void nodes.refresh(); void all.refresh(); }} />`)}><${Icon} name="node" />Move to another worker…</button>`}${cluster && !replicated && html`<button type="button" onClick=${() => replicate(name, changed)}><${Icon} name="node" />Replicate…</button>`}${replicated && html`<button type="button" onClick=${() => unreplicate(name, replicated.owner, changed)}><${Icon} name="node" />Unreplicate…</button>`}<hr /><button type="button" class="danger" onClick=${remove}><${Icon} name="trash" />Delete…</button><//>`}</div></div>
    <div class="grid"><${History} scope=${`vhost/${path(name)}`} />
      ${replicated && html`<div class="s12"><${Replication} it=${replicated} refresh=${refresh} nodes=${cluster.nodes} /></div>`}
      <div class="s4"><${Card} title="Virtual host"><${KV} items=${[["Default queue type", it.default_queue_type && it.default_queue_type !== "undefined" ? it.default_queue_type : "classic"], ...(worker === undefined ? [] : [["Worker", worker]]), ["Ready", int(it.messages_ready)], ["Unacked", int(it.messages_unacknowledged)], ["Queues", html`<a href=${to(["queues"], { vhost: name })}>in the list</a>`], ["Policies", html`<a href=${to(["policies"], { q: name })}>in the list</a>`], ["Topology", html`<a href=${to(["topology"], { vhost: name })}>drawing</a>`]]} /><//></div>
      ${isAdmin() && html`<div class="s8"><${Card} title="Permissions" bare actions=${may && html`<${Button} small icon="plus" onClick=${() => show((close) => html`<${PermissionForm} vhost=${name} vhosts=${[name]} users=${(users.value ?? []).map((one) => one.name)} onClose=${close} onDone=${permissions.refresh} />`)}>Set<//>`}>${permissions.value?.length ? html`<div class="plain-wrap" tabindex="0" role="group"><table class="plain"><thead><tr><th>User</th><th>Configure</th><th>Write</th><th>Read</th><th><span class="sr">Actions</span></th></tr></thead><tbody>${permissions.value.map((one) => html`<tr><td><a href=${to(["users", one.user])}>${one.user}</a></td><td class="mono">${one.configure}</td><td class="mono">${one.write}</td><td class="mono">${one.read}</td><td class="act">${may && html`<${Button} small kind="ghost" icon="edit" label="Change" onClick=${() => show((close) => html`<${PermissionForm} vhost=${name} user=${one.user} vhosts=${[name]} users=${[]} first=${one} onClose=${close} onDone=${permissions.refresh} />`)} /><${Button} small kind="ghost" icon="trash" label="Take away" onClick=${() => revoke(one)} />`}</td></tr>`)}</tbody></table></div>` : html`<${Empty} icon="user" title="Nobody may enter" />`}<//></div>`}
      ${isAdmin() && html`<div class="s12"><${Backups} vhost=${name} /></div>`}</div>`;
}
