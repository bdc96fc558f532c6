// All consumers.
import { html } from "../core/html.js";
import { useTable } from "../core/live.js";
import { to, queueAddress } from "../core/router.js";
import { Badge, PageHead } from "../ui/bits.js";
import { DataTable } from "../ui/table.js";
import { CancelButton } from "../ui/consumer.js";
import { VhostPicker, vhostTest } from "../ui/vhost.js";

const COLUMNS = [
  { id: "consumer_tag", title: "Consumer", width: 180, grow: 2, prio: 1, mono: true }, { id: "queue", title: "Queue", width: 150, grow: 2, prio: 0, link: true }, { id: "vhost", title: "Vhost", width: 90, grow: 1, prio: 8 }, { id: "node", title: "Node", width: 100, prio: 9, ifTold: true },
  { id: "client_name", title: "Client", width: 130, grow: 1, prio: 5 }, { id: "channel", title: "Channel", width: 220, grow: 2, prio: 7, render: (value) => html`<a href=${to(["channels", value])}>${value}</a>` }, { id: "user", title: "User", width: 100, prio: 6 },
  { id: "activity_status", title: "State", width: 108, prio: 2, render: (value, row, table) => html`<${Badge} kind=${table.value(row, "active") ? "good" : ""}>${String(value ?? "up").replaceAll("_", " ")}<//>` },
  { id: "ack_required", title: "Acks", width: 70, prio: 5, render: (value) => (value ? "yes" : "no") }, { id: "exclusive", title: "Exclusive", width: 86, prio: 9, render: (value) => (value ? "yes" : "") }, { id: "prefetch_count", title: "Prefetch", num: true, width: 86, prio: 3, render: (value) => value || "∞" }, { id: "unacked", title: "Unacked", num: true, width: 86, prio: 4 },
];

export default function Consumers() {
  const table = useTable("consumers");
  return html`<${PageHead} title="Consumers" /><${DataTable} table=${table} columns=${COLUMNS} noun="consumer" sort="queue" href=${(row) => queueAddress(table.value(row, "vhost"), table.value(row, "queue"))} prefilter=${vhostTest(table)} actionsFor=${(row) => html`<${CancelButton} one=${table.object(row)} />`} toolbar=${html`<${VhostPicker} />`} />`;
}
