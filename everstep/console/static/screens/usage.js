/** Cost, tokens, executions and latency over time, and by agent, model, user or tenant; and budgets. */

import { get } from "../api.js";
import { compact, count, duration, usd } from "../format.js";
import { html } from "../lib.js";
import { useLoad } from "../load.js";
import { Empty, Failure, Loading, Page } from "../parts/page.js";
import { Table } from "../parts/table.js";
import { query, setQuery } from "../router.js";
import { signIn } from "../sign_in.js";

export const title = "Usage";

/** @typedef {{p50: number, p95: number} | null | undefined} Percentiles */

const GROUPS = { agent: "Agent", model: "Model", user: "User", day: "Day", tenant: "Tenant" };
const DAYS = [1, 7, 30, 90];
/** @type {Record<string, [string, (group: any) => number, (value: number) => string]>} */
const MEASURES = {
  cost: ["Cost", (group) => group.known_cost_usd, usd],
  tokens: ["Tokens", (group) => group.total, compact],
  executions: ["Executions", (group) => group.executions, count],
  failed: ["Failed", (group) => group.failed, count],
  first: ["Time to first text, p95", (group) => group.latency?.first_text_ms?.p95 ?? 0, duration],
  step: ["Duration of steps, p95", (group) => group.latency?.step_ms?.p95 ?? 0, duration],
};

/** @param {number} days @param {string} group @param {AbortSignal} signal */
async function read(days, group, signal) {
  const since = new Date(Date.now() - days * 86_400_000).toISOString();
  const [table, time, budgets] = await Promise.all([
    get("agent/usage", { since, group_by: group, latency: true }, signal),
    get("agent/usage", { since, group_by: "day", latency: true }, signal),
    get("agent/budgets", {}, signal),
  ]);
  return { table, budgets: budgets.items, time: [...time.groups].sort((one, other) => String(one.name).localeCompare(String(other.name))) };
}

export default function Usage() {
  const days = Number(query.value.get("days") ?? 30);
  const group = query.value.get("by") ?? "agent";
  const measure = query.value.get("measure") ?? "cost";
  const { data, error, reload } = useLoad((signal) => read(days, group, signal), [days, group], { every: 30_000 });
  const [label, valueOf, format] = MEASURES[measure] ?? MEASURES.cost;
  return html`<${Page} title="Usage">
    <div class="filters">
      <select aria-label="Time" onChange=${(/** @type {any} */ event) => setQuery({ days: event.currentTarget.value })}>
        ${DAYS.map((each) => html`<option value=${each} selected=${each === days}>Last ${each === 1 ? "day" : `${each} days`}</option>`)}</select>
      <select aria-label="Group" onChange=${(/** @type {any} */ event) => setQuery({ by: event.currentTarget.value })}>
        ${Object.entries(GROUPS).filter(([name]) => name !== "tenant" || signIn.value?.scopes.includes("admin")).map(([name, each]) => html`<option value=${name} selected=${name === group}>By ${each.toLowerCase()}</option>`)}</select>
      <select aria-label="Measure" onChange=${(/** @type {any} */ event) => setQuery({ measure: event.currentTarget.value })}>
        ${Object.entries(MEASURES).map(([name, [each]]) => html`<option value=${name} selected=${name === measure}>${each}</option>`)}</select>
    </div>
    ${error && html`<${Failure} error=${error} retry=${reload} />`}
    ${!data && !error && html`<${Loading} />`}
    ${data && data.table.groups.length === 0 && html`<${Empty} icon="chart" title="No usage">No execution started in this period.<//>`}
    ${data && data.table.groups.length > 0 &&
    html`<dl class="totals">
        <div><dt>Cost${data.table.cost_usd === null ? ", where known" : ""}</dt><dd>${usd(data.table.known_cost_usd)}</dd></div>
        <div><dt>Tokens</dt><dd>${compact(data.table.total_tokens)}</dd></div>
        <div><dt>Executions</dt><dd>${count(data.time.reduce((sum, each) => sum + each.executions, 0))}</dd></div>
        <div><dt>Failed</dt><dd>${count(data.time.reduce((sum, each) => sum + each.failed, 0))}</dd></div>
        <div><dt>First text, p50</dt><dd>${duration(data.table.latency.first_text_ms?.p50 ?? NaN) || "–"}</dd></div>
        <div><dt>Step, p50</dt><dd>${duration(data.table.latency.step_ms?.p50 ?? NaN) || "–"}</dd></div>
      </dl>
      <${Bars} label=${`${label} by day`} groups=${data.time} valueOf=${valueOf} format=${format} />
      <${Table} label=${`Usage by ${group}`}>
        <thead><tr><th>${GROUPS[/** @type {keyof typeof GROUPS} */ (group)]}</th><th class="number">Executions</th><th class="number">Failed</th><th class="number">Steps</th>
          <th class="number">Input</th><th class="number">Output</th><th class="number">Cached</th><th class="number">Cost</th>
          <th class="number" title="From the request to the model until its first text: half of the steps, and 95 of 100">First text, p50 / p95</th>
          <th class="number" title="Steps that did not wait for people, with their calls: half of them, and 95 of 100">Step, p50 / p95</th></tr></thead>
        <tbody>${data.table.groups.map(
          (/** @type {any} */ each) => html`<tr key=${each.name}><td>${each.name ?? "unnamed"}</td><td class="number">${count(each.executions)}</td><td class="number">${count(each.failed)}</td>
            <td class="number">${count(each.steps)}</td><td class="number">${compact(each.input)}</td><td class="number">${compact(each.output)}</td><td class="number">${compact(each.cached)}</td>
            <td class="number">${usd(each.cost_usd ?? each.known_cost_usd)}${each.cost_usd === null && "+"}</td>
            <td class="number">${both(each.latency?.first_text_ms)}</td><td class="number">${both(each.latency?.step_ms)}</td></tr>`,
        )}</tbody>
      <//>`}
    ${data && data.budgets.length > 0 && html`<${Budgets} budgets=${data.budgets} />`}
  <//>`;
}

