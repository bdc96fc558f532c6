// All users, and the tester of permissions.
import { html } from "../core/html.js";
import { get, isReadOnly } from "../core/api.js";
import { to } from "../core/router.js";
import { Badge, Button, Card, Loading, Note, PageHead, show, useLoad } from "../ui/bits.js";
import { PermissionTester, UserForm } from "../ui/adminform.js";
import { useVhosts } from "../ui/vhost.js";

export const tagsOf = (user) => (Array.isArray(user.tags) ? user.tags : String(user.tags ?? "").split(",").filter(Boolean));

export default function Users() {
  const { value, error, refresh } = useLoad(async () => { const [users, permissions] = await Promise.all([get("users"), get("permissions")]); return users.map((user) => ({ ...user, vhosts: permissions.filter((one) => one.user === user.name).map((one) => one.vhost) })); }, [], 10000);
  const vhosts = useVhosts();
  return html`<${PageHead} title="Users">${!isReadOnly() && html`<${Button} icon="plus" kind="primary" onClick=${() => show((close) => html`<${UserForm} onClose=${close} onDone=${refresh} />`)}>Add user<//>`}<//>${error && html`<${Note} kind="bad">${error.message}<//>`}
    <div class="stack wide"><${Card} bare label="Users">${!value ? html`<div class="body"><${Loading} /></div>` : html`<div class="plain-wrap" tabindex="0" role="group"><table class="plain"><thead><tr><th>Name</th><th>Tags</th><th>May enter</th><th>Login</th></tr></thead><tbody>${value.map((user) => html`<tr><td><a href=${to(["users", user.name])}>${user.name}</a></td><td><span class="row tight wrapped">${tagsOf(user).map((tag) => html`<${Badge} kind=${tag === "administrator" ? "accent" : ""}>${tag}<//>`)}</span></td><td>${user.vhosts.length ? user.vhosts.join(", ") : html`<span class="warn">nowhere</span>`}</td><td>${user.password_hash ? "password" : html`<span class="muted">no password</span>`}</td></tr>`)}</tbody></table></div>`}<//>
    ${value && vhosts.length > 0 && html`<${Card} title="May a user …?"><${PermissionTester} users=${value.map((user) => user.name)} vhosts=${vhosts} /><//>`}</div>`;
}
