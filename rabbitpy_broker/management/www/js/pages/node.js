// The node: memory, disk, descriptors, what stores do, feature flags, statistics.
import { html, useMemo, useRef } from "../core/html.js";
import { get, del, path, isAdmin, isReadOnly } from "../core/api.js";
import { useTopic } from "../core/live.js";
import { to } from "../core/router.js";
import { bytes, duration, int, percent, plural, decimal } from "../core/format.js";
import { Badge, Button, Card, Empty, Icon, KV, Loading, Menu, Note, confirm, toast, useLoad } from "../ui/bits.js";
import { History, Spark } from "../ui/chart.js";
import { ClusterCards, useCluster } from "../ui/cluster.js";
import { Backups } from "../ui/clusterforms.js";
import { Meter } from "./overview.js";

const skip = (name) => name.replaceAll("_", " ");
const seconds = (value) => (typeof value === "number" ? (value < 0.1 ? `${(value * 1000).toFixed(1)} ms` : duration(value)) : value);

function figure(name, value) {
  if (value === null || value === undefined) return html`<span class="muted">–</span>`;
  if (typeof value === "boolean") return value ? "yes" : "no";
  if (typeof value !== "number") return typeof value === "object" ? html`<code>${JSON.stringify(value)}</code>` : String(value);
  if (/bytes/.test(name)) return bytes(value);
  if (/_s$|seconds/.test(name)) return seconds(value);
  if (/_ms$/.test(name)) return `${int(value)} ms`;
  return Number.isInteger(value) ? int(value) : decimal(value);
}

function Memory({ name }) {
  const { value } = useLoad(() => get(`nodes/${path(name)}/memory`), [name], 5000);
  const memory = value?.memory;
  if (!memory || typeof memory !== "object") return html`<${Loading} />`;
  const total = memory.total?.rss ?? memory.total ?? 1;
  const parts = Object.entries(memory).filter(([key, one]) => typeof one === "number" && one > 0 && key !== "total").sort((a, b) => b[1] - a[1]).slice(0, 12);
  return html`<div class="stack tight">${parts.map(([key, one]) => html`<div><div class="row small"><span class="soft grow">${skip(key)}</span><span class="tnum">${bytes(one)}</span><span class="muted tnum" style=${{ width: "48px", textAlign: "right" }}>${percent(one, total)}</span></div><${Meter} part=${one} whole=${total * 1.26} /></div>`)}</div>`;
}

/** What a store has done since it was last looked at: epochs and bytes a second, and how long a sync took. */
function useSteps(stores, at) {
  const kept = useRef({ at: 0, stores: {}, trails: {}, now: {} });
  return useMemo(() => {
    const last = kept.current;
    if (!stores || at === last.at) return last;
    const passed = (at - last.at) / 1000;
    const next = { at, stores: {}, trails: {}, now: {} };
    for (const store of stores) {
      const before = last.stores[store.vhost];
      next.stores[store.vhost] = store;
      const epochs = before ? store.epochs - before.epochs : 0;
      const now = { epochs: before ? epochs / passed : null, bytes: before ? (store.synced_bytes - before.synced_bytes) / passed : null, sync: epochs > 0 ? (store.sync_seconds - before.sync_seconds) / epochs : null };
      next.now[store.vhost] = now;
      next.trails[store.vhost] = [...(last.trails[store.vhost] ?? []), now.sync].slice(-60);
    }
    kept.current = next;
    return next;
  }, [stores, at]);
}

function Stores({ name }) {
  const { value, error } = useLoad(async () => ({ ...(await get(`nodes/${path(name)}/internals`)), read_at: Date.now() }), [name], 2000);
  const steps = useSteps(value?.stores, value?.read_at);
  if (error && !value) return html`<p class="muted">${error.message}</p>`;
  if (!value) return html`<${Loading} />`;
  const stat = (key, text, trail) => html`<div class="stat"><div class="k">${key}</div><div class="v" style=${{ fontSize: "16px" }}>${text}</div>${trail}</div>`;
  return html`<div class="stack wide">${value.stores.map((store) => {
    const now = steps.now[store.vhost] ?? {};
    const heaps = ["persistent", "transient"].filter((kind) => store[kind]);
    return html`<div class="stack tight" key=${store.vhost}><h3>${store.vhost !== undefined ? html`<a href=${to(["vhosts", store.vhost])}>Virtual host ${store.vhost}</a>` : "Store"}</h3>
      <div class="stats">${stat("Epochs", now.epochs != null ? `${decimal(now.epochs)} /s` : "–")}${stat("Sync takes", now.sync != null ? seconds(now.sync) : "–", html`<${Spark} values=${steps.trails[store.vhost] ?? []} color="var(--c-unacked)" label="time of a sync" />`)}${stat("Synced", now.bytes != null ? `${bytes(now.bytes)}/s` : "–")}${stat("Mean of all", store.epochs ? seconds(store.sync_seconds / store.epochs) : "–")}${stat("Journal", `${bytes(store.journal_bytes)}, ${plural(store.journal_files, "file")}`)}${stat("Failed", store.epoch_failures ? html`<span class="bad">${int(store.epoch_failures)}</span>` : "none")}</div>
      <div class="plain-wrap" tabindex="0" role="group"><table class="plain"><thead><tr><th>Large messages</th>${Object.keys(store[heaps[0]] ?? {}).map((key) => html`<th class="num">${skip(key)}</th>`)}</tr></thead><tbody>${heaps.map((kind) => html`<tr><td>${kind}</td>${Object.entries(store[kind]).map(([key, one]) => html`<td class="num">${figure(key, one)}</td>`)}</tr>`)}</tbody></table></div>
      <p class="small muted">${int(store.epochs)} epochs, ${bytes(store.synced_bytes)} synced, ${int(store.elided_publishes)} publishes were acked before they had to be written, ${int(store.scatters)} journal files were scattered to queues.</p></div>`;
  })}</div>`;
}