/** @param {Percentiles} times */
function both(times) {
  return times ? `${duration(times.p50)} / ${duration(times.p95)}` : "";
}

/** The budgets of the tenant and of users, the fullest first. @param {{budgets: any[]}} props */
function Budgets({ budgets }) {
  const part = (/** @type {any} */ each) => (each.limit > 0 ? each.spent / each.limit : 1);
  const amount = (/** @type {any} */ each, /** @type {number} */ value) => (each.unit === "usd" ? usd(value) : compact(value));
  return html`<section class="panel budgets"><h2>Budgets</h2>
    <${Table} label="Budgets">
      <thead><tr><th>Of</th><th>Unit</th><th class="number">Spent</th><th class="number" title="What model calls under way may still use">Reserved</th><th class="number">Limit</th><th>Used</th><th>When it is used up</th></tr></thead>
      <tbody>${[...budgets].sort((one, other) => part(other) - part(one)).map(
        (each) => html`<tr key=${`${each.user_id} ${each.unit}`}><td class="clip">${each.user_id ?? "all users"}</td><td>${each.unit}</td><td class="number">${amount(each, each.spent)}</td>
          <td class="number">${amount(each, each.reserved)}</td><td class="number">${amount(each, each.limit)}</td>
          <td class="nowrap"><meter min="0" max="1" high="0.9" value=${Math.min(1, part(each))} aria-label=${`Used of the budget of ${each.user_id ?? "all users"}`}></meter> ${Math.round(part(each) * 100)} %</td>
          <td>${each.on_exhausted}</td></tr>`)}</tbody>
    <//></section>`;
}

/** @param {{label: string, groups: any[], valueOf: (group: any) => number, format: (value: number) => string}} props */
function Bars({ label, groups, valueOf, format }) {
  const most = Math.max(...groups.map(valueOf));
  if (!(most > 0)) return html`<p class="note bars">${label}: none.</p>`;
  return html`<figure class="bars card" aria-label=${label}>
    <figcaption class="note">${label}, at most ${format(most)}</figcaption>
    <div class="bar-row">${groups.map(
      (each) => html`<div class="bar-slot" key=${each.name} title=${`${each.name}: ${format(valueOf(each))}`}><span style=${{ height: `${(valueOf(each) / most) * 100}%` }}></span></div>`,
    )}</div>
    <div class="bar-ends quiet"><span>${groups[0]?.name}</span><span>${groups.length > 1 ? groups.at(-1)?.name : ""}</span></div>
  </figure>`;
}
