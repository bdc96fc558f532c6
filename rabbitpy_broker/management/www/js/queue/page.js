// One queue: figures and charts, consumers and bindings, its messages, what comes in now.
import { html, useState, useMemo } from "../core/html.js";
import { get, del, post, path, exchangeName, isReadOnly } from "../core/api.js";
import { useQueue, asOf } from "../core/live.js";
import { route, setQuery, go, to, queueAddress, exchangeAddress } from "../core/router.js";
import { int, short, rate, bytes, plural, exchangeLabel, percent } from "../core/format.js";
import { Arguments, Badge, Button, Card, Check, Choice, Dialog, Empty, FormDialog, Icon, KV, Loading, Menu, Note, Tabs, Text, Time, confirm, show, toast, useLoad, failed } from "../ui/bits.js";
import { History } from "../ui/chart.js";
import { BindForm, PublishForm } from "../ui/forms.js";
import { Members } from "../ui/cluster.js";
import { cancelOf } from "../ui/consumer.js";
import { MessageBrowser } from "./messages.js";
import { MessageView } from "./message.js";
import { Tail } from "./tail.js";
import { StreamCards } from "./stream.js";

const STAGES = [["q4", "alpha, oldest: in memory", "--q4"], ["q3", "beta: on disk, known in memory", "--q3"], ["delta", "delta: on disk only", "--delta"], ["q2", "beta: newer", "--q2"], ["q1", "alpha, newest", "--q1"]];

/** Where the ready messages are: from what goes out next on the left to what came last on the right. */
function StageBar({ internals, ready }) {
  const lanes = (internals.lanes ?? [internals]).filter(Boolean);
  const parts = STAGES.map(([name, text, color]) => ({ name, text, color, count: lanes.reduce((sum, lane) => sum + (Number(lane[name]) || 0), 0) }));
  const placed = parts.reduce((sum, part) => sum + part.count, 0);
  if (ready > placed) parts.unshift({ name: "came back", text: "given back, to be delivered next", color: "--c-redeliver", count: ready - placed });
  const whole = Math.max(placed, ready ?? 0);
  return html`<div class="stack tight"><div class="stagebar" role="img" aria-label=${parts.map((part) => `${part.name}: ${part.count}`).join(", ")}>${parts.filter((part) => part.count).map((part) => html`<i title=${`${part.name}, ${part.text}: ${int(part.count)}`} style=${{ flex: `${part.count} 1 0`, background: `var(${part.color})` }}></i>`)}</div>
    <div class="stagekey">${parts.map((part) => html`<span title=${part.text}><i style=${{ background: `var(${part.color})` }}></i><span class="soft">${part.name}</span> <b class="tnum">${short(part.count)}</b>${part.count && whole ? html`<span class="muted">${percent(part.count, whole)}</span>` : ""}</span>`)}</div>
    <div class="row wrapped small muted"><span>oldest first</span>${["alpha", "beta", "gamma", "delta"].filter((name) => internals[name] != null).map((name) => html`<span>${name} ${int(internals[name])}</span>`)}<span>unacked ${int(internals.unacked)}</span>${internals.ram_bytes != null && html`<span>bodies in memory ${bytes(internals.ram_bytes)}</span>`}${internals.paged_out != null && html`<span>paged out so far ${int(internals.paged_out)}, read back ${int(internals.paged_in)}</span>`}${lanes.length > 1 && html`<span>${lanes.length} lanes of priorities</span>`}</div></div>`;
}

function Figures({ queue }) {
  const cell = (name, value, color, unit) => html`<div class="stat"><div class="k">${color && html`<i style=${{ background: `var(${color})` }}></i>`}${name}</div><div class="v">${value}${unit && html` <small>${unit}</small>`}</div></div>`;
  const stream = queue.stream;
  if (stream) return html`<div class="stats">${cell("Messages", short(queue.messages), "--c-ready")}${cell("In", rate(queue.publish_rate), "--c-publish", "/s")}${cell("Out", rate(queue.deliver_rate), "--c-deliver", "/s")}${cell("Acked", rate(queue.ack_rate), "--c-ack", "/s")}${cell("Readers", int(stream.readers.length))}${cell("Longest lag", short(Math.max(0, ...stream.readers.map((one) => one.lag))))}${cell("Bytes", bytes(stream.bytes))}</div>`;
  return html`<div class="stats">${cell("Ready", short(queue.messages_ready), "--c-ready")}${cell("Unacked", short(queue.messages_unacknowledged), "--c-unacked")}${cell("Total", short(queue.messages))}${cell("In", rate(queue.publish_rate), "--c-publish", "/s")}${cell("Out", rate(queue.deliver_rate), "--c-deliver", "/s")}${cell("Acked", rate(queue.ack_rate), "--c-ack", "/s")}${cell("Consumers", int(queue.consumers))}${cell("Bytes", bytes(queue.message_bytes))}</div>`;
}

