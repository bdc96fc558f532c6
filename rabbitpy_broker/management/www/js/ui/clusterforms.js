// What an operator does to a cluster: replicas of a virtual host, maintenance of a node, backups and restores.
import { html, useState } from "../core/html.js";
import { call, get, isAdmin, isReadOnly, path, post, put } from "../core/api.js";
import { bytes, when } from "../core/format.js";
import { Badge, Button, Card, Check, Choice, FormDialog, Note, Text, confirm, show, toast, useLoad } from "./bits.js";

/** Gives a replica of a virtual host to a node that has none. */
function AddReplicaForm({ onClose, onDone, name, nodes }) {
  const [node, setNode] = useState(nodes[0] ?? "");
  const run = async () => { await post(`vhosts/${path(name)}/replicas/add`, { node }); toast(`${node} gets a replica of ${name}`); onDone(); };
  return html`<${FormDialog} title=${`Add a replica of ${name}`} action="Add replica" run=${run} onClose=${onClose} disabled=${!node}><${Choice} label="At node" value=${node} onValue=${setNode} options=${nodes} /><${Note}>The node begins with a copy of another's and follows from there. Clients notice nothing.<//><//>`;
}

export const addReplica = (name, nodes, onDone) => show((close) => html`<${AddReplicaForm} name=${name} nodes=${nodes} onClose=${close} onDone=${onDone} />`);

export const removeReplica = (name, node, onDone) => confirm({ title: `Take the replica from ${node}`, danger: true, action: "Take away", text: `${node} removes its copy of ${name}. With fewer replicas fewer nodes may be lost.`, run: async () => { await call("DELETE", `vhosts/${path(name)}/replicas/delete`, { node }); toast(`${node} has no replica of ${name} any more`); onDone(); } });

function ReplicateForm({ onClose, onDone, name }) {
  const [count, setCount] = useState("3");
  const run = async () => { await put(`vhosts/${path(name)}`, { replicas: Number(count) }); toast(`${name} is replicated`); onDone(); };
  return html`<${FormDialog} title=${`Replicate ${name}`} action="Replicate" run=${run} onClose=${onClose} disabled=${!(Number(count) > 0)}><${Text} label="Replicas" hint="So many nodes will have it" type="number" min="1" value=${count} onValue=${setCount} required autofocus /><${Note} kind="warn">Its clients are closed with 320 while it is copied into the engine, and may come back then. Persistent messages stay; transient and exclusive queues go.<//><//>`;
}

export const replicate = (name, onDone) => show((close) => html`<${ReplicateForm} name=${name} onClose=${close} onDone=${onDone} />`);

export const unreplicate = (name, owner, onDone) => confirm({ title: `Unreplicate ${name}`, danger: true, action: "Unreplicate", typed: name, text: `Only ${owner} keeps it: the other replicas are removed, and nobody takes it over when that node is lost. Its clients are closed and may come back.`, run: async () => { await put(`vhosts/${path(name)}`, { replicas: 0 }); toast(`${name} is of ${owner} alone`); onDone(); } });

function DrainForm({ onClose, onDone, node }) {
  const [force, setForce] = useState(false);
  const run = async () => {
    const answer = await put(`nodes/${path(node)}/maintenance`, { force });
    toast(answer?.left ? `${node} is in maintenance, and still has: ${answer.left}` : `${node} is in maintenance`, answer?.left ? "bad" : "good");
    onDone();
  };
  return html`<${FormDialog} title=${`Put ${node} into maintenance`} action="Drain" danger run=${run} onClose=${onClose}><p class="wrap">Its AMQP clients are closed and none is taken any more; other nodes get the replicated virtual hosts that it owns. It goes on following, and its pages work.</p><${Check} label="Also when no other node can have some of them" value=${force} onValue=${setForce} /><//>`;
}

/** For a node that runs: into maintenance, or out of it. */
export function Maintenance({ node, onDone }) {
  if (!isAdmin() || isReadOnly() || !node.running) return null;
  const revive = () => confirm({ title: `End the maintenance of ${node.name}`, action: "Revive", text: "It takes clients again, and may own virtual hosts.", run: async () => { await call("DELETE", `nodes/${path(node.name)}/maintenance`); toast(`${node.name} takes clients again`); onDone(); } });
  return node.maintenance
    ? html`<${Button} small onClick=${revive}>Revive<//>`
    : html`<${Button} small onClick=${() => show((close) => html`<${DrainForm} node=${node.name} onClose=${close} onDone=${onDone} />`)}>Drain<//>`;
}

