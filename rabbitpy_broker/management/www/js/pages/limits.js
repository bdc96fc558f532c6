// Limits of virtual hosts and of users.
import { html } from "../core/html.js";
import { get, del, path, isAdmin, isReadOnly } from "../core/api.js";
import { int } from "../core/format.js";
import { Button, Card, Empty, Loading, Note, PageHead, confirm, show, toast, useLoad } from "../ui/bits.js";
import { LimitForm } from "../ui/adminform.js";
import { useVhosts } from "../ui/vhost.js";

const KINDS = { vhost: ["max-connections", "max-queues"], user: ["max-connections", "max-channels"] };

function Limits({ scope, title, names }) {
  const { value, error, refresh } = useLoad(() => get(`${scope}-limits`), [scope]);
  const may = isAdmin() && !isReadOnly();
  const rows = (value ?? []).flatMap((one) => Object.entries(one.value ?? {}).map(([kind, limit]) => ({ of: one[scope], kind, limit })));
  const remove = (row) => confirm({ title: "Delete the limit", action: "Delete", danger: true, text: `${row.kind} of ${row.of} is not limited any more.`, run: async () => { await del(`${scope}-limits/${path(row.of, row.kind)}`); toast("Deleted"); void refresh(); } });
  return html`<${Card} title=${title} bare actions=${may && names.length > 0 && html`<${Button} small icon="plus" onClick=${() => show((close) => html`<${LimitForm} scope=${scope} names=${names} kinds=${KINDS[scope]} onClose=${close} onDone=${refresh} />`)}>Set a limit<//>`}>${error && html`<${Note} kind="bad">${error.message}<//>`}${!value ? html`<div class="body"><${Loading} lines=${2} /></div>` : rows.length ? html`<div class="plain-wrap" tabindex="0" role="group"><table class="plain"><thead><tr><th>${scope === "vhost" ? "Virtual host" : "User"}</th><th>Limit</th><th class="num">At most</th><th><span class="sr">Actions</span></th></tr></thead><tbody>${rows.map((row) => html`<tr><td>${row.of}</td><td class="mono">${row.kind}</td><td class="num">${row.limit < 0 ? "no limit" : int(row.limit)}</td><td class="act">${may && html`<${Button} small kind="ghost" icon="trash" label="Delete" onClick=${() => remove(row)} />`}</td></tr>`)}</tbody></table></div>` : html`<${Empty} icon="limit" title="No limits" />`}<//>`;
}

export default function LimitsPage() {
  const vhosts = useVhosts();
  const { value: users } = useLoad(() => (isAdmin() ? get("users?columns=name") : Promise.resolve([])), []);
  return html`<${PageHead} title="Limits" /><div class="grid"><div class="s6"><${Limits} scope="vhost" title="Virtual hosts" names=${vhosts} /></div><div class="s6"><${Limits} scope="user" title="Users" names=${(users ?? []).map((one) => one.name)} /></div></div>`;
}
