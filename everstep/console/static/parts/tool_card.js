/** A call of a tool: its name and what it did in one line, with arguments and result to unfold. */

import { sentence } from "../api.js";
import { duration } from "../format.js";
import { html, useEffect, useState } from "../lib.js";
import { findCall } from "../steps.js";
import { AttachmentList } from "./attachments.js";
import { Badge } from "./badge.js";
import { Icon } from "./icons.js";
import { Value } from "./values.js";

/** @typedef {import("../rows.js").Row} Row */

/** @param {{row: Row, isOver: boolean}} props `isOver`: its execution has ended */
export function ToolCard({ row, isOver }) {
  const { payload, execution_id } = row.envelope;
  const result = row.result?.payload;
  const [isOpen, setOpen] = useState(false);
  const [tone, word] = result ? (result.success ? ["ok", "done"] : ["bad", "failed"]) : isOver ? ["quiet", "given up"] : ["busy", "running"];
  return html`<div class="tool-card">
    <button class="tool-head" aria-expanded=${isOpen} onClick=${() => setOpen(!isOpen)}>
      <span class=${isOpen ? "turn open" : "turn"}><${Icon} name="chevron" size=${12} /></span>
      <${Icon} name="wrench" size=${14} />
      <strong>${payload.tool_name}</strong>
      <span class="clip quiet" dir="auto">${payload.args_summary}</span>
      <span class="tool-state">
        ${result?.duration_ms !== undefined && html`<span class="quiet">${duration(result.duration_ms)}</span>`}
        <${Badge} tone=${tone}><span class="dot"></span>${word}<//>
      </span>
    </button>
    ${result && !isOpen && (result.error || result.result_summary) &&
    html`<p class=${result?.success ? "tool-result quiet" : "tool-result error"} dir="auto">${result?.error ?? result?.result_summary}</p>`}
    ${result?.attachments?.length && html`<${AttachmentList} attachments=${result.attachments} />`}
    ${isOpen && html`<${CallDetail} execution=${execution_id} id=${payload.tool_call_id} isDone=${Boolean(result)} />`}
  </div>`;
}

/** @param {{execution: string, id: string, isDone: boolean}} props */
function CallDetail({ execution, id, isDone }) {
  const [found, setFound] = useState(/** @type {{call?: any, error?: string} | null} */ (null));
  useEffect(() => {
    findCall(execution, id).then(
      (call) => setFound(call ? { call } : { error: "The call is not recorded." }),
      (error) => setFound({ error: sentence(error) }),
    );
  }, [execution, id, isDone]);
  if (!found) return html`<p class="note" role="status">Loading the call…</p>`;
  if (!found.call) return html`<p class="error">${found.error}</p>`;
  return html`<${CallFacts} call=${found.call} />`;
}

/** Arguments, result, and who changed what. @param {{call: {[name: string]: any}}} props */
export function CallFacts({ call }) {
  return html`<div class="call-facts">
    <p class="small-title">Arguments</p>
    <${Value} value=${call.args} />
    ${call.requested_args && html`<p class="small-title">Arguments from the model</p><${Value} value=${call.requested_args} />`}
    ${call.error && html`<p class="small-title">Error</p><p class="error" dir="auto">${call.error.type ? `${call.error.type}: ` : ""}${call.error.message}</p>`}
    ${call.success && html`<p class="small-title">Result</p><${Value} value=${call.result ?? call.text} />`}
    ${call.progress && html`<p class="small-title">Progress</p><p>${call.progress.text}</p>`}
    ${call.attempts > 1 && html`<p class="note">${call.attempts} attempts.</p>`}
  </div>`;
}
