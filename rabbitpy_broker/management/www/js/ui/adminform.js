// Forms of the administration: vhosts, users, permissions, policies, limits.
import { html, useState, useEffect } from "../core/html.js";
import { put, post, path } from "../core/api.js";
import { plural } from "../core/format.js";
import { Check, Choice, Field, FormDialog, Note, Text, toast } from "./bits.js";
import { ArgumentsEditor, toObject, toRows } from "./forms.js";
import { PolicyPreview } from "./preview.js";

export function VhostForm({ onClose, onDone, vhost }) {
  const [name, setName] = useState(vhost?.name ?? "");
  const [description, setDescription] = useState(vhost?.description ?? "");
  const [tags, setTags] = useState((vhost?.tags ?? []).join(", "));
  const [kind, setKind] = useState(vhost?.default_queue_type && vhost.default_queue_type !== "undefined" ? vhost.default_queue_type : "classic");
  const run = async () => { await put(`vhosts/${path(name)}`, { description, tags, default_queue_type: kind }); toast(vhost ? "Changed" : `Virtual host ${name} is there`); onDone(); };
  return html`<${FormDialog} title=${vhost ? `Change ${vhost.name}` : "Add a virtual host"} action=${vhost ? "Change" : "Add"} run=${run} onClose=${onClose} disabled=${!name}><div class="fields"><${Text} label="Name" value=${name} onValue=${setName} required mono autofocus=${!vhost} readonly=${Boolean(vhost)} /><${Text} label="Description" value=${description} onValue=${setDescription} /><${Text} label="Tags" hint="With commas between" value=${tags} onValue=${setTags} /><${Choice} label="Default queue type" value=${kind} onValue=${setKind} options=${["classic", "quorum", "stream"]} /></div><//>`;
}

/** Where there are several workers: gives a vhost to another of them. */
export function MoveForm({ onClose, onDone, name, workers, now }) {
  const others = workers.filter((one) => one.worker !== now);
  const [worker, setWorker] = useState(String(others[0]?.worker ?? ""));
  const run = async () => { await put(`vhosts/${path(name)}/worker`, { worker: Number(worker) }); toast(`${name} is with worker ${worker}`); onDone(); };
  return html`<${FormDialog} title=${`Move ${name}`} action="Move" run=${run} onClose=${onClose} disabled=${!worker}><${Choice} label="To worker" value=${worker} onValue=${setWorker} options=${others.map((one) => [String(one.worker), `${one.worker}, with ${plural(one.vhosts.length, "virtual host")}${one.running ? "" : ", does not run"}`])} /><${Note} kind="warn">Its connections are closed and may come back at once; they wait until the other worker has opened it. Persistent messages stay, others are lost, as with a restart.<//><//>`;
}

/** Where there are several nodes: has another one own a replicated vhost. */
export function TransferForm({ onClose, onDone, name, nodes }) {
  const [node, setNode] = useState(nodes[0]?.[0] ?? "");
  const run = async () => { await put(`vhosts/${path(name)}/owner`, { node }); toast(`${name} is owned by ${node}`); onDone(); };
  return html`<${FormDialog} title=${`Hand ${name} over`} action="Hand over" run=${run} onClose=${onClose} disabled=${!node}><${Choice} label="To node" value=${node} onValue=${setNode} options=${nodes} /><${Note} kind="warn">Its clients are closed with 320 and may come back at once, to any node. What was confirmed stays; transient and exclusive queues go.<//><//>`;
}

const TAGS = [["administrator", "everything"], ["monitoring", "sees everything"], ["policymaker", "policies and parameters"], ["management", "its own things"]];

export function UserForm({ onClose, onDone, user }) {
  const [name, setName] = useState(user?.name ?? "");
  const [password, setPassword] = useState("");
  const [how, setHow] = useState(user ? "keep" : "password");
  const [tags, setTags] = useState(user?.tags ?? []);
  const others = tags.filter((tag) => !TAGS.some(([one]) => one === tag));
  const run = async () => {
    const secret = how === "password" ? { password } : how === "none" ? { password_hash: "" } : { password_hash: user.password_hash, hashing_algorithm: user.hashing_algorithm };
    await put(`users/${path(name)}`, { ...secret, tags: tags.join(",") });
    toast(user ? "Changed" : `User ${name} is there`);
    onDone();
  };
  return html`<${FormDialog} title=${user ? `Change ${user.name}` : "Add a user"} action=${user ? "Change" : "Add"} run=${run} onClose=${onClose} disabled=${!name || (how === "password" && !password)}>
    <div class="fields"><${Text} label="Name" value=${name} onValue=${setName} required autofocus=${!user} readonly=${Boolean(user)} mono /><${Choice} label="Login" value=${how} onValue=${setHow} options=${[...(user ? [["keep", "Keep the password"]] : []), ["password", user ? "New password" : "With a password"], ["none", "No login with a password"]]} />${how === "password" && html`<${Text} label="Password" type="password" value=${password} onValue=${setPassword} autocomplete="new-password" />`}</div>
    <div class="field"><span class="label">Tags</span>${TAGS.map(([tag, what]) => html`<${Check} label=${html`${tag} <span class="muted">${what}</span>`} value=${tags.includes(tag)} onValue=${(on) => setTags(on ? [...tags, tag] : tags.filter((one) => one !== tag))} />`)}${others.length > 0 && html`<span class="hint">Also: ${others.join(", ")}</span>`}</div><//>`;
}

