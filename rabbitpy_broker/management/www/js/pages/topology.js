// How exchanges and queues hang together, drawn with dagre's layout as SVG, and the routing simulator beside it.
import { html, useState, useEffect, useMemo, useRef } from "../core/html.js";
import { get, path } from "../core/api.js";
import { route, setQuery, go, queueAddress, exchangeAddress } from "../core/router.js";
import { chosenVhost } from "../core/prefs.js";
import { short, rate, exchangeLabel, plural } from "../core/format.js";
import { Button, Card, Check, Empty, Loading, Note, PageHead, Segmented, useLoad } from "../ui/bits.js";
import { useVhosts } from "../ui/vhost.js";
import { Router } from "../ui/routing.js";

const HEIGHT = 40;
const cut = (text, most = 26) => (text.length > most ? `${text.slice(0, most - 1)}…` : text);
const KIND = { dead_letter: "dlx", alternate: "ae" };

/** Places of nodes and edges; large drawings are laid out flat, since dagre takes long over them. */
async function layout(nodes, edges) {
  const { Graph, layout: place } = await import("../../vendor/dagre.esm.js");
  const graph = new Graph({ multigraph: true });
  graph.setGraph({ rankdir: "LR", nodesep: 14, ranksep: 90, marginx: 20, marginy: 20, edgesep: 8 });
  graph.setDefaultEdgeLabel(() => ({}));
  for (const node of nodes) graph.setNode(String(node.id), { width: Math.max(110, 26 + cut(exchangeLabel(node.name)).length * 7, 24 + under(node).length * 5.9), height: HEIGHT, node });
  edges.forEach((edge, i) => graph.setEdge(String(edge.from), String(edge.to), { edge, width: edge.label ? Math.min(120, edge.label.length * 6) : 0, height: 12, labelpos: "c" }, String(i)));
  place(graph);
  return { width: graph.graph().width, height: graph.graph().height, nodes: graph.nodes().map((id) => graph.node(id)), edges: graph.edges().map((id) => ({ ...graph.edge(id), ends: [Number(id.v), Number(id.w)] })) };
}

const line = (points) => points.map((point, i) => (i === 0 ? `M${point.x} ${point.y}` : i === points.length - 1 || points.length < 3 ? `L${point.x} ${point.y}` : `Q${point.x} ${point.y} ${(point.x + points[i + 1].x) / 2} ${(point.y + points[i + 1].y) / 2}`)).join("");

const under = (node) => (node.kind.startsWith("missing") ? "does not exist" : node.kind === "queue" ? `${short(node.messages)} ${node.messages === 1 ? "message" : "messages"}, ${plural(node.consumers ?? 0, "consumer")}` : `${node.type}, ${rate(node.in_rate)} /s`);

function Drawing({ placed, most }) {
  const [hot, setHot] = useState(null);
  const [zoom, setZoom] = useState(1);
  const drag = useRef(null);
  const box = useRef();
  const near = hot === null ? null : new Set([hot, ...placed.edges.filter((edge) => edge.ends.includes(hot)).flatMap((edge) => edge.ends)]);
  const down = (event) => { if (event.target.closest("g.node")) return; drag.current = { x: event.clientX, y: event.clientY, left: box.current.scrollLeft, top: box.current.scrollTop }; };
  const move = (event) => { if (!drag.current) return; box.current.scrollLeft = drag.current.left + drag.current.x - event.clientX; box.current.scrollTop = drag.current.top + drag.current.y - event.clientY; };
  const open = (node) => go((node.kind.endsWith("queue") ? queueAddress(node.vhost, node.name) : exchangeAddress(node.vhost, node.name)).slice(1));
  useEffect(() => { const width = box.current.clientWidth; setZoom(Math.max(0.35, Math.min(1, width / placed.width))); }, [placed]);
  return html`<div class="row" style=${{ padding: "6px 12px", borderBottom: "1px solid var(--line)" }}><div class="stagekey grow"><span><i style=${{ background: "var(--accent)" }}></i>exchange</span><span><i style=${{ background: "var(--c-deliver)" }}></i>queue</span><span><i style=${{ background: "var(--c-redeliver)" }}></i>dead letters</span><span><i style=${{ background: "var(--c-unacked)" }}></i>alternate exchange</span></div><${Button} small onClick=${() => setZoom(zoom / 1.25)} label="Smaller" icon="minus" /><${Button} small onClick=${() => setZoom(Math.min(2, zoom * 1.25))} label="Larger" icon="plus" /></div>
    <div class="topo" ref=${box} tabindex="0" role="region" aria-label="Drawing of the topology" onPointerDown=${down} onPointerMove=${move} onPointerUp=${() => { drag.current = null; }} onPointerLeave=${() => { drag.current = null; }}>
    <svg width=${placed.width * zoom} height=${placed.height * zoom} viewBox=${`0 0 ${placed.width} ${placed.height}`} role="group" aria-label=${`${placed.nodes.length} exchanges and queues`}>
      <defs>${["", "dlx", "ae"].map((kind) => html`<marker id=${`tip${kind}`} viewBox="0 0 8 8" refX="7" refY="4" markerWidth="9" markerHeight="9" markerUnits="userSpaceOnUse" orient="auto-start-reverse"><path d="M0 0L8 4L0 8z" style=${{ fill: kind === "dlx" ? "var(--c-redeliver)" : kind === "ae" ? "var(--c-unacked)" : "var(--line-strong)" }} /></marker>`)}</defs>
      ${placed.edges.map(({ points, edge, ends, x, y }) => html`<g class=${near && !(near.has(ends[0]) && near.has(ends[1]) && ends.includes(hot)) ? "dim" : ""}><path class=${`edge ${KIND[edge.kind] ?? ""}`} d=${line(points)} marker-end=${`url(#tip${KIND[edge.kind] ?? ""})`} style=${{ strokeWidth: `${1.2 + (most ? 3 * Math.sqrt((edge.rate ?? 0) / most) : 0)}px` }}><title>${edge.title}</title></path>${edge.label && x !== undefined && html`<text class="edge-label" x=${x} y=${y + 3} text-anchor="middle">${cut(edge.label, 18)}</text>`}</g>`)}
      ${placed.nodes.map(({ x, y, width, node }) => html`<g class=${`node ${node.kind.includes("queue") ? "queue" : "exchange"}${near && !near.has(node.id) ? " dim" : ""}`} transform=${`translate(${x - width / 2} ${y - HEIGHT / 2})`} onClick=${() => open(node)} onPointerEnter=${() => setHot(node.id)} onPointerLeave=${() => setHot(null)}>
        <a href=${node.kind.endsWith("queue") ? queueAddress(node.vhost, node.name) : exchangeAddress(node.vhost, node.name)}><rect class="n" width=${width} height=${HEIGHT} rx=${node.kind.includes("queue") ? 6 : 20} style=${node.kind.startsWith("missing") ? { strokeDasharray: "4 3" } : undefined} /><text x=${width / 2} y="17" text-anchor="middle">${cut(exchangeLabel(node.name))}</text><text class="sub" x=${width / 2} y="31" text-anchor="middle">${under(node)}</text></a><title>${node.name}</title></g>`)}</svg></div>`;
}

