/** The rows of a thread. */

import { clock, duration, exactTime, plural, usd } from "../format.js";
import { html, useEffect, useState } from "../lib.js";
import { readRequest } from "../decisions.js";
import { openRequests } from "../inbox.js";
import { summary } from "../rows.js";
import { stepOf } from "../steps.js";
import { AttachmentList } from "./attachments.js";
import { Badge } from "./badge.js";
import { Icon } from "./icons.js";
import { Markdown } from "./markdown.js";
import { RequestCard } from "./request_card.js";
import { ToolCard } from "./tool_card.js";

/** @typedef {import("../rows.js").Row} Row */
/** @typedef {{agent: string, parent: string | null, isOver: boolean}} ExecutionInfo */
/**
 * @typedef {object} Props
 * @property {Row} row
 * @property {ExecutionInfo | undefined} execution
 * @property {boolean} isSelected
 * @property {(row: Row) => void} select
 * @property {(row: Row) => void} [fork]
 */

/** @param {Props} props */
export function ThreadRow({ row, execution, isSelected, select, fork }) {
  const { envelope } = row;
  const isChild = Boolean(execution?.parent);
  const names = ["row", row.kind, isChild && "child", isSelected && "selected"].filter(Boolean).join(" ");
  return html`<article class=${names} aria-label=${row.kind} data-seq=${envelope.seq}>
    <${Content} row=${row} execution=${execution} />
    <div class="row-side">
      ${isChild && html`<span class="lane-name">${execution?.agent}</span>`}
      <time datetime=${envelope.timestamp} title=${exactTime(envelope.timestamp)}>${clock(envelope.timestamp)}</time>
      <span class="row-actions">
        ${row.kind === "step" && fork && !isChild &&
        html`<button class="ghost" title="Fork after this step" aria-label="Fork after this step" onClick=${() => fork(row)}><${Icon} name="fork" size=${14} /></button>`}
        <button class="ghost" title="Inspect" aria-label="Inspect" aria-pressed=${isSelected} onClick=${() => select(row)}><${Icon} name="panel" size=${14} /></button>
      </span>
    </div>
  </article>`;
}

/** @param {{row: Row, execution: ExecutionInfo | undefined}} props */
function Content({ row, execution }) {
  const { payload } = row.envelope;
  switch (row.kind) {
    case "user":
      return html`<div class="bubble"><div class="value-text" dir="auto">${payload.content}</div>
        ${payload.attachments?.length > 0 && html`<${AttachmentList} attachments=${payload.attachments} />`}</div>`;
    case "assistant":
      return html`<div class="reply"><${Markdown} text=${payload.content ?? ""} /></div>`;
    case "failed":
      return html`<div class="reply failed-reply"><${Badge} tone="bad"><span class="dot"></span>failed<//> <span class="value-text" dir="auto">${payload.content}</span></div>`;
    case "request":
      return html`<${RequestRow} id=${payload.metadata.request_id} text=${payload.content} />`;
    case "call":
      return html`<${ToolCard} row=${row} isOver=${execution?.isOver ?? false} />`;
    case "step":
      return html`<${StepRow} row=${row} />`;
    default:
      return html`<p class="note-row"><code>${row.envelope.type}</code> <span dir="auto">${summary(row.envelope)}</span></p>`;
  }
}

/** @param {{id: string, text: string}} props */
function RequestRow({ id, text }) {
  const [request, setRequest] = useState(/** @type {import("../inbox.js").Request | null | undefined} */ (undefined));
  const inInbox = openRequests.value?.find((each) => each.id === id);
  // Read again when it leaves the inbox: it was decided, here or elsewhere.
  useEffect(() => {
    readRequest(id).then(setRequest, () => setRequest(null));
  }, [id, Boolean(inInbox)]);
  const shown = inInbox ?? request;
  if (!shown) return html`<p class="note-row" dir="auto">${text}</p>`;
  return html`<div class="card request-row"><${RequestCard} request=${shown} decided=${setRequest} /></div>`;
}

/** @param {{row: Row}} props */
function StepRow({ row }) {
  const { step_number, usage, duration_ms, cost_usd, errors } = row.envelope.payload;
  return html`<p class="step-line">
    Step ${step_number} · ${duration(duration_ms)}
    ${usage?.total > 0 && html` · ${plural(usage.total, "token")}`}
    ${cost_usd !== undefined && html` · ${usd(cost_usd)}`}
    ${errors > 0 && html` · <span class="error">${plural(errors, "error")}</span>`}
  </p>`;
}

/**
 * The text of a step, above its calls: what is being written, or what the model wrote beside its calls.
 * @param {{row: Row, draft: import("../stream_log.js").DraftText | undefined, execution: ExecutionInfo | undefined}} props
 */
export function TextRow({ row, draft, execution }) {
  const { execution_id, payload, timestamp } = row.envelope;
  const step = row.isStored ? stepOf(execution_id, payload.step_number).value : undefined;
  if (step === undefined && draft?.step_number === payload.step_number)
    return html`<${DraftRow} draft=${draft} execution=${execution} />`;
  const text = step?.messages.find((/** @type {any} */ each) => each.role === "assistant")?.content ?? "";
  if (!text.trim()) return null;
  return html`<article class=${execution?.parent ? "row text child" : "row text"} aria-label="text" data-seq=${row.envelope.seq}>
    <div class="reply"><${Markdown} text=${text} /></div>
    <div class="row-side">
      ${execution?.parent && html`<span class="lane-name">${execution.agent}</span>`}
      <time datetime=${timestamp} title=${exactTime(timestamp)}>${clock(timestamp)}</time>
    </div>
  </article>`;
}

/** The text that is being written. @param {{draft: import("../stream_log.js").DraftText, execution: ExecutionInfo | undefined}} props */
export function DraftRow({ draft, execution }) {
  // A text that begins like JSON is for a program: it is shown once it is stored.
  const isData = /^\s*[[{]/.test(draft.content);
  return html`<article class=${execution?.parent ? "row draft child" : "row draft"} aria-label="being written" aria-busy="true">
    <div class="reply">${isData ? html`<p class="quiet">Writing a result…</p>` : html`<${Markdown} text=${draft.content} />`}</div>
    <div class="row-side">${execution?.parent && html`<span class="lane-name">${execution.agent}</span>`}<span class="spinner"></span></div>
  </article>`;
}