export function PermissionForm({ onClose, onDone, vhosts, users, vhost: v, user: u, first }) {
  const [vhost, setVhost] = useState(v ?? vhosts[0]);
  const [user, setUser] = useState(u ?? users[0]);
  const [rules, setRules] = useState({ configure: first?.configure ?? ".*", write: first?.write ?? ".*", read: first?.read ?? ".*" });
  const run = async () => { await put(`permissions/${path(vhost, user)}`, rules); toast("Permissions are set"); onDone(); };
  return html`<${FormDialog} title="Set permissions" action="Set" run=${run} onClose=${onClose}><div class="fields">${v === undefined && html`<${Choice} label="Virtual host" value=${vhost} onValue=${setVhost} options=${vhosts} />`}${u === undefined && html`<${Choice} label="User" value=${user} onValue=${setUser} options=${users} />`}</div>
    <div class="fields">${["configure", "write", "read"].map((one) => html`<${Text} label=${one} hint=${{ configure: "declare, delete", write: "publish, bind to a queue", read: "get, consume, bind from" }[one]} value=${rules[one]} onValue=${(value) => setRules({ ...rules, [one]: value })} mono />`)}</div><p class="small muted">Regular expressions over names. <code>.*</code> is everything, <code>^$</code> nothing.</p><//>`;
}

export function TopicPermissionForm({ onClose, onDone, vhosts, user }) {
  const [vhost, setVhost] = useState(vhosts[0]);
  const [exchange, setExchange] = useState("amq.topic");
  const [write, setWrite] = useState(".*");
  const [read, setRead] = useState(".*");
  const run = async () => { await put(`topic-permissions/${path(vhost, user)}`, { exchange, write, read }); toast("Topic permissions are set"); onDone(); };
  return html`<${FormDialog} title="Set topic permissions" action="Set" run=${run} onClose=${onClose}><div class="fields"><${Choice} label="Virtual host" value=${vhost} onValue=${setVhost} options=${vhosts} /><${Text} label="Exchange" value=${exchange} onValue=${setExchange} mono /><${Text} label="Write" value=${write} onValue=${setWrite} mono /><${Text} label="Read" value=${read} onValue=${setRead} mono /></div><//>`;
}

/** "Can this user …?": asked of the broker as it would decide. */
export function PermissionTester({ users, vhosts, user: u }) {
  const [user, setUser] = useState(u ?? users[0] ?? "");
  const [vhost, setVhost] = useState(vhosts[0] ?? "/");
  const [kind, setKind] = useState("queue");
  const [name, setName] = useState("");
  const [key, setKey] = useState("");
  const [found, setFound] = useState(null);
  useEffect(() => {
    let here = true;
    const timer = setTimeout(() => post("permissions/test", { user, vhost, name, kind, ...(key ? { routing_key: key } : {}) }).then((answer) => { if (here) setFound(answer); }, (error) => { if (here) setFound({ problem: error.message }); }), 200);
    return () => { here = false; clearTimeout(timer); };
  }, [user, vhost, kind, name, key]);
  const mark = (on, text) => html`<span class=${`badge ${on ? "good" : "bad"}`}>${on ? "may" : "may not"} ${text}</span>`;
  return html`<div class="stack"><div class="fields">${u === undefined && html`<${Choice} label="User" value=${user} onValue=${setUser} options=${users} />`}<${Choice} label="Virtual host" value=${vhost} onValue=${setVhost} options=${vhosts} /><${Choice} label="Kind" value=${kind} onValue=${setKind} options=${[["queue", "Queue"], ["exchange", "Exchange"]]} /><${Text} label="Name" value=${name} onValue=${setName} mono />${kind === "exchange" && html`<${Text} label="Routing key" value=${key} onValue=${setKey} mono />`}</div>
    ${found && (found.problem ? html`<${Note} kind="bad">${found.problem}<//>` : html`<div class="row wrapped">${mark(found.enter, "enter")}${mark(found.configure, "configure")}${mark(found.write, "write")}${mark(found.read, "read")}${found.topic && html`${mark(found.topic.write, "write this key")}${mark(found.topic.read, "read this key")}`}</div>`)}</div>`;
}

