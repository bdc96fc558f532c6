// All connections.
import { html, useState } from "../core/html.js";
import { del, path, isReadOnly } from "../core/api.js";
import { useTable } from "../core/live.js";
import { to } from "../core/router.js";
import { bytes, ago, plural } from "../core/format.js";
import { Badge, Button, PageHead, Text, FormDialog, show, toast } from "../ui/bits.js";
import { DataTable, useSelection } from "../ui/table.js";
import { VhostPicker, vhostTest } from "../ui/vhost.js";

export const stateKind = (state) => (state === "running" || state === "flow" ? "good" : state === "blocked" || state === "blocking" ? "bad" : "");
const speed = (value) => (value ? `${bytes(value)}/s` : "0");
const COLUMNS = [
  { id: "name", title: "Name", width: 190, grow: 3, prio: 0, link: true, render: (value, row, table) => table.value(row, "client_name") || value }, { id: "peer", title: "From", width: 150, prio: 9, read: (row, table) => `${table.value(row, "peer_host")}:${table.value(row, "peer_port")}`, mono: true },
  { id: "vhost", title: "Vhost", width: 90, grow: 1, prio: 8 }, { id: "user", title: "User", width: 100, prio: 3 },
  { id: "node", title: "Node", width: 100, prio: 9, ifTold: true },
  { id: "state", title: "State", width: 94, prio: 1, render: (value, row, table) => html`<${Badge} kind=${stateKind(value)} title=${table.value(row, "blocked_reason") ?? undefined}>${value}<//>` },
  { id: "client", title: "Client", width: 120, grow: 1, prio: 6 }, { id: "ssl", title: "TLS", width: 56, prio: 11, render: (value) => (value ? "yes" : "") }, { id: "channels", title: "Channels", num: true, width: 88, prio: 5 },
  { id: "recv_rate", title: "From client", num: true, width: 104, prio: 2, render: speed }, { id: "send_rate", title: "To client", num: true, width: 104, prio: 4, render: speed }, { id: "connected_at", title: "Since", num: true, width: 120, prio: 7, render: ago },
  { id: "publishes_waiting", title: "Unconfirmed", num: true, width: 104, off: true },
];

export function CloseDialog({ names, onClose, onDone }) {
  const [why, setWhy] = useState("Closed via management UI");
  const run = async () => {
    const refused = [];
    for (const name of names) { try { await del(`connections/${path(name)}`, { headers: { "X-Reason": why } }); } catch (error) { if (error.status !== 404) refused.push(error.message); } }
    if (refused.length) throw new Error(`${plural(refused.length, "connection")} stayed: ${refused[0]}`);
    toast(`${plural(names.length, "connection")} closed`);
    onDone?.();
  };
  return html`<${FormDialog} title=${names.length === 1 ? "Close the connection" : `Close ${names.length} connections`} action="Close" danger run=${run} onClose=${onClose}><p>The client is told that it is closed, and why. What it had not acked becomes ready again.</p><${Text} label="Reason" value=${why} onValue=${setWhy} autofocus /><//>`;
}

export default function Connections() {
  const table = useTable("connections");
  const selection = useSelection();
  const [choosing, setChoosing] = useState(false);
  return html`<${PageHead} title="Connections">${!isReadOnly() && html`<${Button} icon="check" title="Select several" pressed=${choosing} onClick=${() => { setChoosing(!choosing); selection.clear(); }}>Select<//>`}<//>
    ${choosing && selection.count > 0 && html`<div class="selbar card" style=${{ marginBottom: "10px" }}><b>${plural(selection.count, "connection")} chosen</b><span class="grow"></span><${Button} small kind="danger" onClick=${() => show((close) => html`<${CloseDialog} names=${selection.rows.map((row) => table.value(row, "name"))} onClose=${close} onDone=${selection.clear} />`)}>Close<//></div>`}
    <${DataTable} table=${table} columns=${COLUMNS} noun="connection" sort="name" href=${(row) => to(["connections", table.value(row, "name")])} prefilter=${vhostTest(table)} selection=${choosing ? selection : undefined} toolbar=${html`<${VhostPicker} />`} />`;
}