function Consumers({ list, refresh }) {
  if (!list?.length) return html`<${Empty} icon="consumer" title="No consumers" />`;
  return html`<div class="plain-wrap" tabindex="0" role="group"><table class="plain"><thead><tr><th>Consumer</th><th>Channel</th><th>State</th><th class="num">Prefetch</th><th><span class="sr">Actions</span></th></tr></thead><tbody>${list.map((one) => html`<tr><td class="mono">${one.consumer_tag}</td><td><a href=${to(["channels", one.channel_details?.name])}>${one.channel_details?.name}</a>${one.channel_details?.user && html` <span class="muted">${one.channel_details.user}</span>`}</td><td><${Badge} kind=${one.active ? "good" : ""}>${one.activity_status?.replaceAll("_", " ") ?? "up"}<//> ${!one.ack_required && html`<${Badge}>no ack<//>`} ${one.exclusive && html`<${Badge}>exclusive<//>`}</td><td class="num">${one.prefetch_count || "∞"}</td><td class="act">${cancelOf(one, refresh)}</td></tr>`)}</tbody></table></div>`;
}

function Bindings({ vhost, name }) {
  const { value, refresh } = useLoad(() => get(`queues/${path(vhost, name)}/bindings`), [vhost, name], 10000);
  const unbind = (one) => confirm({ title: "Unbind", danger: true, action: "Unbind", text: `Remove the binding from ${one.source} with the key “${one.routing_key}”?`, run: async () => { await del(`bindings/${path(vhost)}/e/${path(exchangeName(one.source))}/q/${path(name)}/${path(one.properties_key)}`); toast("Unbound"); void refresh(); } });
  return html`<${Card} title="Bindings" bare actions=${!isReadOnly() && html`<${Button} small icon="plus" onClick=${() => show((close) => html`<${BindForm} vhost=${vhost} queue=${name} onClose=${close} onDone=${refresh} />`)}>Bind<//>`}>${!value ? html`<div class="body"><${Loading} /></div>` : html`<div class="plain-wrap" tabindex="0" role="group"><table class="plain"><thead><tr><th>From exchange</th><th>Routing key</th><th>Arguments</th><th><span class="sr">Actions</span></th></tr></thead><tbody>
    ${value.map((one) => html`<tr><td><a href=${exchangeAddress(vhost, one.source)}>${exchangeLabel(one.source)}</a></td><td class="mono">${one.routing_key}</td><td><${Arguments} value=${one.arguments} none="" /></td><td class="act">${one.source !== "" && !isReadOnly() && html`<${Button} small kind="ghost" icon="trash" label="Unbind" onClick=${() => unbind(one)} />`}</td></tr>`)}</tbody></table></div>`}<//>`;
}

function GetDialog({ vhost, name, onClose }) {
  const [count, setCount] = useState("1");
  const [mode, setMode] = useState("ack_requeue_true");
  const [found, setFound] = useState(null);
  const run = async () => {
    setFound(await post(`queues/${path(vhost, name)}/get`, { count: Math.max(1, Number(count) || 1), ackmode: mode, encoding: "auto", truncate: 262144 }));
    return false;
  };
  return html`<${FormDialog} wide title=${`Get from ${name}`} action="Get" run=${run} onClose=${onClose} danger=${!mode.endsWith("true")}>
    <${Note} kind="warn">This takes messages as a consumer does. Put back, they count as redelivered. To look without a trace use <a href=${queueAddress(vhost, name, { tab: "messages" })}>Messages</a>.<//>
    <div class="fields"><${Text} label="Messages" type="number" min="1" max="1000" value=${count} onValue=${setCount} /><${Choice} label="Then" value=${mode} onValue=${setMode} options=${[["ack_requeue_true", "Put back (nack, requeue)"], ["reject_requeue_true", "Put back (reject, requeue)"], ["ack_requeue_false", "Remove (ack)"], ["reject_requeue_false", "Reject (drop or dead-letter)"]]} /></div>
    ${found && (found.length ? found.map((message) => html`<${Card}><${MessageView} message=${message} vhost=${vhost} queue=${name} plain /><//>`) : html`<${Empty} title="The queue had nothing ready" />`)}<//>`;
}

