// One exchange: its bindings both ways, and where a message would go from here.
import { html, useState } from "../core/html.js";
import { get, del, path, exchangeName, isReadOnly } from "../core/api.js";
import { route, setQuery, go, to, queueAddress, exchangeAddress } from "../core/router.js";
import { exchangeLabel, rate, int } from "../core/format.js";
import { Arguments, Badge, Button, Card, Empty, Icon, KV, Loading, Menu, Note, Tabs, confirm, show, toast, useLoad } from "../ui/bits.js";
import { BindForm, PublishForm } from "../ui/forms.js";
import { Router } from "../ui/routing.js";
import { Tail } from "../queue/tail.js";

const SHOWN = 500;

function BindingTable({ list, vhost, outgoing, refresh }) {
  if (!list) return html`<div class="body"><${Loading} lines=${2} /></div>`;
  if (!list.length) return html`<${Empty} icon="link" title=${outgoing ? "Nothing is bound to it" : "It is bound to nothing"} />`;
  const unbind = (one) => confirm({ title: "Unbind", danger: true, action: "Unbind", text: `Remove the binding of ${one.destination} with the key “${one.routing_key}”?`, run: async () => { await del(`bindings/${path(vhost)}/e/${path(exchangeName(one.source))}/${one.destination_type === "queue" ? "q" : "e"}/${path(one.destination)}/${path(one.properties_key)}`); toast("Unbound"); refresh(); } });
  return html`<div class="plain-wrap" tabindex="0" role="group"><table class="plain"><thead><tr><th>${outgoing ? "To" : "From"}</th><th>Routing key</th><th>Arguments</th><th><span class="sr">Actions</span></th></tr></thead><tbody>${list.slice(0, SHOWN).map((one) => html`<tr><td>${outgoing ? html`<span class="row tight"><${Icon} name=${one.destination_type} /><a href=${one.destination_type === "queue" ? queueAddress(vhost, one.destination) : exchangeAddress(vhost, one.destination)}>${one.destination}</a></span>` : html`<a href=${exchangeAddress(vhost, one.source)}>${exchangeLabel(one.source)}</a>`}</td><td class="mono">${one.routing_key}</td><td><${Arguments} value=${one.arguments} none="" /></td><td class="act">${one.source !== "" && !isReadOnly() && html`<${Button} small kind="ghost" icon="trash" label="Unbind" onClick=${() => unbind(one)} />`}</td></tr>`)}</tbody></table>${list.length > SHOWN && html`<p class="muted" style=${{ padding: "10px 12px" }}>${int(list.length - SHOWN)} more</p>`}</div>`;
}

const ORDER = "x-stream-partition-order";

/** The streams of a super stream in their order, and what is in each. */
function Partitions({ list, vhost }) {
  const names = (list ?? []).filter((one) => one.destination_type === "queue").sort((a, b) => (a.arguments[ORDER] ?? Infinity) - (b.arguments[ORDER] ?? Infinity));
  const text = names.map((one) => one.destination).join("\u0000");
  const { value } = useLoad(() => Promise.all(names.slice(0, SHOWN).map((one) => get(`queues/${path(vhost, one.destination)}`).catch(() => null))), [text], 3000); // one that has gone meanwhile is shown without figures
  if (!list) return html`<div class="body"><${Loading} lines=${2} /></div>`;
  if (!names.length) return html`<${Empty} icon="queue" title="No partition is bound" />`;
  const most = Math.max(1, ...(value ?? []).map((one) => one?.messages ?? 0));
  return html`<div class="plain-wrap" tabindex="0" role="group"><table class="plain"><thead><tr><th class="num">#</th><th>Stream</th><th>Routing key</th><th class="num">Messages</th><th class="hide-narrow"><span class="sr">Share</span></th><th class="num">In /s</th><th class="num">Readers</th></tr></thead><tbody>${names.map((one, i) => { const queue = value?.[i]; return html`<tr key=${one.properties_key + one.destination}><td class="num muted">${one.arguments[ORDER] ?? "–"}</td><td class="nowrap"><a href=${queueAddress(vhost, one.destination)}>${one.destination}</a></td><td class="mono">${one.routing_key}</td><td class="num">${queue ? int(queue.messages) : "–"}</td><td class="hide-narrow" style=${{ width: "30%" }}>${queue && html`<i class="cellbar" style=${{ width: `${(100 * queue.messages) / most}%` }}></i>`}</td><td class="num">${rate(queue?.message_stats?.publish_details?.rate ?? 0)}</td><td class="num">${queue?.consumers ?? "–"}</td></tr>`; })}</tbody></table></div>`;
}

