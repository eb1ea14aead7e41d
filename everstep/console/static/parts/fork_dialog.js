/** Fork: another execution that shares the conversation up to a step. It says which effects are not repeated. */

import { get, post, sentence } from "../api.js";
import { plural } from "../format.js";
import { html, useState } from "../lib.js";
import { useLoad } from "../load.js";
import { done, failed } from "../notices.js";
import { go } from "../router.js";
import { Badge } from "./badge.js";
import { Dialog } from "./dialog.js";
import { Loading } from "./page.js";

/** @param {string} execution @param {number} step @param {AbortSignal} signal */
async function readCalls(execution, step, signal) {
  const calls = [];
  let after = 0;
  for (;;) {
    const page = await get(`agent/executions/${execution}/steps`, { after, limit: 50 }, signal);
    for (const each of page.items) for (const call of each.calls) calls.push({ ...call, number: each.number });
    if (!page.next_cursor) break;
    after = Number(page.next_cursor);
  }
  return { shared: calls.filter((each) => each.number <= step), later: calls.filter((each) => each.number > step) };
}

/** @param {{execution: string, step: number, close: () => void}} props */
export function ForkDialog({ execution, step, close }) {
  const { data, error } = useLoad((signal) => readCalls(execution, step, signal), [execution, step]);
  const [content, setContent] = useState("");
  const [isBusy, setBusy] = useState(false);
  const fork = async () => {
    setBusy(true);
    try {
      const made = await post(`agent/executions/${execution}/fork`, { step, ...(content.trim() && { content }) });
      done(`Forked after step ${step}.`);
      close();
      go(made.session_id ? `sessions/${made.session_id}?execution=${made.id}` : `executions/${made.id}`);
    } catch (problem) {
      failed(sentence(problem));
      setBusy(false);
    }
  };
  return html`<${Dialog} title=${`Fork after step ${step}`} close=${close} wide>
    <p class="note">A new execution copies the conversation up to step ${step} and continues from there. The tool calls of the copied part are not repeated.</p>
    ${error && html`<p class="error">${error}</p>`}
    ${!data && !error && html`<${Loading} label="Loading the calls" />`}
    ${data && html`<${Calls} title="These effects stay, and are not repeated" calls=${data.shared} none="No tool was called up to this step." />
      <${Calls} title="These calls happened, but are not part of the fork" calls=${data.later} none="No tool was called after this step." />`}
    <form class="form" onSubmit=${(/** @type {Event} */ event) => (event.preventDefault(), void fork())}>
      <label class="field"><span>Replace the last message <span class="quiet">optional</span></span>
        <textarea rows="3" dir="auto" value=${content} onInput=${(/** @type {any} */ event) => setContent(event.currentTarget.value)}></textarea></label>
      <div class="buttons"><button class="primary" disabled=${isBusy}>Fork</button><button type="button" onClick=${close}>Cancel</button></div>
    </form>
  <//>`;
}

/** @param {{title: string, calls: any[], none: string}} props */
function Calls({ title, calls, none }) {
  return html`<section class="fork-calls"><h3>${title} ${calls.length > 0 && html`<span class="quiet">(${plural(calls.length, "call")})</span>`}</h3>
    ${calls.length === 0 && html`<p class="note">${none}</p>`}
    <ul>${calls.slice(0, 50).map((call) => html`<li><span class="quiet">Step ${call.number}</span> <strong>${call.tool}</strong>
      <span class="clip quiet" dir="auto">${Object.entries(call.args).map(([name, value]) => `${name}: ${typeof value === "string" ? value : JSON.stringify(value)}`).join(", ")}</span>
      <${Badge} tone=${call.success ? "ok" : call.success === false ? "bad" : "quiet"}>${call.success ? "done" : call.success === false ? "failed" : call.state}<//></li>`)}</ul>
  </section>`;
}
