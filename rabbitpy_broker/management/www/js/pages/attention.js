// What is unusual now, and what can be done about it.
import { html } from "../core/html.js";
import { get, call } from "../core/api.js";
import { to } from "../core/router.js";
import { bytes, int, rate } from "../core/format.js";
import { Button, Empty, Icon, Loading, Note, PageHead, Time, Badge, Card, confirm, toast, useLoad } from "../ui/bits.js";

const PLACES = { queue: "queues", exchange: "exchanges", connection: "connections", channel: "channels", vhost: "vhosts" };

export function address(target) {
  if (!target || target.kind === "node" || !PLACES[target.kind]) return "#/node";
  return to([PLACES[target.kind], ...(target.vhost !== undefined && target.kind !== "vhost" && ["queue", "exchange"].includes(target.kind) ? [target.vhost] : []), target.name ?? target.vhost]);
}

export function AttentionList({ limit }) {
  const { value, error, loading, refresh } = useLoad(() => get("attention"), [], 5000);
  if (loading && !value) return html`<div class="body"><${Loading} /></div>`;
  if (error && !value) return html`<div class="body"><${Note} kind="bad">${error.message}<//></div>`;
  const items = value?.items ?? [];
  if (!items.length) return html`<${Empty} icon="check" title="Nothing needs attention">No alarm, no queue that grows unheeded, no message that is lost.<//>`;
  const act = (item) => confirm({ title: item.action.title, text: `${item.text} ${item.action.title} now?`, action: item.action.title, danger: item.action.method === "DELETE", run: async () => { await call(item.action.method, item.action.path, item.action.body); toast("Done"); void refresh(); } });
  return html`<ul>${items.slice(0, limit ?? items.length).map((item) => html`<li class="row" style=${{ padding: "9px 14px", borderBottom: "1px solid var(--line)" }}>
    <span class=${item.severity === "critical" ? "bad" : "warn"}><${Icon} name="attention" /></span>
    <div class="grow"><div class="wrap"><a class="inline" href=${address(item.target)}>${item.target?.kind === "node" ? `Node ${item.target.name ?? ""}`.trim() : item.target?.name || item.target?.vhost}</a><span class="soft">${item.target?.kind === "node" ? ":" : ""} ${item.text}</span></div>
    <div class="row wrapped small muted"><${Badge} kind=${item.severity === "critical" ? "bad" : "warn"}>${item.kind.replaceAll("_", " ")}<//>${item.target?.vhost && item.target.kind !== "vhost" && html`<span>vhost ${item.target.vhost}</span>`}${Object.entries(item.figures ?? {}).filter(([, one]) => typeof one === "number").slice(0, 4).map(([name, one]) => html`<span>${name.replaceAll("_", " ")} ${/rate|per_s/.test(name) ? rate(one) : /bytes/.test(name) ? bytes(one) : int(one)}</span>`)}${item.since && html`<span>since <${Time} at=${item.since} /></span>`}</div></div>
    ${item.action && html`<${Button} small onClick=${() => act(item)}>${item.action.title}<//>`}</li>`)}${limit && items.length > limit ? html`<li class="body" style=${{ padding: "9px 14px" }}><a href="#/attention">${items.length - limit} more</a></li>` : null}</ul>`;
}

export default function Attention() {
  return html`<${PageHead} title="Attention" sub="What is unusual now" /><${Card} bare label="Attention"><${AttentionList} /><//>`;
}