export default function ExchangePage({ segments }) {
  const [vhost, name] = segments;
  const where = `exchanges/${path(vhost, exchangeName(name))}`;
  const { value: exchange, error } = useLoad(() => get(where), [where], 3000);
  const outgoing = useLoad(() => get(`${where}/bindings/source`), [where], 10000);
  const incoming = useLoad(() => get(`${where}/bindings/destination`), [where], 10000);
  if (error?.status === 404 || name === undefined) return html`<${Empty} icon="exchange" title=${`There is no exchange ${name} in ${vhost}`}><a href="#/exchanges">All exchanges</a><//>`;
  if (error && !exchange) return html`<${Note} kind="bad">${error.message}<//>`;
  if (!exchange) return html`<${Loading} />`;
  const stats = exchange.message_stats ?? {};
  const own = name !== "" && !name.startsWith("amq.");
  const remove = () => confirm({ title: `Delete ${name}`, danger: true, action: "Delete exchange", text: `The exchange ${name} and its ${int((outgoing.value?.length ?? 0) + (incoming.value?.length ?? 0))} bindings go. This cannot be undone.`, run: async () => { await del(where); toast("Deleted"); go("/exchanges"); } });
  const isSuper = exchange.type === "x-super-stream" || exchange.arguments?.["x-super-stream"] === true;
  const tab = name !== "" && route.value.query.tab === "tail" ? "tail" : "overview";
  return html`<div class="page-head"><h1 class="wrap">${exchangeLabel(name)}</h1><${Badge}>${vhost}<//><${Badge} kind="accent" title=${exchange.type}>${isSuper ? "super stream" : exchange.type}<//>${exchange.durable && html`<${Badge}>durable<//>`}${exchange.auto_delete && html`<${Badge}>auto-delete<//>`}${exchange.internal && html`<${Badge} kind="warn">internal<//>`}${exchange.policy && html`<${Badge} kind="info">${exchange.policy}<//>`}
      <div class="actions">${!isReadOnly() && html`<${Button} icon="send" kind="primary" onClick=${() => show((close) => html`<${PublishForm} vhost=${vhost} exchange=${name} onClose=${close} />`)}>Publish<//>`}<${Menu} label="More" text="Actions"><button type="button" onClick=${() => go(to(["topology"], { vhost, around: `exchange/${name}` }).slice(1))}><${Icon} name="route" />Show in the topology</button>${own && !isReadOnly() && html`<hr /><button type="button" class="danger" onClick=${remove}><${Icon} name="trash" />Delete…</button>`}<//></div></div>
    ${name !== "" && html`<${Tabs} label="Parts of the exchange" value=${tab} onValue=${(id) => setQuery({ tab: id === "overview" ? "" : id }, true)} tabs=${[{ id: "overview", title: "Overview" }, { id: "tail", title: "Live tail" }]} />`}
    ${tab === "tail" ? html`<${Tail} vhost=${vhost} name=${name} exchange />` : html`<div class="grid">${isSuper && html`<div class="s12"><${Card} title="Partitions" bare><${Partitions} list=${outgoing.value} vhost=${vhost} /><//></div>`}<div class="s4"><${Card} title="Declared"><${KV} items=${[["In", `${rate(stats.publish_in_details?.rate ?? 0)} /s, ${int(stats.publish_in ?? 0)} in all`], ["Out", `${rate(stats.publish_out_details?.rate ?? 0)} /s, ${int(stats.publish_out ?? 0)} in all`], ["Arguments", html`<${Arguments} value=${exchange.arguments} />`], exchange.user_who_performed_action && ["Made by", exchange.user_who_performed_action]]} /><//></div>
      <div class="s8"><${Card} title="Where would this message go?"><${Router} vhost=${vhost} exchange=${name} fixed /><//></div>
      <div class="s6"><${Card} title="Bindings from here" bare actions=${name !== "" && !isReadOnly() && html`<${Button} small icon="plus" onClick=${() => show((close) => html`<${BindForm} vhost=${vhost} source=${name} onClose=${close} onDone=${outgoing.refresh} />`)}>Bind<//>`}><${BindingTable} list=${outgoing.value} vhost=${vhost} outgoing refresh=${outgoing.refresh} /><//></div>
      <div class="s6"><${Card} title="Bindings to here" bare><${BindingTable} list=${incoming.value} vhost=${vhost} refresh=${incoming.refresh} /><//></div></div>`}`;
}
