// Cancelling a consumer, from wherever one is shown.
import { html } from "../core/html.js";
import { del, path, session, isAdmin, isReadOnly } from "../core/api.js";
import { Button, confirm, toast } from "./bits.js";

/** `one` is {vhost, queue, consumer_tag, channel: "CONNECTION (NUMBER)", user}. */
export function CancelButton({ one, onDone }) {
  if (isReadOnly() || !(isAdmin() || one.user === session.value?.name)) return null;
  const [, connection, number] = /^(.*) \((\d+)\)$/s.exec(one.channel) ?? [];
  if (!connection) return null;
  const ask = () => confirm({
    title: "Cancel the consumer", danger: true, action: "Cancel consumer",
    text: html`<b class="mono">${one.consumer_tag}</b> gets nothing more of <b>${one.queue}</b>. Its client is told, if it listens for that, and may consume again; what it holds stays unacked until it acks it or its channel closes.`,
    run: async () => { await del(`consumers/${path(one.vhost, connection, number, one.consumer_tag)}`); toast("The consumer is cancelled"); onDone?.(); },
  });
  return html`<${Button} small kind="ghost" icon="stop" label="Cancel the consumer" onClick=${ask} />`;
}

/** The same of a consumer as the classic API shows it. */
export const cancelOf = (one, onDone) => html`<${CancelButton} one=${{ vhost: one.queue.vhost, queue: one.queue.name, consumer_tag: one.consumer_tag, channel: one.channel_details?.name ?? "", user: one.channel_details?.user }} onDone=${onDone} />`;
