// The cluster that this broker is a node of: its nodes, the engine, who owns a replicated virtual host and how far its replicas are.
import { html } from "../core/html.js";
import { get, isAdmin, isMonitor, isReadOnly } from "../core/api.js";
import { to } from "../core/router.js";
import { duration, int, plural } from "../core/format.js";
import { Badge, Button, Card, Icon, Note, show, useLoad } from "./bits.js";
import { TransferForm } from "./adminform.js";
import { Maintenance, addReplica, removeReplica } from "./clusterforms.js";

const ENGINES = { postgresql: "PostgreSQL", kafka: "Kafka" };

/** What /api/cluster says; null where there is no cluster, or it is not shown to this user. */
export function useCluster() {
  const { value, refresh } = useLoad(() => (isMonitor() ? get("cluster") : Promise.resolve(null)), [], 2000);
  return { cluster: value?.is_clustered ? value : null, refresh };
}

export const replicationOf = (cluster, name) => cluster?.vhosts.find((one) => one.name === name);

const Running = ({ one }) => (one.running ? html`<${Badge} kind="good">running<//>` : html`<${Badge} kind="bad">away<//>`);

function lagText({ lag, lag_s: seconds, running }) {
  if (lag == null) return running ? "not known yet" : "not known";
  if (lag === 0) return "level";
  return `${plural(lag, "entry", "entries")}${seconds > 0 ? `, ${duration(seconds)}` : ""}`;
}

function EngineState({ engine, nodes }) {
  const kind = ENGINES[engine.kind] ?? engine.kind;
  const slow = nodes.filter((one) => one.slow_append_ms);
  if (engine.is_reachable && slow.length) return html`<${Note} kind="warn">The engine, ${kind}, is slow: an append of ${slow.map((one) => `${one.name} takes ${int(one.slow_append_ms)} ms`).join(", of ")}. Publishers to replicated virtual hosts wait so long for their confirms.<//>`;
  if (engine.is_reachable) return html`<p class="row wrapped"><${Badge} kind="good">answers<//><span>Engine: ${kind}</span>${engine.append_ms != null && html`<span class="soft">${engine.append_ms} ms for an append of this node</span>`}</p>`;
  return html`<${Note} kind="bad">The engine, ${kind}, has not answered for ${duration(engine.silent_s)}. What is published to replicated virtual hosts is not confirmed until it does.<//>`;
}

function Nodes({ cluster, refresh }) {
  return html`<div class="plain-wrap" tabindex="0" role="group"><table class="plain"><thead><tr><th>Node</th><th>State</th><th class="num">Owns</th><th class="num">Replicas</th><th>Furthest behind</th><th>Alarms</th><th>AMQP</th><th>Version</th><th><span class="sr">Actions</span></th></tr></thead><tbody>${cluster.nodes.map((one) => {
    const theirs = cluster.vhosts.flatMap((vhost) => vhost.replicas.filter((replica) => replica.node === one.name));
    const last = theirs.reduce((worst, replica) => (!worst || (replica.lag ?? Infinity) > (worst.lag ?? Infinity) ? replica : worst), null);
    return html`<tr key=${one.name}><td class="mono">${one.name}${one.name === cluster.node && html` <span class="muted">this one</span>`}</td><td><span class="row tight"><${Running} one=${one} />${one.maintenance && html`<${Badge} kind="warn">maintenance<//>`}</span></td><td class="num">${int(one.owned)}</td><td class="num">${int(one.replicas)}</td><td>${last ? lagText(last) : "–"}</td><td><span class="row tight wrapped">${(one.alarms ?? []).map((alarm) => html`<${Badge} kind="bad">${alarm}<//>`)}${(one.held ?? []).map((name) => html`<${Badge} kind="bad">${name} is held<//>`)}</span></td><td class="mono">${(one.addresses ?? []).join(", ")}</td><td>${one.version}</td><td class="act"><${Maintenance} node=${one} onDone=${refresh} /></td></tr>`;
  })}</tbody></table></div>`;
}

export function OwnerBadge({ it }) {
  return it.owner ? html`<span class="mono">${it.owner}</span>` : html`<${Badge} kind="bad">nobody<//>`;
}