/** How often a message may come back to a quorum queue: the lower one of argument and policy; null without a limit. */
function deliveryLimit(queue, detail) {
  const limits = [queue.arguments?.["x-delivery-limit"], detail?.effective_policy_definition?.["delivery-limit"]].filter((one) => one != null);
  return limits.length ? Math.min(...limits) : null;
}

function Overview({ vhost, name, queue, detail, refresh }) {
  const live = asOf.value ? [Math.floor(asOf.value / 1000), { publish: queue.publish_rate, deliver_get: queue.deliver_rate, ack: queue.ack_rate, redeliver: queue.redeliver_rate, messages_ready: queue.messages_ready, messages_unacknowledged: queue.messages_unacknowledged }] : null;
  const effective = detail?.effective_policy_definition;
  return html`<div class="stack wide"><${Figures} queue=${queue} />
    ${queue.stream ? html`<${StreamCards} stream=${queue.stream} vhost=${vhost} name=${name} refresh=${refresh} />` : queue.internals && queue.type !== "stream" && html`<${Card} title="Where the messages are"><${StageBar} internals=${queue.internals} ready=${queue.type === "quorum" ? queue.messages_ready : undefined} /><//>`}
    <div class="grid"><${History} scope=${`queue/${path(vhost, name)}`} live=${live} long=${false} step=${5} />
      ${!queue.stream && html`<div class="s6"><${Card} title="Consumers" bare><${Consumers} list=${detail?.consumer_details} refresh=${refresh} /><//></div>`}<div class=${queue.stream ? "s12" : "s6"}><${Bindings} vhost=${vhost} name=${name} /></div>
      <div class="s6"><${Card} title="Declared"><${KV} items=${[["Type", queue.type], ["Durable", queue.durable ? "yes" : "no"], ["Auto-delete", queue.auto_delete ? "yes" : "no"], ["Exclusive", queue.exclusive ? html`yes${detail?.owner_pid_details && html`, of <a href=${to(["connections", detail.owner_pid_details.name])}>${detail.owner_pid_details.name}</a>`}` : "no"], ["Arguments", html`<${Arguments} value=${detail?.arguments ?? queue.arguments} />`], queue.type === "classic" && ["Confirm mode", detail?.confirm_mode], queue.type === "quorum" && ["Delivery limit", deliveryLimit(queue, detail) ?? "none: what comes back goes behind everything"], queue.type !== "classic" && detail?.members && ["Members", html`<${Members} leader=${detail.leader} members=${detail.members} online=${detail.online ?? []} />`]]} /><//></div>
      <div class="s6"><${Card} title="In force"><${KV} items=${[["Policy", queue.policy && html`<a href=${to(["policies"], { q: queue.policy })}>${queue.policy}</a>`], ["Operator policy", queue.operator_policy], ["Settings", html`<${Arguments} value=${effective} />`], ["State", queue.state], ["Idle since", queue.idle_since && html`<${Time} at=${queue.idle_since} relative />`], ["Head's timestamp", detail?.head_message_timestamp && html`<${Time} at=${detail.head_message_timestamp} />`], ...(queue.type === "stream" ? [] : [["In memory", plural(queue.messages_ram, "message")], ["Paged out", plural(queue.messages_paged_out, "message")], ["Persistent", plural(queue.messages_persistent, "message")]]), detail?.publishes_waiting > 0 && ["Publishes waiting", int(detail.publishes_waiting)], ["Delivered, got", detail?.message_stats && `${int(detail.message_stats.deliver_get)}, redelivered ${int(detail.message_stats.redeliver)}`]]} /><//></div></div></div>`;
}

