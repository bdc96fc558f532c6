// Definitions: save them as a file; compare a file with the broker before it is applied.
import { html, useState } from "../core/html.js";
import { get, post, path, isReadOnly } from "../core/api.js";
import { download, int, plural, bytes } from "../core/format.js";
import { Badge, Button, Card, Choice, Empty, Icon, Note, PageHead, Tabs, Text, confirm, toast, failed } from "../ui/bits.js";
import { parseJson } from "../ui/forms.js";
import { useVhosts } from "../ui/vhost.js";
import { Changes } from "../ui/preview.js";

const nameOf = (key) => (key && typeof key === "object" ? Object.entries(key).map(([name, value]) => (name === "name" ? value : `${name} ${value}`)).join(", ") : String(key ?? ""));

function DiffTable({ list, kind }) {
  if (!list.length) return html`<${Empty} icon="check" title="None" />`;
  return html`<div class="plain-wrap" style=${{ maxHeight: "52vh", overflow: "auto" }} tabindex="0" role="region" aria-label="Differences"><table class="plain"><thead><tr><th>Kind</th><th>Name</th><th>${kind === "change" ? "Here, and in the file" : "Definition"}</th></tr></thead><tbody>${list.slice(0, 1000).map((one) => html`<tr><td><${Badge}>${one.kind.replaceAll("_", " ")}<//></td><td class="mono">${nameOf(one.key)}${one.applied === false && html`<div><${Badge} kind="warn" title="An import does not change what exists">stays as it is<//></div>`}</td><td>${kind === "change" ? html`<${Changes} from=${one.from} to=${one.to} />` : html`<code class="small muted">${JSON.stringify(one.to ?? one.from)}</code>`}</td></tr>`)}</tbody></table></div>`;
}

export default function Definitions() {
  const vhosts = useVhosts();
  const [vhost, setVhost] = useState("");
  const [text, setText] = useState("");
  const [file, setFile] = useState("");
  const [diff, setDiff] = useState(null);
  const [problem, setProblem] = useState("");
  const [busy, setBusy] = useState(false);
  const [tab, setTab] = useState("add");
  const where = vhost ? `/${path(vhost)}` : "";
  const save = () => get(`definitions${where}`).then((all) => download(`definitions${vhost ? `-${vhost.replaceAll("/", "_")}` : ""}.json`, JSON.stringify(all, null, 2)), failed);
  const compare = async () => {
    setBusy(true);
    setProblem("");
    setDiff(null);
    try {
      const found = await post(`definitions/diff${where}`, parseJson(text, "The file"));
      setDiff(found);
      setTab(found.add.length ? "add" : found.change.length ? "change" : "only_here");
    } catch (error) { setProblem(error.message); }
    setBusy(false);
  };
  const changes = diff ? diff.add.length + diff.change.filter((one) => one.applied !== false).length : 0;
  const apply = () => confirm({ title: "Apply the definitions", action: `Apply ${plural(changes, "change")}`, text: `${plural(diff.add.length, "object")} will be added and ${plural(diff.change.filter((one) => one.applied !== false).length, "object")} changed. What is only here stays.`, run: async () => { await post(`definitions${where}`, parseJson(text, "The file")); toast("Applied"); await compare(); } });
  const take = async (chosen) => { if (chosen) { setText(await chosen.text()); setFile(`${chosen.name}, ${bytes(chosen.size)}`); setDiff(null); } };
  return html`<${PageHead} title="Definitions" sub="Everything but messages, as a file" /><div class="grid">
    <div class="s4"><${Card} title="Scope and export"><div class="stack"><${Choice} label="Of" value=${vhost} onValue=${(value) => { setVhost(value); setDiff(null); }} options=${[["", "The whole broker"], ...vhosts.map((name) => [name, `Virtual host ${name}`])]} /><div><${Button} icon="download" onClick=${save}>Save definitions<//></div><p class="small muted">The file has the hashes of passwords, if it is of the whole broker.</p></div><//></div>
    <div class="s8"><${Card} title="Import"><div class="stack" onDragOver=${(event) => event.preventDefault()} onDrop=${(event) => { event.preventDefault(); void take(event.dataTransfer.files[0]); }}><div class="row wrapped"><label class="btn"><${Icon} name="upload" />Choose a file<input class="sr" type="file" accept=".json,application/json" onChange=${(event) => take(event.currentTarget.files[0])} /></label><span class="muted">${file || "or drop it here, or paste it below"}</span></div>
      <${Text} label="Definitions as JSON" rows=${7} mono value=${text} onValue=${(value) => { setText(value); setDiff(null); setFile(""); }} /><div class="row"><${Button} icon="search" kind=${diff ? "" : "primary"} busy=${busy} disabled=${!text.trim()} onClick=${compare}>Compare<//>${diff && !isReadOnly() && html`<${Button} icon="check" kind="primary" disabled=${!changes} onClick=${apply}>Apply ${plural(changes, "change")}<//>`}</div>${problem && html`<${Note} kind="bad">${problem}<//>`}</div><//></div>
    ${diff && html`<div class="s12"><${Card} bare label="Differences"><div style=${{ padding: "4px 12px 0" }}><${Tabs} label="Differences" value=${tab} onValue=${setTab} tabs=${[{ id: "add", title: "Only in the file", count: int(diff.add.length) }, { id: "change", title: "Different", count: int(diff.change.length) }, { id: "only_here", title: "Only here", count: int(diff.only_here.length) }]} /></div><${DiffTable} list=${diff[tab]} kind=${tab} /><p class="muted small" style=${{ padding: "8px 14px" }}>${plural(diff.same, "object is the same", "objects are the same")}.</p><//></div>`}</div>`;
}
