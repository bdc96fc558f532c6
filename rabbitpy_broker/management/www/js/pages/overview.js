// The overview: what flows, what waits, what the node has left, and what needs a look.
import { html, useRef, useMemo } from "../core/html.js";
import { get, isMonitor } from "../core/api.js";
import { useTopic, asOf } from "../core/live.js";
import { short, rate, bytes, duration, percent, plural } from "../core/format.js";
import { Card, KV, Loading, Badge, Empty, useLoad, PageHead } from "../ui/bits.js";
import { History, Spark } from "../ui/chart.js";
import { AttentionList } from "./attention.js";

function Stat({ name, value, unit, color, trail, href }) {
  const inside = html`<div class="k">${color && html`<i style=${{ background: `var(${color})` }}></i>`}${name}</div><div class="v">${value}${unit && html` <small>${unit}</small>`}</div>${trail && html`<${Spark} values=${trail} color=${`var(${color})`} label=${`${name}, last minutes`} />`}`;
  return href ? html`<a class="stat" href=${href}>${inside}</a>` : html`<div class="stat">${inside}</div>`;
}

/** The last values of each figure, one a second, while the page is shown. */
function useTrails(overview) {
  const trails = useRef({ at: 0, lists: {} });
  return useMemo(() => {
    const kept = trails.current;
    if (overview && asOf.value !== kept.at) {
      kept.at = asOf.value;
      const values = { ...overview.rates, ...overview.totals };
      const lists = {};
      for (const name of ["publish", "deliver_get", "ack", "messages_ready", "messages_unacknowledged"]) lists[name] = [...(kept.lists[name] ?? []), values[name] ?? null].slice(-90);
      kept.lists = lists;
    }
    return kept.lists;
  }, [overview, asOf.value]);
}

export function Meter({ part, whole, alarm }) {
  const share = whole ? Math.min(1, part / whole) : 0;
  return html`<div class="meter" role="meter" aria-label="used" aria-valuenow=${Math.round(share * 100)} aria-valuemin="0" aria-valuemax="100"><i class=${alarm || share > 0.95 ? "bad" : share > 0.8 ? "warn" : ""} style=${{ width: `${(share * 100).toFixed(1)}%` }}></i></div>`;
}

function NodeCard({ node, broker }) {
  if (!node) return html`<${Card} title="Node">${broker ? html`<${KV} items=${[["Version", broker.product_version ?? broker.rabbitmq_version], ["Cluster", broker.cluster_name], ["As RabbitMQ", broker.rabbitmq_version]]} />` : html`<${Loading} />`}<//>`;
  const line = (name, part, whole, text, alarm) => html`<div class="stack tight"><div class="row"><span class="soft">${name}</span><span class="grow"></span><span class="tnum">${text}</span></div><${Meter} part=${part} whole=${whole} alarm=${alarm} /></div>`;
  const diskTight = node.disk_free_limit ? node.disk_free_limit / Math.max(1, node.disk_free) : 0;
  return html`<${Card} title="Node" actions=${html`<a href="#/node">Details</a>`}><div class="stack">
    ${line("Memory", node.mem_used, node.mem_limit, `${bytes(node.mem_used)} of ${bytes(node.mem_limit)}`, node.mem_alarm)}
    ${line("Disk", diskTight, 1, `${bytes(node.disk_free)} free, limit ${bytes(node.disk_free_limit)}`, node.disk_free_alarm)}
    ${line("File descriptors", node.fd_used, node.fd_total, `${short(node.fd_used)} of ${short(node.fd_total)}`)}
    <${KV} items=${[["Up for", node.uptime != null && duration(node.uptime / 1000)], ["Name", html`<span class="mono">${broker?.node ?? node.name}</span>`], ["Version", `${broker?.product_version ?? ""} (RabbitMQ ${broker?.rabbitmq_version ?? ""})`]]} /></div><//>`;
}

function Listeners({ broker }) {
  const list = broker?.listeners;
  if (!list?.length) return null;
  return html`<${Card} title="Listeners" bare><div class="plain-wrap" tabindex="0" role="group"><table class="plain"><thead><tr><th>Protocol</th><th>Address</th><th class="num">Port</th></tr></thead><tbody>${list.map((one) => html`<tr><td><${Badge}>${one.protocol}<//></td><td class="mono">${one.ip_address}</td><td class="num mono">${one.port}</td></tr>`)}</tbody></table></div><//>`;
}

export default function Overview() {
  const overview = useTopic("overview");
  const { value: broker } = useLoad(() => get("overview"), []);
  const trails = useTrails(overview);
  const rates = overview?.rates ?? {};
  const totals = overview?.totals ?? {};
  const node = overview?.node;
  const lost = (rates.return_unroutable ?? 0) + (rates.drop_unroutable ?? 0);
  const live = overview && asOf.value ? [Math.floor(asOf.value / 1000), { ...rates, ...totals }] : null;
  return html`<${PageHead} title="Overview" sub=${broker && html`${broker.cluster_name}`} />
    <div class="stack wide">
      <div class="stats" aria-label="Figures of now">
        <${Stat} name="Published" value=${rate(rates.publish)} unit="/s" color="--c-publish" trail=${trails.publish ?? []} />
        <${Stat} name="Delivered" value=${rate(rates.deliver_get)} unit="/s" color="--c-deliver" trail=${trails.deliver_get ?? []} />
        <${Stat} name="Acked" value=${rate(rates.ack)} unit="/s" color="--c-ack" trail=${trails.ack ?? []} />
        <${Stat} name="Ready" value=${short(totals.messages_ready)} color="--c-ready" trail=${trails.messages_ready ?? []} href="#/queues?sort=-messages_ready" />
        <${Stat} name="Unacked" value=${short(totals.messages_unacknowledged)} color="--c-unacked" trail=${trails.messages_unacknowledged ?? []} href="#/queues?sort=-messages_unacknowledged" />
      </div>
      <div class="stats">${[["Queues", "queues"], ["Exchanges", "exchanges"], ["Connections", "connections"], ["Channels", "channels"], ["Consumers", "consumers"]].map(([name, key]) => html`<${Stat} name=${name} value=${short(totals[key])} href=${`#/${key}`} />`)}
        <${Stat} name="Unroutable" value=${rate(lost)} unit="/s" /></div>
      <div class="grid"><${History} scope="node" live=${live} />
        <div class="s4"><${NodeCard} node=${node} broker=${broker} /></div>
        <div class="s8"><${Card} title="Attention" actions=${html`<a href="#/attention">All</a>`} bare><${AttentionList} limit=${5} /><//></div>
        ${isMonitor() && html`<div class="s12"><${Listeners} broker=${broker} /></div>`}</div>
    </div>`;
}