/** The processes of a daemon that has several. */
function Workers({ rows }) {
  return html`<div class="plain-wrap" tabindex="0" role="group"><table class="plain"><thead><tr><th>Worker</th><th>State</th><th>Process</th><th>Virtual hosts</th><th class="num">Memory</th><th class="num">Sockets</th><th class="num">Up</th></tr></thead><tbody>${rows.map((one) => html`<tr><td>${one.worker}</td><td>${one.running ? html`<${Badge} kind="good">running<//>` : html`<${Badge} kind="bad">down<//>`}</td><td class="mono">${one.os_pid}</td><td><span class="row tight wrapped">${one.vhosts.slice(0, 12).map((name) => html`<a href=${to(["vhosts", name])}>${name}</a>`)}${one.vhosts.length > 12 && html`<a class="muted" href="#/vhosts">and ${int(one.vhosts.length - 12)} more</a>`}</span></td><td class="num">${bytes(one.mem_used)}</td><td class="num">${int(one.sockets_used)}</td><td class="num">${one.uptime == null ? "–" : duration(one.uptime / 1000)}</td></tr>`)}</tbody></table></div>`;
}

export default function NodePage() {
  const overview = useTopic("overview");
  const { value: nodes, error } = useLoad(() => get("nodes"), [], 5000);
  const { value: broker } = useLoad(() => get("overview"), []);
  const { cluster, refresh } = useCluster();
  if (error && !nodes) return html`<${Note} kind="bad">${error.message}<//>`;
  if (!nodes || !broker) return html`<${Loading} />`;
  const node = { ...(nodes.find((one) => one.name === broker.node) ?? nodes[0]), ...(overview?.node ?? {}) };
  const reset = () => confirm({ title: "Forget the statistics", action: "Forget", danger: true, text: "All samples and charts begin anew. Counts of messages are not touched.", run: async () => { await del("reset"); toast("Forgotten"); } });
  const bar = (name, part, whole, text, alarm) => html`<div class="stack tight"><div class="row wrapped"><span class="soft grow">${name}</span><span class="tnum">${text}</span></div><${Meter} part=${part} whole=${whole} alarm=${alarm} /></div>`;
  const limit = node.disk_free_limit || 1;
  return html`<div class="page-head"><h1 class="wrap">${node.name}</h1>${node.mem_alarm && html`<${Badge} kind="bad">memory alarm<//>`}${node.disk_free_alarm && html`<${Badge} kind="bad">disk alarm<//>`}${!node.mem_alarm && !node.disk_free_alarm && html`<${Badge} kind="good">no alarm<//>`}<span class="sub">up ${duration((node.uptime ?? 0) / 1000)}</span><div class="actions">${isAdmin() && !isReadOnly() && html`<${Menu} label="More" text="Actions"><button type="button" onClick=${reset}><${Icon} name="refresh" />Forget the statistics…</button><//>`}</div></div>
    <div class="grid">${cluster && html`<${ClusterCards} cluster=${cluster} refresh=${refresh} />`}<div class="s6"><${Card} title="What it has left"><div class="stack">${bar("Memory", node.mem_used, node.mem_limit, `${bytes(node.mem_used)} of ${bytes(node.mem_limit)}`, node.mem_alarm)}${bar("Disk", limit, Math.max(limit, node.disk_free), `${bytes(node.disk_free)} free, alarm below ${bytes(node.disk_free_limit)}`, node.disk_free_alarm)}${bar("File descriptors", node.fd_used, node.fd_total, `${int(node.fd_used)} of ${int(node.fd_total)}`)}${bar("Sockets", node.sockets_used, node.sockets_total, `${int(node.sockets_used)} of ${int(node.sockets_total)}`)}
        <${KV} items=${[["Process", html`<span class="mono">${node.os_pid}</span>`], ["Cores", int(node.processors)], ["Version", `${broker?.product_name ?? ""} ${broker?.product_version ?? ""}`], ["Stands for", broker && `RabbitMQ ${broker.rabbitmq_version}`], ["Data", html`<span class="mono">${node.db_dir}</span>`], ["Configuration", html`<span class="mono">${(node.config_files ?? []).join(", ") || "none"}</span>`], ["Log", html`<span class="mono">${(node.log_files ?? []).join(", ") || "standard output"}</span>`]]} /></div><//></div>
      <div class="s6"><${Card} title="Memory"><${Memory} name=${node.name} /><//></div>
      ${node.workers && html`<div class="s12"><${Card} title="Workers" bare><${Workers} rows=${node.workers} /><//></div>`}
      <div class="s12"><${Card} title="Stores"><${Stores} name=${node.name} /><//></div>
      <${History} scope="node" />
      ${isAdmin() && html`<div class="s12"><${Backups} /></div>`}
      <div class="s6"><${Card} title="Since the start"><${KV} items=${["connection_created", "connection_closed", "channel_created", "channel_closed", "queue_declared", "queue_created", "queue_deleted"].map((key) => [skip(key), int(node[key])])} /><//></div>
      <div class="s6"><${Card} title="Listeners" bare>${broker?.listeners?.length ? html`<div class="plain-wrap" tabindex="0" role="group"><table class="plain"><thead><tr><th>Protocol</th><th>Address</th><th class="num">Port</th></tr></thead><tbody>${broker.listeners.map((one) => html`<tr><td><${Badge}>${one.protocol}<//></td><td class="mono">${one.ip_address}</td><td class="num">${one.port}</td></tr>`)}</tbody></table></div>` : html`<${Empty} title="None are shown to you" />`}<//></div></div>`;
}
