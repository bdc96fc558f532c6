// One channel: what it publishes, what it holds, who consumes on it.
import { html } from "../core/html.js";
import { get, path } from "../core/api.js";
import { to, queueAddress } from "../core/router.js";
import { int, rate } from "../core/format.js";
import { cancelOf } from "../ui/consumer.js";
import { Badge, Card, Empty, KV, Loading, Note, Time, useLoad } from "../ui/bits.js";

export default function ChannelPage({ segments }) {
  const [name] = segments;
  const { value: it, error, refresh } = useLoad(() => get(`channels/${path(name)}`), [name], 2000);
  if (error?.status === 404) return html`<${Empty} icon="channel" title="This channel is closed"><a href="#/channels">All channels</a><//>`;
  if (error && !it) return html`<${Note} kind="bad">${error.message}<//>`;
  if (!it) return html`<${Loading} />`;
  const stats = it.message_stats ?? {};
  const speed = (one) => `${rate(stats[`${one}_details`]?.rate ?? 0)} /s, ${int(stats[one] ?? 0)} in all`;
  const consumers = it.consumer_details ?? [];
  return html`<div class="page-head"><h1 class="wrap">${it.name}</h1><${Badge}>${it.vhost}<//>${it.confirm && html`<${Badge} kind="info">confirms<//>`}${it.transactional && html`<${Badge} kind="info">transactional<//>`}</div>
    <div class="grid"><div class="s6"><${Card} title="Channel"><${KV} items=${[["Connection", html`<a href=${to(["connections", it.connection_details?.name])}>${it.connection_details?.name}</a>`], ["User", it.user], ["State", it.state], ["Prefetch", it.prefetch_count || "no limit"], ["Prefetch of all", it.global_prefetch_count || "no limit"], ["Unacked", int(it.messages_unacknowledged)], ["Unconfirmed", int(it.messages_unconfirmed)], ["Uncommitted", `${int(it.messages_uncommitted)} messages, ${int(it.acks_uncommitted)} acks`], it.idle_since && ["Idle since", html`<${Time} at=${it.idle_since} relative />`]]} /><//></div>
      <div class="s6"><${Card} title="Rates"><${KV} items=${[["Published", speed("publish")], ["Confirmed", speed("confirm")], ["Returned", speed("return_unroutable")], ["Delivered, got", speed("deliver_get")], ["Acked", speed("ack")], ["Redelivered", speed("redeliver")]]} /><//></div>
      <div class="s12"><${Card} title="Consumers" bare>${consumers.length ? html`<div class="plain-wrap" tabindex="0" role="group"><table class="plain"><thead><tr><th>Consumer</th><th>Queue</th><th>State</th><th class="num">Prefetch</th><th><span class="sr">Actions</span></th></tr></thead><tbody>${consumers.map((one) => html`<tr><td class="mono">${one.consumer_tag}</td><td><a href=${queueAddress(one.queue.vhost, one.queue.name)}>${one.queue.name}</a></td><td><${Badge} kind=${one.active ? "good" : ""}>${one.activity_status?.replaceAll("_", " ")}<//></td><td class="num">${one.prefetch_count || "∞"}</td><td class="act">${cancelOf(one, refresh)}</td></tr>`)}</tbody></table></div>` : html`<${Empty} icon="consumer" title="No consumers" />`}<//></div></div>`;
}
