// All queues of all vhosts in one table.
import { html, useState, useEffect, useMemo } from "../core/html.js";
import { del, path, isReadOnly } from "../core/api.js";
import { useTable } from "../core/live.js";
import { route, setQuery, queueAddress } from "../core/router.js";
import { short, rate, bytes, plural, int, ago } from "../core/format.js";
import { Button, Badge, Menu, Icon, PageHead, Segmented, confirm, toast, show } from "../ui/bits.js";
import { DataTable, useSelection } from "../ui/table.js";
import { VhostPicker, vhostTest } from "../ui/vhost.js";
import { Spark } from "../ui/chart.js";
import { QueueForm } from "../ui/forms.js";

export function Features({ row, table }) {
  const value = (name) => table.value(row, name);
  const args = value("arguments") ?? {};
  const list = [];
  if (value("type") !== "classic") list.push([value("type"), `x-queue-type: ${value("type")}`, "accent"]);
  else if (value("durable")) list.push(["D", "durable"]);
  if (value("auto_delete")) list.push(["AD", "auto-delete"]);
  if (value("exclusive")) list.push(["Excl", "exclusive: of one connection"]);
  if (args["x-message-ttl"] != null) list.push(["TTL", `x-message-ttl: ${args["x-message-ttl"]}`]);
  if (args["x-expires"] != null) list.push(["Exp", `x-expires: ${args["x-expires"]}`]);
  if (args["x-max-length"] != null || args["x-max-length-bytes"] != null) list.push(["Lim", "a length limit"]);
  if (args["x-max-priority"] != null) list.push(["Pri", `x-max-priority: ${args["x-max-priority"]}`]);
  if (args["x-single-active-consumer"]) list.push(["SAC", "single active consumer"]);
  if (args["x-delivery-limit"] != null) list.push(["DLim", `x-delivery-limit: ${args["x-delivery-limit"]}`]);
  if (args["x-max-age"] != null) list.push(["Age", `x-max-age: ${args["x-max-age"]}`]);
  if (value("dead_letter_exchange") != null || args["x-dead-letter-exchange"] != null) list.push(["DLX", `dead letters go to ${(value("dead_letter_exchange") ?? args["x-dead-letter-exchange"]) || "(default)"}`]);
  return html`<span class="row tight">${list.map(([text, title, kind]) => html`<${Badge} kind=${kind} title=${title}>${text}<//>`)}</span>`;
}

/** The messages of a queue over the time that it has been in sight, beside the name. */
function Trail({ row, value, tick }) {
  const now = value ?? 0;
  if (row.seen !== tick) {
    row.seen = tick;
    row.trail = row.trail ? [...row.trail.slice(-29), now] : [now, now];
  }
  return html`<${Spark} values=${row.trail} height=${18} label="messages" />`;
}

const COLUMNS = [
  { id: "name", title: "Name", width: 170, grow: 4, prio: 0, link: true },
  { id: "vhost", title: "Vhost", width: 90, grow: 1, prio: 9 },
  { id: "node", title: "Node", width: 100, prio: 9, ifTold: true },
  { id: "type", title: "Type", width: 80, prio: 11, off: true, render: (value) => html`<${Badge} kind=${value === "quorum" ? "accent" : ""}>${value}<//>` },
  { id: "features", title: "Features", width: 164, prio: 7, sortable: false, read: (row, table) => ["durable", "auto_delete", "exclusive"].filter((one) => table.value(row, one)).join(" ") + Object.keys(table.value(row, "arguments") ?? {}).join(" "), render: (_, row, table) => html`<${Features} row=${row} table=${table} />` },
  { id: "policy", title: "Policy", width: 100, prio: 12, grow: 1 },
  { id: "state", title: "State", width: 86, prio: 11, render: (value) => html`<span class="row tight"><span class=${`dot ${value === "running" ? "good" : value === "idle" ? "" : "warn"}`}></span>${value}</span>` },
  { id: "trail", title: "Recent", width: 86, prio: 8, read: (row, table) => table.value(row, "messages"), num: true, textual: false, render: (value, row, table) => html`<${Trail} row=${row} value=${value} tick=${table.version.peek()} />` },
  { id: "messages_ready", title: "Ready", num: true, width: 82, prio: 2, render: short },
  { id: "messages_unacknowledged", title: "Unacked", num: true, width: 82, prio: 3, render: short },
  { id: "messages", title: "Total", num: true, width: 82, prio: 1, render: short },
  { id: "message_bytes", title: "Bytes", num: true, width: 90, prio: 13, off: true, render: bytes },
  { id: "messages_ram", title: "In memory", num: true, width: 96, off: true, render: short },
  { id: "messages_paged_out", title: "Paged out", num: true, width: 96, off: true, render: short },
  { id: "consumers", title: "Consumers", num: true, width: 96, prio: 4 },
  { id: "publish_rate", title: "In /s", num: true, width: 78, prio: 5, render: rate, hint: "Published per second" },
  { id: "deliver_rate", title: "Out /s", num: true, width: 78, prio: 6, render: rate, hint: "Delivered per second" },
  { id: "ack_rate", title: "Ack /s", num: true, width: 78, prio: 8, render: rate },
  { id: "idle_since", title: "Idle since", num: true, width: 120, off: true, render: (value) => (value ? ago(value) : "") },
];