function DeleteDialog({ vhost, name, messages, onClose }) {
  const [ifEmpty, setIfEmpty] = useState(false);
  const [ifUnused, setIfUnused] = useState(false);
  const [said, setSaid] = useState("");
  const run = async () => {
    const query = [ifEmpty && "if-empty=true", ifUnused && "if-unused=true"].filter(Boolean).join("&");
    await del(`queues/${path(vhost, name)}${query ? `?${query}` : ""}`);
    toast(`Queue ${name} is deleted`);
    go("/queues");
  };
  return html`<${FormDialog} title=${`Delete ${name}`} action="Delete queue" danger run=${run} onClose=${onClose} disabled=${messages > 0 && !ifEmpty && said !== name}><p>The queue, its bindings and ${messages ? html`its <b>${plural(messages, "message")}</b>` : "its messages"} go. This cannot be undone.</p>
    <${Check} label="Only if it is empty" value=${ifEmpty} onValue=${setIfEmpty} /><${Check} label="Only if it has no consumer" value=${ifUnused} onValue=${setIfUnused} />
    ${messages > 0 && !ifEmpty && html`<${Text} label=${html`Type <code>${name}</code> to go on`} value=${said} onValue=${setSaid} autofocus mono />`}<//>`;
}

export default function QueuePage({ segments }) {
  const [vhost, name] = segments;
  const { queue: live, gone } = useQueue(vhost, name);
  const { value: detail, error, refresh } = useLoad(() => get(`queues/${path(vhost, name)}`), [vhost, name], 5000);
  const tab = route.value.query.tab ?? "overview";
  if (name === undefined) return html`<${Empty} title="There is no such page" />`;
  if (gone || error?.status === 404) return html`<${Empty} icon="queue" title=${`There is no queue ${name} in ${vhost}`}><a href="#/queues">All queues</a><//>`;
  if (error && !live) return html`<${Note} kind="bad">${error.message}<//>`;
  const queue = live ?? (detail && { ...detail, publish_rate: 0, deliver_rate: 0, ack_rate: 0 });
  if (!queue) return html`<${Loading} />`;
  const purge = () => confirm({ title: `Purge ${name}`, danger: true, action: "Purge", text: `Drop ${plural(queue.messages_ready, "ready message")}? Those that consumers hold stay. This cannot be undone.`, run: async () => { await del(`queues/${path(vhost, name)}/contents`); toast("Purged"); } });
  const select = (id) => setQuery({ tab: id === "overview" ? "" : id, at: "", state: "", order: "" }, true);
  return html`<div class="page-head"><h1 class="wrap">${name}</h1><${Badge}>${vhost}<//><${Badge} kind=${queue.type === "quorum" ? "accent" : ""}>${queue.type}<//>${queue.durable && html`<${Badge}>durable<//>`}${queue.exclusive && html`<${Badge}>exclusive<//>`}${queue.auto_delete && html`<${Badge}>auto-delete<//>`}${queue.policy && html`<${Badge} kind="info">${queue.policy}<//>`}
      <div class="actions">${!isReadOnly() && html`<${Button} icon="send" kind="primary" onClick=${() => show((close) => html`<${PublishForm} title=${`Publish to ${name}`} vhost=${vhost} routingKey=${name} fixedKey onClose=${close} />`)}>Publish<//>
        <${Menu} label="More" text="Actions" icon="more">${queue.type !== "stream" && html`<button type="button" onClick=${() => show((close) => html`<${GetDialog} vhost=${vhost} name=${name} onClose=${close} />`)}><${Icon} name="download" />Get messages…</button>`}<button type="button" onClick=${() => go(to(["topology"], { vhost, around: `queue/${name}` }).slice(1))}><${Icon} name="route" />Show in the topology</button><hr />${queue.type !== "stream" && html`<button type="button" class="danger" onClick=${purge}><${Icon} name="trash" />Purge…</button>`}<button type="button" class="danger" onClick=${() => show((close) => html`<${DeleteDialog} vhost=${vhost} name=${name} messages=${queue.messages} onClose=${close} />`)}><${Icon} name="trash" />Delete…</button><//>`}</div></div>
    <${Tabs} label="Parts of the queue" value=${tab} onValue=${select} tabs=${[{ id: "overview", title: "Overview" }, { id: "messages", title: "Messages", count: short(queue.messages) }, { id: "tail", title: "Live tail" }]} />
    ${tab === "messages" ? html`<${MessageBrowser} vhost=${vhost} name=${name} queue=${queue} limit=${deliveryLimit(queue, detail)} />` : tab === "tail" ? html`<${Tail} vhost=${vhost} name=${name} />` : html`<${Overview} vhost=${vhost} name=${name} queue=${queue} detail=${detail} refresh=${refresh} />`}`;
}
