/** What the model read in a step: its instructions, the conversation page by page, and the tools that it could call. */

import { get } from "../api.js";
import { count } from "../format.js";
import { html, useState } from "../lib.js";
import { useLoad } from "../load.js";
import { Badge } from "./badge.js";
import { Failure, Loading } from "./page.js";
import { LongText, Value } from "./values.js";

const PAGE = 50;

/** @param {string} execution @param {number} step @param {number} limit */
const usePrompt = (execution, step, limit) =>
  useLoad((signal) => get(`agent/executions/${execution}/steps/${step}/prompt`, { limit }, signal), [execution, step, limit]);

/** @param {{execution: string, step: number}} props */
export function PromptMessages({ execution, step }) {
  const { data, error, reload } = usePrompt(execution, step, PAGE);
  const [earlier, setEarlier] = useState(/** @type {any[]} */ ([]));
  const [failure, setFailure] = useState(/** @type {Error | null} */ (null));
  if (error) return html`<${Failure} error=${error} retry=${reload} />`;
  if (!data) return html`<${Loading} />`;
  const pages = [...earlier, data];
  const first = pages[0].first;
  const showEarlier = () =>
    get(`agent/executions/${execution}/steps/${step}/prompt`, { limit: 200, before: first }).then(
      (page) => {
        setFailure(null);
        setEarlier([page, ...earlier]);
      },
      setFailure,
    );
  return html`<div class="stack">
    <p class="note">What the model read in step ${step}: ${count(data.total)} ${data.total === 1 ? "message" : "messages"} of the conversation${data.compaction && `, the beginning as ${data.compaction.summary ? "a summary" : "shortened results"}`}.${!data.is_current && " The agent has been changed since then."}</p>
    ${data.instructions?.length > 0 && html`<details><summary>Instructions</summary>
      ${data.instructions.map((/** @type {string} */ each) => html`<div class="sent"><${Badge}>system<//><${LongText} text=${each} /></div>`)}
    </details>`}
    ${data.response_format && html`<details><summary>Form of the result</summary><${Value} value=${data.response_format} /></details>`}
    ${failure && html`<${Failure} error=${failure} retry=${showEarlier} />`}
    ${first > 0 && html`<button class="link" onClick=${showEarlier}>Show earlier messages (${count(first)})</button>`}
    ${pages.flatMap((page) =>
      page.messages.map((/** @type {any} */ message, /** @type {number} */ at) => html`<${SentMessage} key=${page.first + at} message=${message} />`),
    )}
  </div>`;
}

/** A message as the model reads it. @param {{message: any}} props */
export function SentMessage({ message }) {
  const calls = message.metadata?.tool_calls ?? [];
  return html`<div class="sent"><${Badge}>${message.role}<//>
    ${message.content && html`<${Value} value=${message.content} />`}
    ${calls.map((/** @type {any} */ call) => html`<details><summary>calls <strong>${call.function.name}</strong></summary><${Value} value=${argsOf(call)} /></details>`)}
  </div>`;
}

/** @param {any} call */
function argsOf(call) {
  try {
    return JSON.parse(call.function.arguments);
  } catch {
    return call.function.arguments;
  }
}

/** @param {{execution: string, step: number}} props */
export function PromptTools({ execution, step }) {
  const { data, error, reload } = usePrompt(execution, step, 1);
  if (error) return html`<${Failure} error=${error} retry=${reload} />`;
  if (!data) return html`<${Loading} />`;
  return html`<div class="stack">
    <p class="note">${data.tools.length === 0 ? "The model could call no tools." : `What the model could call in step ${step}:`}</p>
    ${data.tools.map((/** @type {any} */ tool) => html`<details key=${tool.name}>
      <summary><code>${tool.name}</code></summary>
      ${tool.description && html`<p><${LongText} text=${tool.description} /></p>`}
      <${Value} value=${tool.schema.properties ?? {}} />
    </details>`)}
  </div>`;
}
