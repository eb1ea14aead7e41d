/** Two executions side by side: what differs in their settings, and step by step. */

import { get } from "../api.js";
import { compact, duration, plural, usd } from "../format.js";
import { html, useState } from "../lib.js";
import { useLoad } from "../load.js";
import { Badge, Status } from "../parts/badge.js";
import { Failure, Loading, Page } from "../parts/page.js";
import { Table } from "../parts/table.js";
import { Value } from "../parts/values.js";
import { go, href } from "../router.js";

export const title = "Compare";

/** @param {{params: {id?: string, other?: string}}} props */
export default function Compare({ params: { id = "", other = "" } }) {
  const [one, setOne] = useState(id);
  const [two, setTwo] = useState(other);
  const submit = (/** @type {Event} */ event) => {
    event.preventDefault();
    if (one.trim() && two.trim()) go(`compare/${one.trim()}/${two.trim()}`);
  };
  const field = (/** @type {string} */ label, /** @type {string} */ value, /** @type {(text: string) => void} */ set) =>
    html`<label class="field"><span>${label}</span><input class="mono" size="38" spellcheck=${false} value=${value} onInput=${(/** @type {any} */ event) => set(event.currentTarget.value)} /></label>`;
  return html`<${Page} title="Compare" note="Enter the ids of two executions." wide>
    <form class="filters compare-form" onSubmit=${submit}>${field("Execution", one, setOne)}${field("Compared with", two, setTwo)}<button class="primary" disabled=${!one.trim() || !two.trim()}>Compare</button></form>
    ${id && other && html`<${Comparison} id=${id} other=${other} />`}
  <//>`;
}

/** @param {{id: string, other: string}} props */
function Comparison({ id, other }) {
  const { data, error, reload } = useLoad((signal) => get(`agent/executions/${encodeURIComponent(id)}/diff/${encodeURIComponent(other)}`, {}, signal), [id, other]);
  if (error) return html`<${Failure} error=${error} retry=${reload} />`;
  if (!data) return html`<${Loading} />`;
  const { a, b } = data.executions;
  const row = (/** @type {string} */ label, /** @type {(side: any) => any} */ show) => html`<tr><td class="quiet">${label}</td><td>${show(a)}</td><td>${show(b)}</td></tr>`;
  return html`
    <section class="panel"><p class="because-end">${data.differing_steps === 0 ? "No step differs." : `${plural(data.differing_steps, "step")} differ${data.differing_steps === 1 ? "s" : ""}.`} ${data.shared_steps > 0 ? `${plural(data.shared_steps, "step")} before the fork ${data.shared_steps === 1 ? "is" : "are"} the same in both.` : ""}</p>
      ${data.notes.map((/** @type {string} */ note) => html`<p class="note">${note}</p>`)}</section>
    <section class="panel"><${Table} label="The two executions"><thead><tr><th><span class="hidden-text">What</span></th><th><a href=${href(`executions/${a.id}`)}><code>${a.id.slice(0, 8)}</code></a></th><th><a href=${href(`executions/${b.id}`)}><code>${b.id.slice(0, 8)}</code></a></th></tr></thead>
      <tbody>${row("agent", (side) => side.agent)}${row("status", (side) => html`<${Status} status=${side.status} reason=${side.stop_reason} />`)}${row("models", (side) => side.models.join(", "))}
      ${row("steps", (side) => side.steps)}${row("tokens", (side) => compact(side.tokens))}${row("cost", (side) => usd(side.cost_usd))}${row("working time", (side) => duration(side.seconds * 1000))}</tbody><//></section>
    ${data.settings.length > 0 && html`<section class="panel"><h2>Settings that differ</h2><${Differences} items=${data.settings} /></section>`}
    <section class="panel"><h2>Steps</h2><ol class="stack">${data.steps.map((/** @type {any} */ step) => html`<${StepPair} step=${step} />`)}</ol></section>`;
}

/** @param {{items: {path: string, a?: any, b?: any}[]}} props */
function Differences({ items }) {
  return html`<dl class="values diff">${items.map((each) => html`<div><dt>${each.path}</dt><dd>
    ${"a" in each && html`<del><${Value} value=${each.a} /></del>`}${"b" in each && html`<ins><${Value} value=${each.b} /></ins>`}</dd></div>`)}</dl>`;
}

/** @param {{step: any}} props */
function StepPair({ step }) {
  const word = step.shared ? "before the fork" : step.a === null ? "only in the second" : step.b === null ? "only in the first" : step.same ? "the same" : "differs";
  return html`<li class="card tool-detail"><details open=${!step.same && !step.shared}>
    <summary><strong>Step ${step.a ?? step.b}</strong> <${Badge} tone=${step.same ? "quiet" : "warn"}>${word}<//> <span class="quiet">${step.calls.map((/** @type {any} */ call) => call.tool.a ?? call.tool.b).join(", ")}</span></summary>
    ${step.text && html`<${Sides} label="Text" sides=${step.text} />`}
    ${step.error && html`<${Sides} label="Error" sides=${step.error} />`}
    ${step.calls.filter((/** @type {any} */ call) => !call.same).map((/** @type {any} */ call) => html`<div><p class="small-title">${call.tool.a ?? "no call"}${call.tool.a !== call.tool.b ? ` → ${call.tool.b ?? "no call"}` : ""}</p>
      <${Differences} items=${call.args} />${call.result && html`<${Sides} label="Result" sides=${call.result} />`}</div>`)}
    ${step.votes.map((/** @type {any} */ vote) => html`<${Sides} label=${vote.criterion} sides=${vote} />`)}
  </details></li>`;
}

/** @param {{label: string, sides: {a: any, b: any}}} props */
function Sides({ label, sides }) {
  return html`<${Differences} items=${[{ path: label, ...(sides.a !== null && { a: sides.a }), ...(sides.b !== null && { b: sides.b }) }]} />`;
}