export default function Topology() {
  const { query } = route.value;
  const names = useVhosts();
  const vhost = query.vhost ?? (chosenVhost.value || names[0]);
  const around = query.around ?? "";
  const [bare, setBare] = useState(false);
  const [placed, setPlaced] = useState(null);
  const [problem, setProblem] = useState("");
  const { value, error, refresh } = useLoad(() => (vhost ? get(`topology/${path(vhost)}?limit=300${around ? `&around=${encodeURIComponent(around)}&depth=2` : ""}`) : Promise.resolve(null)), [vhost, around], 15000);
  const kept = useMemo(() => {
    if (!value) return null;
    const linked = new Set(value.edges.flatMap((edge) => [edge.from, edge.to]));
    const byId = Object.fromEntries(value.nodes.map((node) => [node.id, node]));
    const nodes = bare ? value.nodes : value.nodes.filter((node) => linked.has(node.id) || (node.kind === "queue" && around));
    const edges = value.edges.filter((edge) => byId[edge.from] && byId[edge.to]).map((edge) => ({ ...edge, rate: byId[edge.from].out_rate ?? 0, label: edge.kind === "binding" ? (edge.keys ?? []).filter(Boolean).slice(0, 2).join(", ") + (edge.count > 2 ? ` +${edge.count - 2}` : "") : "", title: `${edge.kind.replaceAll("_", " ")}${edge.keys?.length ? `: ${edge.keys.join(", ")}` : ""}${edge.by ? ` (${edge.by})` : ""}` }));
    return { nodes, edges, most: Math.max(0, ...edges.map((edge) => edge.rate)) };
  }, [value, bare, around]);
  const shape = kept && JSON.stringify([kept.nodes.map((node) => node.id), kept.edges.map((edge) => [edge.from, edge.to, edge.label])]);
  useEffect(() => {
    if (!kept) return undefined;
    let here = true;
    layout(kept.nodes, kept.edges).then((made) => { if (here) { setPlaced(made); setProblem(""); } }, (failure) => { if (here) setProblem(failure.message); });
    return () => { here = false; };
  }, [shape]);
  return html`<${PageHead} title="Topology" sub=${around && html`around ${around.split("/").slice(1).join("/")} <a href="#" onClick=${(event) => { event.preventDefault(); setQuery({ around: "" }); }}>show all</a>`}>
      <${Check} label="Also what nothing is bound to" value=${bare} onValue=${setBare} />${names.length > 1 && html`<select aria-label="Virtual host" style=${{ width: "auto" }} value=${vhost} onChange=${(event) => setQuery({ vhost: event.currentTarget.value, around: "" })}>${names.map((name) => html`<option value=${name} selected=${name === vhost}>${name}</option>`)}</select>`}<${Button} icon="refresh" label="Read again" onClick=${refresh} /><//>
    <div class="stack wide">${(problem || error) && html`<${Note} kind="bad">${problem || error.message}<//>`}${value?.truncated && html`<${Note} kind="warn">There is more than can be drawn. Open a queue or an exchange and choose “Show in the topology” to see what is around it.<//>`}
      <${Card} bare label="Topology">${!placed ? !error && html`<div class="body"><${Loading} /></div>` : placed.nodes.length ? html`<${Drawing} placed=${placed} most=${kept?.most} />` : html`<${Empty} icon="route" title="Nothing is bound here" />`}<//>
      ${vhost && html`<${Card} title="Where would a message go?"><${Router} key=${vhost} vhost=${vhost} /><//>`}</div>`;
}
