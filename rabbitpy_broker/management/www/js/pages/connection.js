// One connection: who it is, why it is blocked, its channels.
import { html } from "../core/html.js";
import { get, path, isReadOnly } from "../core/api.js";
import { go, to } from "../core/router.js";
import { bytes, int, rate } from "../core/format.js";
import { Arguments, Badge, Button, Card, Empty, KV, Loading, Note, Time, show, useLoad } from "../ui/bits.js";
import { CloseDialog, stateKind } from "./connections.js";

export default function ConnectionPage({ segments }) {
  const [name] = segments;
  const { value: it, error } = useLoad(() => get(`connections/${path(name)}`), [name], 2000);
  const { value: channels } = useLoad(() => get(`connections/${path(name)}/channels`), [name], 2000);
  if (error?.status === 404) return html`<${Empty} icon="connection" title="This connection is closed"><a href="#/connections">All connections</a><//>`;
  if (error && !it) return html`<${Note} kind="bad">${error.message}<//>`;
  if (!it) return html`<${Loading} />`;
  const client = it.client_properties ?? {};
  const { capabilities, ...properties } = client;
  return html`<div class="page-head"><h1 class="wrap">${client.connection_name || it.name}</h1><${Badge} kind=${stateKind(it.state)}>${it.state}<//><${Badge}>${it.vhost}<//>${it.ssl && html`<${Badge} kind="info">TLS<//>`}<div class="actions">${!isReadOnly() && html`<${Button} kind="danger" icon="close" onClick=${() => show((close) => html`<${CloseDialog} names=${[name]} onClose=${close} onDone=${() => go("/connections")} />`)}>Close<//>`}</div></div>
    ${["blocked", "blocking"].includes(it.state) && html`<div style=${{ marginBottom: "14px" }}><${Note} kind="bad">It may not publish: ${it.blocked_reason ?? "an alarm is on"}. <a href="#/node">What is used</a><//></div>`}
    <div class="grid"><div class="s6"><${Card} title="Connection"><${KV} items=${[["Name", html`<span class="mono">${it.name}</span>`], ["User", it.user], ["Protocol", it.protocol], ["Login", it.auth_mechanism], ["Connected", html`<${Time} at=${it.connected_at} />`], ["Heartbeat", it.timeout ? `${it.timeout} s` : "off"], ["Frame at most", bytes(it.frame_max)], ["Channels at most", int(it.channel_max)], ["From client", `${bytes(it.recv_oct)}, ${bytes(it.recv_oct_details?.rate ?? 0)}/s`], ["To client", `${bytes(it.send_oct)}, ${bytes(it.send_oct_details?.rate ?? 0)}/s`], it.publishes_waiting != null && ["Publishes waiting", int(it.publishes_waiting)], it.ssl && ["Cipher", `${it.ssl_protocol ?? ""} ${it.ssl_cipher ?? ""}`], it.peer_cert_subject && ["Certificate", it.peer_cert_subject]]} /><//></div>
      <div class="s6"><${Card} title="Client"><${Arguments} value=${properties} /><//>${capabilities && html`<div style=${{ marginTop: "14px" }}><${Card} title="It can"><div class="row wrapped">${Object.entries(capabilities).filter(([, on]) => on).map(([one]) => html`<${Badge}>${one.replaceAll("_", " ")}<//>`)}</div><//></div>`}</div>
      <div class="s12"><${Card} title="Channels" bare>${!channels ? html`<div class="body"><${Loading} lines=${2} /></div>` : channels.length ? html`<div class="plain-wrap" tabindex="0" role="group"><table class="plain"><thead><tr><th>Channel</th><th>State</th><th class="num">Unacked</th><th class="num">Prefetch</th><th class="num">Consumers</th><th class="num">In /s</th><th class="num">Out /s</th></tr></thead><tbody>${channels.map((one) => html`<tr><td><a href=${to(["channels", one.name])}>${one.number}</a> ${one.confirm && html`<${Badge}>confirms<//>`}${one.transactional && html`<${Badge}>tx<//>`}</td><td>${one.state}</td><td class="num">${int(one.messages_unacknowledged)}</td><td class="num">${one.prefetch_count || "∞"}</td><td class="num">${int(one.consumer_count)}</td><td class="num">${rate(one.message_stats?.publish_details?.rate ?? 0)}</td><td class="num">${rate(one.message_stats?.deliver_get_details?.rate ?? 0)}</td></tr>`)}</tbody></table></div>` : html`<${Empty} title="No channels" />`}<//></div></div>`;
}