export const POLICY_KEYS = [
  ["message-ttl", "number", "Milliseconds", "Message TTL"], ["expires", "number", "Milliseconds without use", "Expires"], ["max-length", "number", "Ready messages at most", "Max length"], ["max-length-bytes", "number", "Bytes at most", "Max bytes"], ["overflow", "string", "drop-head, reject-publish, reject-publish-dlx", "Overflow"], ["dead-letter-exchange", "string", "", "Dead-letter exchange"], ["dead-letter-routing-key", "string", "", "Dead-letter key"], ["alternate-exchange", "string", "", "Alternate exchange"], ["delivery-limit", "number", "", "Delivery limit"], ["queue-mode", "string", "lazy"], ["confirm-mode", "string", ""],
];

export function PolicyForm({ onClose, onDone, vhosts, policy, operator }) {
  const [vhost, setVhost] = useState(policy?.vhost ?? vhosts[0]);
  const [name, setName] = useState(policy?.name ?? "");
  const [pattern, setPattern] = useState(policy?.pattern ?? "^");
  const [applies, setApplies] = useState(policy?.["apply-to"] ?? (operator ? "queues" : "all"));
  const [priority, setPriority] = useState(String(policy?.priority ?? 0));
  const [rows, setRows] = useState(toRows(policy?.definition));
  let definition = null;
  let wrong = "";
  try { definition = toObject(rows); } catch (error) { wrong = error.message; }
  const run = async () => {
    await put(`${operator ? "operator-policies" : "policies"}/${path(vhost, name)}`, { pattern, "apply-to": applies, definition: toObject(rows), priority: Number(priority) || 0 });
    toast(`Policy ${name} is set`);
    onDone();
  };
  const kinds = operator ? ["queues", "classic_queues", "quorum_queues", "streams"] : ["all", "queues", "classic_queues", "quorum_queues", "streams", "exchanges"];
  return html`<${FormDialog} wide title=${`${policy ? "Change" : "Add"} ${operator ? "operator policy" : "policy"}${policy ? ` ${policy.name}` : ""}`} action="Set" run=${run} onClose=${onClose} disabled=${!name || !rows.length}>
    <div class="fields">${!policy && html`<${Choice} label="Virtual host" value=${vhost} onValue=${setVhost} options=${vhosts} />`}<${Text} label="Name" value=${name} onValue=${setName} readonly=${Boolean(policy)} autofocus=${!policy} required mono /><${Text} label="Pattern" hint="Regular expression over names" value=${pattern} onValue=${setPattern} mono /><${Choice} label="Applies to" value=${applies} onValue=${setApplies} options=${kinds} /><${Text} label="Priority" type="number" value=${priority} onValue=${setPriority} /></div>
    <${ArgumentsEditor} label="Definition" rows=${rows} onRows=${setRows} known=${POLICY_KEYS} />
    ${wrong ? html`<${Note} kind="warn">${wrong}<//>` : html`<${PolicyPreview} given=${{ vhost, name: name || "(new)", pattern, "apply-to": applies, definition, priority: Number(priority) || 0, operator: Boolean(operator) }} />`}<//>`;
}

export function LimitForm({ onClose, onDone, scope, names, kinds }) {
  const [of, setOf] = useState(names[0]);
  const [kind, setKind] = useState(kinds[0]);
  const [value, setValue] = useState("100");
  const run = async () => { await put(`${scope}-limits/${path(of, kind)}`, { value: Number(value) }); toast("Limit is set"); onDone(); };
  return html`<${FormDialog} title=${scope === "vhost" ? "Limit a virtual host" : "Limit a user"} action="Set" run=${run} onClose=${onClose}><div class="fields"><${Choice} label=${scope === "vhost" ? "Virtual host" : "User"} value=${of} onValue=${setOf} options=${names} /><${Choice} label="Limit" value=${kind} onValue=${setKind} options=${kinds} /><${Text} label="At most" hint="-1: no limit" type="number" value=${value} onValue=${setValue} /></div><//>`;
}