function Vhosts({ cluster }) {
  return html`<div class="plain-wrap" tabindex="0" role="group"><table class="plain"><thead><tr><th>Virtual host</th><th>Owner</th><th class="num">Term</th><th class="num">Log's end</th><th>Replicas</th><th>State</th></tr></thead><tbody>${cluster.vhosts.map((one) => html`<tr key=${one.name}><td><a href=${to(["vhosts", one.name])}>${one.name}</a></td><td><${OwnerBadge} it=${one} /></td><td class="num">${int(one.term)}</td><td class="num">${int(one.position)}</td><td><span class="row tight wrapped">${one.replicas.map((replica) => html`<${Badge} kind=${!replica.running ? "bad" : replica.lag ? "warn" : "good"} title=${lagText(replica)}>${replica.node}<//>`)}</span></td><td><${QuorumState} it=${one} /></td></tr>`)}</tbody></table></div>`;
}

function QuorumState({ it }) {
  return html`<span class="row tight">${it.held && html`<${Badge} kind="bad">publishers are held<//>`}${it.has_quorum ? !it.held && html`<${Badge} kind="good">well<//>` : html`<${Badge} kind="bad">no majority is level<//>`}</span>`;
}

/** On the page of a node. */
export function ClusterCards({ cluster, refresh }) {
  return html`<div class="s12"><${Card} title=${cluster.nodes.some((one) => one.name === cluster.name) ? "Cluster" : `Cluster ${cluster.name}`} bare><div class="body"><${EngineState} engine=${cluster.engine} nodes=${cluster.nodes} /></div><${Nodes} cluster=${cluster} refresh=${refresh} /><//></div>
    ${cluster.vhosts.length > 0 && html`<div class="s12"><${Card} title="Replicated virtual hosts" bare><${Vhosts} cluster=${cluster} /><//></div>`}`;
}

/** On the page of a virtual host: who owns it, and the others. */
export function Replication({ it, refresh, nodes }) {
  const may = isAdmin() && !isReadOnly();
  const without = nodes.filter((one) => one.running && !it.replicas.some((replica) => replica.node === one.name)).map((one) => one.name);
  const others = it.replicas.filter((one) => one.running && !one.is_owner);
  const transfer = may && html`<${Button} small disabled=${!without.length} onClick=${() => addReplica(it.name, without, refresh)}>Add replica<//><${Button} small disabled=${!others.length} onClick=${() => show((close) => html`<${TransferForm} name=${it.name} nodes=${others.map((one) => [one.node, `${one.node}, ${lagText(one)}`])} onClose=${close} onDone=${refresh} />`)}>Hand over<//>`;
  return html`<${Card} title="Replicas" bare actions=${transfer}><div class="body row wrapped"><span>Owner <${OwnerBadge} it=${it} /></span><span class="soft">term ${int(it.term)}</span><span class="soft">log's end ${int(it.position)}</span><${QuorumState} it=${it} /></div>
    <div class="plain-wrap" tabindex="0" role="group"><table class="plain"><thead><tr><th>Node</th><th>State</th><th class="num">Position</th><th>Behind</th><th><span class="sr">Actions</span></th></tr></thead><tbody>${it.replicas.map((one) => html`<tr key=${one.node}><td class="mono">${one.node} ${one.is_owner && html`<${Badge} kind="accent">owner<//>`}</td><td><${Running} one=${one} /></td><td class="num">${int(one.position)}</td><td>${lagText(one)}</td><td class="act">${may && !one.is_owner && html`<${Button} small kind="ghost" icon="trash" label=${`Take the replica from ${one.node}`} onClick=${() => removeReplica(it.name, one.node, refresh)} />`}</td></tr>`)}</tbody></table></div><//>`;
}

/** Of a queue whose messages several nodes have. */
export function Members({ leader, members, online }) {
  return html`<span class="row tight wrapped">${members.map((node) => html`<${Badge} kind=${online.includes(node) ? "good" : "bad"} title=${online.includes(node) ? "online" : "away"}>${node === leader && html`<${Icon} name="node" /> `}${node}${node === leader ? ", leader" : ""}<//>`)}</span>`;
}
