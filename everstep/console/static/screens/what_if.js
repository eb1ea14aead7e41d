/** What another policy would have changed in past executions, without asking a model. */

import { post, sentence } from "../api.js";
import { compact, count, duration, plural, usd } from "../format.js";
import { html, useEffect, useState } from "../lib.js";
import { Badge } from "../parts/badge.js";
import { DraftInput } from "../parts/draft_input.js";
import { ExportDialog } from "../parts/export_dialog.js";
import { Empty, Failure, Page } from "../parts/page.js";
import { policyChange, PolicyForm } from "../parts/policy_form.js";
import { Table } from "../parts/table.js";
import { href, query, setQuery } from "../router.js";
import { rights } from "../sign_in.js";

export const title = "What-if";

const SOON = 250;
const LAST = [50, 200, 1000];

/** @param {{[name: string]: unknown}} change @param {{[name: string]: unknown}} wanted */
function useWhatIf(change, wanted) {
  const [state, setState] = useState(/** @type {{data?: any, error?: string, isBusy: boolean}} */ ({ isBusy: false }));
  const body = JSON.stringify({ ...change, ...wanted });
  useEffect(() => {
    if (Object.keys(change).length === 0) {
      setState({ isBusy: false });
      return undefined;
    }
    let isOver = false;
    setState((before) => ({ ...before, isBusy: true }));
    // A slider moves through many values: only the one at which it rests is asked for.
    const soon = setTimeout(() => {
      post("agent/what-if", JSON.parse(body)).then(
        (data) => !isOver && setState({ data, isBusy: false }),
        (error) => !isOver && setState({ error: sentence(error), isBusy: false }),
      );
    }, SOON);
    return () => {
      isOver = true;
      clearTimeout(soon);
    };
  }, [body]);
  return state;
}

export default function WhatIf() {
  const limit = Number(query.value.get("last") ?? 200);
  const execution = query.value.get("execution");
  const agent = query.value.get("agent");
  const wanted = execution ? { execution_id: execution } : { limit, ...(agent && { agent }) };
  const { data, error, isBusy } = useWhatIf(policyChange(), wanted);
  const [exported, setExported] = useState(/** @type {string | null} */ (null));
  return html`<${Page} title="What-if" note="How past executions would have ended under another policy. Their recorded decisions are repeated; no model is called, and nothing is changed.">
    <section class="panel card sliders">
      <${PolicyForm} />
      ${execution
        ? html`<p class="one-execution">Over the execution <a href=${href(`executions/${execution}`)}><code>${execution.slice(0, 8)}</code></a>
            <button class="link" onClick=${() => setQuery({ execution: null })}>Examine all executions</button></p>`
        : html`<div class="field-row"><label class="field"><span>Over the last</span><select onChange=${(/** @type {any} */ event) => setQuery({ last: event.currentTarget.value })}>
            ${LAST.map((each) => html`<option value=${each} selected=${each === limit}>${each} executions</option>`)}</select></label>
          <label class="field"><span>Agent</span><${DraftInput} placeholder="any" value=${agent ?? ""} commit=${(/** @type {string} */ name) => setQuery({ agent: name })} /></label></div>`}
    </section>
    ${error && html`<${Failure} error=${error} />`}
    ${!data && !error && html`<${Empty} icon="sliders" title=${isBusy ? "Repeating the decisions…" : "Change a limit"}>${execution ? "The result shows whether this execution would have ended differently, and after which step." : "The result shows which executions would have ended differently, and what that saves."}<//>`}
    ${data && html`<div aria-busy=${isBusy}><${Result} data=${data} isOne=${Boolean(execution)} save=${rights.value.seesAll && setExported} /></div>`}
    ${exported && html`<${ExportDialog} execution=${exported} close=${() => setExported(null)} />`}
  <//>`;
}

/** @param {any} data @param {boolean} isOne */
function headline(data, isOne) {
  if (data.examined === 0) return isOne ? "The execution does not exist, or you may not see it." : "No executions match.";
  if (isOne && data.undetermined > 0) return "The record does not say how this execution would have ended.";
  if (isOne) return data.differing ? "This execution would have ended differently." : "This execution would have ended as it did.";
  const known = data.examined - data.undetermined;
  if (known === 0) return `The records of these ${plural(data.examined, "execution")} do not say how they would have ended.`;
  if (data.differing === 0) return known === data.examined ? `All ${count(known)} examined executions would have ended as they did.` : `${plural(known, "execution")} would have ended as they did; for ${count(data.undetermined)} others, the records do not say.`;
  return `${plural(data.differing, "execution")} of ${count(data.examined)} would have ended differently: ${count(data.ended_earlier)} earlier, ${count(data.ended_later)} later.`;
}

/** @param {{data: any, isOne: boolean, save: false | ((id: string) => void)}} props */
function Result({ data, isOne, save }) {
  return html`<section class="panel"><p class="because-end">${headline(data, isOne)}</p>
      <dl class="totals"><div><dt>Tokens saved</dt><dd>${compact(data.tokens_saved)}</dd></div><div><dt>Cost saved</dt><dd>${usd(data.cost_saved)}</dd></div>
        <div><dt title="Time in which models and tools were at work">Working time saved</dt><dd>${duration(data.seconds_saved * 1000)}</dd></div>
        ${!isOne && html`<div><dt title="The record does not say how these would have ended">Cannot be determined</dt><dd>${count(data.undetermined)}</dd></div>`}</dl>
      ${Object.entries(data.reasons).map(([reason, many]) => html`<p class="note">${isOne ? "" : `${count(many)}: `}${reason}.</p>`)}</section>
    ${data.executions.length > 0 &&
    html`<${Table} label="Executions that would differ"><thead><tr><th>Execution</th><th>Agent</th><th>Ends</th><th>Diverges after</th><th>Because</th><th class="number">Tokens saved</th>${save && html`<th><span class="hidden-text">Save</span></th>`}</tr></thead>
      <tbody>${data.executions.map((/** @type {any} */ each) => html`<tr key=${each.id}><td><a href=${href(`executions/${each.id}${each.parts_at_step ? `?step=${each.parts_at_step}` : ""}`)}><code>${each.id.slice(0, 8)}</code></a></td><td>${each.agent}</td>
        <td><${Badge} tone=${each.verdict === "earlier" ? "warn" : "busy"}>${each.verdict === "otherwise" ? "differently" : each.verdict}<//></td><td class="nowrap">step ${each.parts_at_step}</td><td>${each.because}${each.note && html` <span class="quiet">${each.note}</span>`}</td><td class="number">${compact(each.tokens_saved)}</td>
        ${save && html`<td><button onClick=${() => save(each.id)}>Save as test…</button></td>`}</tr>`)}</tbody><//>`}`;
}
