// One user: tags, permissions, topic permissions, limits.
import { html } from "../core/html.js";
import { get, del, path, session, isReadOnly } from "../core/api.js";
import { go, to } from "../core/router.js";
import { Badge, Button, Card, Empty, KV, Loading, Note, confirm, show, toast, useLoad } from "../ui/bits.js";
import { PermissionForm, PermissionTester, TopicPermissionForm, UserForm } from "../ui/adminform.js";
import { useVhosts } from "../ui/vhost.js";
import { tagsOf } from "./users.js";

export default function UserPage({ segments }) {
  const [name] = segments;
  const it = useLoad(() => get(`users/${path(name)}`), [name]);
  const permissions = useLoad(() => get(`users/${path(name)}/permissions`), [name]);
  const topics = useLoad(() => get(`users/${path(name)}/topic-permissions`), [name]);
  const vhosts = useVhosts();
  if (it.error) return it.error.status === 404 ? html`<${Empty} icon="user" title=${`There is no user ${name}`}><a href="#/users">All users</a><//>` : html`<${Note} kind="bad">${it.error.message}<//>`;
  if (!it.value) return html`<${Loading} />`;
  const may = !isReadOnly();
  const remove = () => confirm({ title: `Delete ${name}`, danger: true, action: "Delete user", text: `${name} may not log in any more.${session.value.name === name ? " That is you." : ""}`, typed: name, run: async () => { await del(`users/${path(name)}`); toast("Deleted"); go("/users"); } });
  const revoke = (what, where, done) => confirm({ title: "Take permissions away", danger: true, action: "Take away", text: what, run: async () => { await del(where); void done(); } });
  const table = (list, columns, act) => html`<div class="plain-wrap" tabindex="0" role="group"><table class="plain"><thead><tr>${columns.map((one) => html`<th>${one}</th>`)}<th><span class="sr">Actions</span></th></tr></thead><tbody>${list.map((one) => html`<tr>${columns.map((column) => html`<td class=${column === "vhost" ? "" : "mono"}>${column === "vhost" ? html`<a href=${to(["vhosts", one.vhost])}>${one.vhost}</a>` : one[column]}</td>`)}<td class="act">${may && act(one)}</td></tr>`)}</tbody></table></div>`;
  return html`<div class="page-head"><h1 class="wrap">${name}</h1>${tagsOf(it.value).map((tag) => html`<${Badge} kind=${tag === "administrator" ? "accent" : ""}>${tag}<//>`)}<div class="actions">${may && html`<${Button} icon="edit" onClick=${() => show((close) => html`<${UserForm} user=${{ ...it.value, tags: tagsOf(it.value) }} onClose=${close} onDone=${it.refresh} />`)}>Change<//><${Button} kind="danger" icon="trash" onClick=${remove}>Delete<//>`}</div></div>
    <div class="grid"><div class="s6"><${Card} title="Permissions" bare actions=${may && vhosts.length > 0 && html`<${Button} small icon="plus" onClick=${() => show((close) => html`<${PermissionForm} user=${name} vhosts=${vhosts} users=${[]} onClose=${close} onDone=${permissions.refresh} />`)}>Set<//>`}>${permissions.value?.length ? table(permissions.value, ["vhost", "configure", "write", "read"], (one) => html`<${Button} small kind="ghost" icon="edit" label="Change" onClick=${() => show((close) => html`<${PermissionForm} vhost=${one.vhost} user=${name} vhosts=${[]} users=${[]} first=${one} onClose=${close} onDone=${permissions.refresh} />`)} /><${Button} small kind="ghost" icon="trash" label="Take away" onClick=${() => revoke(`${name} may not enter ${one.vhost} any more.`, `permissions/${path(one.vhost, name)}`, permissions.refresh)} />`) : html`<${Empty} icon="lock" title="May enter no virtual host" />`}<//></div>
      <div class="s6"><${Card} title="Topic permissions" bare actions=${may && vhosts.length > 0 && html`<${Button} small icon="plus" onClick=${() => show((close) => html`<${TopicPermissionForm} user=${name} vhosts=${vhosts} onClose=${close} onDone=${topics.refresh} />`)}>Set<//>`}>${topics.value?.length ? table(topics.value, ["vhost", "exchange", "write", "read"], (one) => html`<${Button} small kind="ghost" icon="trash" label="Take away" onClick=${() => revoke(`The rules for ${one.exchange} go: every key is allowed then.`, `topic-permissions/${path(one.vhost, name, one.exchange === "" ? "amq.default" : one.exchange)}`, topics.refresh)} />`) : html`<${Empty} icon="lock" title="Every routing key is allowed" />`}<//></div>
      <div class="s6"><${Card} title=${`May ${name} …?`}>${vhosts.length > 0 && html`<${PermissionTester} user=${name} users=${[]} vhosts=${vhosts} />`}<//></div>
      <div class="s6"><${Card} title="Login"><${KV} items=${[["Password", it.value.password_hash ? "set" : "none: no login with a password"], ["Hashed with", it.value.hashing_algorithm], ["Limits", Object.entries(it.value.limits ?? {}).map(([one, value]) => `${one}: ${value}`).join(", ") || "none"]]} /><//></div></div>`;
}
