// All channels.
import { html } from "../core/html.js";
import { useTable } from "../core/live.js";
import { to } from "../core/router.js";
import { rate } from "../core/format.js";
import { Badge, PageHead } from "../ui/bits.js";
import { DataTable } from "../ui/table.js";
import { VhostPicker, vhostTest } from "../ui/vhost.js";

const COLUMNS = [
  { id: "name", title: "Channel", width: 230, grow: 3, prio: 0, link: true }, { id: "client_name", title: "Client", width: 130, grow: 1, prio: 3 }, { id: "vhost", title: "Vhost", width: 90, grow: 1, prio: 8 }, { id: "node", title: "Node", width: 100, prio: 9, ifTold: true }, { id: "user", title: "User", width: 100, prio: 6 },
  { id: "mode", title: "Mode", width: 92, prio: 7, read: (row, table) => (table.value(row, "confirm") ? "confirm" : table.value(row, "transactional") ? "tx" : ""), render: (value) => value && html`<${Badge}>${value}<//>` }, { id: "state", title: "State", width: 86, prio: 9 },
  { id: "consumer_count", title: "Consumers", num: true, width: 96, prio: 5 }, { id: "prefetch_count", title: "Prefetch", num: true, width: 86, prio: 4, render: (value) => value || "∞" },
  { id: "messages_unacknowledged", title: "Unacked", num: true, width: 86, prio: 1 }, { id: "messages_unconfirmed", title: "Unconfirmed", num: true, width: 106, prio: 10 },
  { id: "publish_rate", title: "In /s", num: true, width: 80, prio: 2, render: rate }, { id: "deliver_rate", title: "Out /s", num: true, width: 80, prio: 3, render: rate }, { id: "ack_rate", title: "Ack /s", num: true, width: 80, prio: 5, render: rate },
];

export default function Channels() {
  const table = useTable("channels");
  return html`<${PageHead} title="Channels" /><${DataTable} table=${table} columns=${COLUMNS} noun="channel" sort="name" href=${(row) => to(["channels", table.value(row, "name")])} prefilter=${vhostTest(table)} toolbar=${html`<${VhostPicker} />`} />`;
}