// -- backups

const STATES = { done: "good", failed: "bad", running: "accent" };

function BackUpForm({ onClose, onDone, name }) {
  const [file, setFile] = useState(`${name.replaceAll(/[^\w.-]/g, "_").replace(/^[^a-zA-Z0-9]+/, "") || "vhost"}-${new Date().toISOString().slice(0, 10)}`);
  const run = async () => { await post(`vhosts/${path(name)}/backup`, { name: file }); toast("The backup has begun"); onDone(); };
  return html`<${FormDialog} title=${`Back up ${name}`} action="Back up" run=${run} onClose=${onClose} disabled=${!file}><${Text} label="Name" hint="A file of this name is replaced when the new one is whole" value=${file} onValue=${setFile} required mono autofocus /><//>`;
}

function RestoreForm({ onClose, onDone, name }) {
  const [vhost, setVhost] = useState("");
  const [replicas, setReplicas] = useState("");
  const run = async () => { await post(`vhosts/${path(vhost)}/restore`, { name, ...(replicas === "" ? {} : { replicas: Number(replicas) }) }); toast("The restore has begun"); onDone(); };
  return html`<${FormDialog} title=${`Restore ${name}`} action="Restore" run=${run} onClose=${onClose} disabled=${!vhost}><div class="fields"><${Text} label="As virtual host" hint="One that there is not" value=${vhost} onValue=${setVhost} required mono autofocus /><${Text} label="Replicas" hint="Empty: as many as it had" type="number" min="0" value=${replicas} onValue=${setReplicas} /></div><//>`;
}

/** The backups of the node that is asked; of one virtual host with a button that makes another. */
export function Backups({ vhost }) {
  const { value, error, refresh } = useLoad(() => get("backups"), [], 3000);
  if (!value) return error ? html`<${Card} title="Backups"><${Note} kind="bad">${error.message}<//><//>` : null;
  const may = !isReadOnly() && Boolean(value.folder);
  const jobs = value.jobs.filter((one) => vhost === undefined || one.vhost === vhost).slice(0, 10);
  const begin = may && vhost !== undefined && html`<${Button} small onClick=${() => show((close) => html`<${BackUpForm} name=${vhost} onClose=${close} onDone=${refresh} />`)}>Back up now<//>`;
  const files = html`<div class="plain-wrap" tabindex="0" role="group" aria-label="Files"><table class="plain"><thead><tr><th>Backup</th><th class="num">Size</th><th>Made</th><th><span class="sr">Actions</span></th></tr></thead><tbody>${value.files.map((one) => html`<tr key=${one.name}><td class="mono">${one.name}</td><td class="num">${bytes(one.bytes)}</td><td>${when(one.at)}</td><td class="act">${may && html`<${Button} small onClick=${() => show((close) => html`<${RestoreForm} name=${one.name} onClose=${close} onDone=${refresh} />`)}>Restore<//>`}</td></tr>`)}</tbody></table></div>`;
  const done = html`<div class="plain-wrap" tabindex="0" role="group" aria-label="Backups and restores since the start"><table class="plain"><thead><tr><th>Job</th><th>Virtual host</th><th>Backup</th><th>State</th></tr></thead><tbody>${jobs.map((one) => html`<tr key=${`${one.kind} ${one.began} ${one.name}`}><td>${one.kind}</td><td>${one.vhost}</td><td class="mono">${one.name}</td><td><span class="row tight wrapped"><${Badge} kind=${STATES[one.state]}>${one.state}<//>${one.reason && html`<span class="wrap">${one.reason}</span>`}${one.bytes != null && html`<span class="soft">${bytes(one.bytes)}</span>`}</span></td></tr>`)}</tbody></table></div>`;
  return html`<${Card} title="Backups" bare actions=${begin}>${value.folder ? html`<div class="body soft">Of this node, in <span class="mono">${value.folder}</span></div>` : html`<div class="body muted">There are none: no folder is set (management.backup_dir)</div>`}${value.files.length > 0 && files}${jobs.length > 0 && done}<//>`;
}
