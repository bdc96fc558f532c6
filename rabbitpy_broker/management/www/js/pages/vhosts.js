// All virtual hosts.
import { html } from "../core/html.js";
import { get, isAdmin, isMonitor, isReadOnly } from "../core/api.js";
import { to } from "../core/router.js";
import { short, rate } from "../core/format.js";
import { Badge, Button, Card, Loading, Note, PageHead, show, useLoad } from "../ui/bits.js";
import { OwnerBadge, replicationOf, useCluster } from "../ui/cluster.js";
import { VhostForm } from "../ui/adminform.js";

export default function Vhosts() {
  const { value, error, refresh } = useLoad(() => get("vhosts"), [], 3000);
  const { value: nodes } = useLoad(() => (isMonitor() ? get("nodes?columns=workers") : Promise.resolve([])), [], 5000);
  const { cluster } = useCluster();
  const elsewhere = (cluster?.vhosts ?? []).filter((one) => value && !value.some((here) => here.name === one.name));
  const owner = (name) => { const found = replicationOf(cluster, name); return found ? html`<${OwnerBadge} it=${found} />` : html`<span class="muted">this node alone</span>`; };
  const workers = nodes?.[0]?.workers; // of a daemon of one process: none
  const workerOf = (name) => workers.find((one) => one.vhosts.includes(name))?.worker;
  const speed = (one, name) => rate(one.message_stats?.[`${name}_details`]?.rate ?? 0);
  return html`<${PageHead} title="Virtual hosts">${isAdmin() && !isReadOnly() && html`<${Button} icon="plus" kind="primary" onClick=${() => show((close) => html`<${VhostForm} onClose=${close} onDone=${refresh} />`)}>Add virtual host<//>`}<//>${error && html`<${Note} kind="bad">${error.message}<//>`}
    <${Card} bare label="Virtual hosts">${!value ? html`<div class="body"><${Loading} /></div>` : html`<div class="plain-wrap" tabindex="0" role="group"><table class="plain"><thead><tr><th>Name</th><th>Description</th><th>Tags</th>${cluster && html`<th>Owner</th>`}${workers && html`<th class="num">Worker</th>`}<th class="num">Ready</th><th class="num">Unacked</th><th class="num">In /s</th><th class="num">Out /s</th></tr></thead><tbody>${value.map((one) => html`<tr><td><a href=${to(["vhosts", one.name])}>${one.name}</a> ${one.tracing && html`<${Badge} kind="warn">tracing<//>`}${Object.values(one.cluster_state ?? {}).includes("nodedown") && html`<${Badge} kind="bad">down<//>`}</td><td>${one.description}</td><td><span class="row tight wrapped">${(Array.isArray(one.tags) ? one.tags : []).map((tag) => html`<${Badge}>${tag}<//>`)}</span></td>${cluster && html`<td>${owner(one.name)}</td>`}${workers && html`<td class="num">${workerOf(one.name)}</td>`}<td class="num">${short(one.messages_ready)}</td><td class="num">${short(one.messages_unacknowledged)}</td><td class="num">${speed(one, "publish")}</td><td class="num">${speed(one, "deliver_get")}</td></tr>`)}${elsewhere.map((one) => html`<tr><td><a href=${to(["vhosts", one.name])}>${one.name}</a></td><td></td><td></td><td><${OwnerBadge} it=${one} /></td><td class="num muted" colspan="4">at its owner</td></tr>`)}</tbody></table></div>`}<//>`;
}
