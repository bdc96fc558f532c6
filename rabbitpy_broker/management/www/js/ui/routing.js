// Where a message would go: asked of the broker, shown step by step. Nothing is published.
import { html, useState } from "../core/html.js";
import { post } from "../core/api.js";
import { queueAddress, exchangeAddress } from "../core/router.js";
import { exchangeLabel, plural } from "../core/format.js";
import { Badge, Button, Icon, Note, Text } from "./bits.js";
import { ArgumentsEditor, toObject } from "./forms.js";

const asList = (value) => (Array.isArray(value) ? value : value ? [value] : []);

function Step({ step, vhost }) {
  const inside = [...asList(step.steps), ...asList(step.matched), ...asList(step.then), ...asList(step.bindings)];
  const kind = step.kind ?? step.destination_type ?? (step.queue !== undefined ? "queue" : "exchange");
  const name = step.name ?? step.destination ?? step.queue ?? step.exchange ?? "";
  const isQueue = kind === "queue";
  return html`<div><div class="step"><span class="row tight"><${Icon} name=${isQueue ? "queue" : "exchange"} /><a href=${isQueue ? queueAddress(vhost, name) : exchangeAddress(vhost, name)}>${exchangeLabel(name)}</a></span>${step.type && html`<${Badge}>${step.type}<//>`}${step.via && html`<${Badge} kind="info">${String(step.via).replaceAll("_", " ")}<//>`}${step.routing_key !== undefined && html`<code>${step.routing_key || "(empty key)"}</code>`}${step.reason && html`<span class="muted">${step.reason}</span>`}${asList(step.notes).map((note) => html`<span class="warn small">${note.text ?? note}</span>`)}</div>
    ${(inside.length > 0 || step.alternate) && html`<div class="steps">${inside.map((one) => html`<${Step} step=${one} vhost=${vhost} />`)}${step.alternate && html`<${Step} step=${{ ...step.alternate, via: "alternate exchange" }} vhost=${vhost} />`}</div>`}</div>`;
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
  const queues = asList(found?.queues).map((one) => one.name ?? one);
  const steps = asList(found?.steps ?? found?.tree ?? found?.path);
  return html`<form class="stack" onSubmit=${ask}><div class="fields">${!fixed && html`<${Text} label="Exchange" value=${exchange} onValue=${setExchange} mono />`}<${Text} label="Routing key" value=${key} onValue=${setKey} mono /></div><${ArgumentsEditor} label="Headers" rows=${headers} onRows=${setHeaders} add="Add header" />
    <div><${Button} type="submit" icon="route" busy=${busy}>Show the way<//></div>${problem && html`<${Note} kind="bad">${problem}<//>`}
    ${found && html`<${Note} kind=${queues.length ? "good" : "warn"}>${queues.length ? html`It reaches ${plural(queues.length, "queue")}: ${queues.map((name, i) => html`${i ? ", " : ""}<a href=${queueAddress(vhost, name)}>${name}</a>`)}` : "It reaches no queue: it would be returned or dropped."}<//>${steps.length > 0 && html`<div class="steps">${steps.map((step) => html`<${Step} step=${step} vhost=${vhost} />`)}</div>`}`}</form>`;
}
