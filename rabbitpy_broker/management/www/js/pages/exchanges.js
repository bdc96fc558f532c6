// All exchanges.
import { html, useEffect } from "../core/html.js";
import { get, isReadOnly } from "../core/api.js";
import { useTable } from "../core/live.js";
import { route, setQuery, exchangeAddress } from "../core/router.js";
import { rate, exchangeLabel } from "../core/format.js";
import { Badge, Button, PageHead, show } from "../ui/bits.js";
import { DataTable } from "../ui/table.js";
import { VhostPicker, vhostTest } from "../ui/vhost.js";
import { ExchangeForm } from "../ui/forms.js";

const COLUMNS = [
  { id: "name", title: "Name", width: 170, grow: 4, prio: 0, link: true, render: exchangeLabel }, { id: "vhost", title: "Vhost", width: 100, grow: 1, prio: 6 }, { id: "node", title: "Node", width: 100, prio: 9, ifTold: true },
  { id: "type", title: "Type", width: 130, prio: 1, render: (value) => html`<${Badge}>${value}<//>` },
  { id: "features", title: "Features", width: 160, prio: 5, read: (row, table) => ["durable", "auto_delete", "internal"].filter((one) => table.value(row, one)).join(" "), render: (_, row, table) => html`<span class="row tight">${[["durable", "D"], ["auto_delete", "AD"], ["internal", "I"]].filter(([id]) => table.value(row, id)).map(([id, text]) => html`<${Badge} title=${id}>${text}<//>`)}${table.value(row, "alternate_exchange") != null && html`<${Badge} title=${`unroutable messages go to ${table.value(row, "alternate_exchange")}`}>AE<//>`}</span>` },
  { id: "policy", title: "Policy", width: 110, grow: 1, prio: 7 }, { id: "bindings", title: "Bindings", num: true, width: 92, prio: 4 },
  { id: "in_rate", title: "In /s", num: true, width: 84, prio: 2, render: rate }, { id: "out_rate", title: "Out /s", num: true, width: 84, prio: 3, render: rate },
];

export default function Exchanges() {
  const table = useTable("exchanges");
  const { query } = route.value;
  const declare = async () => {
    const broker = await get("overview?columns=exchange_types").catch(() => null);
    show((close) => html`<${ExchangeForm} types=${broker?.exchange_types?.map((one) => one.name)} onClose=${close} />`);
  };
  useEffect(() => { if (query.new) { setQuery({ new: "" }); void declare(); } }, [query.new]);
  return html`<${PageHead} title="Exchanges">${!isReadOnly() && html`<${Button} icon="plus" kind="primary" onClick=${declare}>Declare exchange<//>`}<//>
    <${DataTable} table=${table} columns=${COLUMNS} noun="exchange" sort="name" href=${(row) => exchangeAddress(table.value(row, "vhost"), table.value(row, "name"))} prefilter=${vhostTest(table)} toolbar=${html`<${VhostPicker} />`} />`;
}
