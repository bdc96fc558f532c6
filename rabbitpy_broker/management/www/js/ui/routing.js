// Where a message would go: asked of the broker, shown step by step. Nothing is published.
import { html, useState } from "../core/html.js";
import { post } from "../core/api.js";
import { queueAddress, exchangeAddress } from "../core/router.js";
import { exchangeLabel, plural } from "../core/format.js";
import { Badge, Button, Icon, Note, Text } from "./bits.js";
import { ArgumentsEditor, toObject } from "./forms.js";

const OUTCOMES = { keep: "good", refuse: "bad", drop: "bad" };

function Queue({ node, vhost, reason }) {
  const letter = node.dead_letter;
  return html`<div><div class="step"><span class="row tight"><${Icon} name="queue" /><a href=${queueAddress(vhost, node.name)}>${node.name}</a></span><${Badge} kind=${OUTCOMES[node.outcome]}>${node.outcome === "keep" ? "keeps it" : node.outcome === "refuse" ? "refuses it" : "drops it"}<//>${node.type !== "classic" && html`<${Badge}>${node.type}<//>`}${node.policy && html`<${Badge} kind="info">${node.policy}<//>`}<span class="muted">${reason}${node.again ? "; it has it already" : ""}</span>${node.notes.map((note) => html`<span class="small soft">${note}</span>`)}</div>
    ${letter && html`<details style=${{ marginLeft: "22px" }}><summary class="small muted">If it dies (${letter.reasons.join(", ").replaceAll("_", " ")}): to ${exchangeLabel(letter.exchange)}${letter.queues.length ? `, and on to ${letter.queues.join(", ")}` : ", where no queue gets it"}</summary>${letter.tree && html`<div class="steps"><${Exchange} node=${letter.tree} vhost=${vhost} /></div>`}</details>`}</div>`;
}

function Exchange({ node, vhost, reason }) {
  return html`<div><div class="step"><span class="row tight"><${Icon} name="exchange" />${node.missing ? html`<b>${node.name}</b><${Badge} kind="bad">does not exist<//>` : html`<a href=${exchangeAddress(vhost, node.name)}>${exchangeLabel(node.name)}</a>`}</span>${node.type && html`<${Badge}>${node.type}<//>`}${node.policy && html`<${Badge} kind="info">${node.policy}<//>`}<span class="muted">${reason}${node.again ? "; it has been there already" : ""}</span>${node.note && html`<span class="warn small">${node.note}</span>`}</div>
    ${node.steps.length > 0 && html`<div class="steps">${node.steps.map((step) => (step.to === null ? html`<div class="step muted">${step.reason}</div>` : step.to?.kind === "queue" ? html`<${Queue} node=${step.to} vhost=${vhost} reason=${step.reason} />` : step.to ? html`<${Exchange} node=${step.to} vhost=${vhost} reason=${step.reason} />` : html`<div class="step muted">${step.reason}</div>`))}</div>`}</div>`;
}

export function Router({ vhost, exchange: given = "", fixed }) {
  const [exchange, setExchange] = useState(given);
  const [key, setKey] = useState("");
  const [headers, setHeaders] = useState([]);
  const [found, setFound] = useState(null);
  const [problem, setProblem] = useState("");
  const [busy, setBusy] = useState(false);
  const ask = async (event) => {
    event.preventDefault();
    setBusy(true);
    try {
      setFound(await post("route", { vhost, exchange, routing_key: key, headers: toObject(headers) }));
      setProblem("");
    } catch (error) {
      setProblem(error.message);
      setFound(null);
    }
    setBusy(false);
  };
  return html`<form class="stack" onSubmit=${ask}><div class="fields">${!fixed && html`<${Text} label="Exchange" hint="Empty: the default exchange" value=${exchange} onValue=${setExchange} mono />`}<${Text} label="Routing key" value=${key} onValue=${setKey} mono /></div><${ArgumentsEditor} label="Headers" rows=${headers} onRows=${setHeaders} add="Add header" />
    <div><${Button} type="submit" icon="route" busy=${busy}>Show the way<//></div>${problem && html`<${Note} kind="bad">${problem}<//>`}
    ${found && html`${found.refusal && html`<${Note} kind="bad">You may not publish this: ${found.refusal}<//>`}<${Note} kind=${found.routed ? "good" : "warn"}>${found.routed ? html`It reaches ${plural(found.queues.length, "queue")}: ${found.queues.map((name, i) => html`${i ? ", " : ""}<a href=${queueAddress(vhost, name)}>${name}</a>`)}` : "It reaches no queue: it would be dropped, or returned if it is mandatory."}<//><div class="steps"><${Exchange} node=${found.tree} vhost=${vhost} /></div>`}</form>`;
}