const SHORTCUTS = [["", "All"], ["messages>0", "Not empty"], ["consumers=0 messages>0", "No consumer"], ["messages_unacknowledged>0", "Unacked"]];

export default function Queues() {
  const table = useTable("queues");
  const selection = useSelection();
  const [choosing, setChoosing] = useState(false);
  const { query } = route.value;
  const prefilter = vhostTest(table);
  const declare = () => show((close) => html`<${QueueForm} onClose=${close} />`);
  useEffect(() => { if (query.new) { setQuery({ new: "" }); declare(); } }, [query.new]);
  const many = (title, verb, danger, one) => confirm({
    title, danger: true, action: title, text: `${verb} ${plural(selection.count, "queue")}: ${selection.rows.slice(0, 8).map((row) => table.value(row, "name")).join(", ")}${selection.count > 8 ? "…" : ""}`, typed: selection.count > 1 ? String(selection.count) : undefined,
    run: async () => {
      let done = 0;
      const refused = [];
      for (const row of selection.rows) {
        try { await one(path(table.value(row, "vhost"), table.value(row, "name"))); done += 1; } catch (error) { refused.push(`${table.value(row, "name")}: ${error.message}`); }
      }
      selection.clear();
      toast(`${plural(done, "queue")} done${refused.length ? `; refused: ${refused.slice(0, 3).join("; ")}` : ""}`, refused.length ? "bad" : "good");
    },
  });
  return html`<${PageHead} title="Queues">
      <${Button} icon="check" title="Select several" pressed=${choosing} onClick=${() => { setChoosing(!choosing); selection.clear(); }}>Select<//>
      ${!isReadOnly() && html`<${Button} icon="plus" kind="primary" onClick=${declare}>Declare queue<//>`}<//>
    ${choosing && selection.count > 0 && html`<div class="selbar card" style=${{ marginBottom: "10px" }}><b>${plural(selection.count, "queue")} chosen</b><span class="grow"></span>
      <${Button} small onClick=${() => many("Purge", "Drop all ready messages of", true, (name) => del(`queues/${name}/contents`))}>Purge<//><${Button} small kind="danger" icon="trash" onClick=${() => many("Delete", "Delete", true, (name) => del(`queues/${name}`))}>Delete<//><${Button} small kind="ghost" onClick=${selection.clear}>Clear<//></div>`}
    <${DataTable} table=${table} columns=${COLUMNS} noun="queue" sort="name" href=${(row) => queueAddress(table.value(row, "vhost"), table.value(row, "name"))} prefilter=${prefilter} selection=${choosing ? selection : undefined}
      toolbar=${html`<${VhostPicker} /><span class="hide-narrow"><${Segmented} label="Quick filters" value=${query.q ?? ""} onValue=${(text) => setQuery({ q: text })} options=${SHORTCUTS} /></span>`} empty="No queues yet" />`;
}
