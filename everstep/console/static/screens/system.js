/** The state of the installation: checks, workers, gateways, queues, repairs and retention. */

import { get, Problem } from "../api.js";
import { count, duration, plural } from "../format.js";
import { html } from "../lib.js";
import { useLoad } from "../load.js";
import { Badge } from "../parts/badge.js";
import { Failure, Loading, Page } from "../parts/page.js";
import { Table } from "../parts/table.js";
import { Ago } from "../parts/time.js";
import { API } from "../places.js";
import { rights } from "../sign_in.js";

export const title = "System";

/** Whether each part can be used, also if some cannot: the answer has the status 503 then. @param {AbortSignal} signal */
async function readParts(signal) {
  const response = await fetch(new URL("readyz", API), { signal, cache: "no-store" });
  const document = await response.json();
  if (!Array.isArray(document.checks)) throw new Problem(response.status, document.title, document.detail);
  return document;
}

export default function System() {
  const parts = useLoad(readParts, [], { every: 5000 });
  const gateway = useLoad((signal) => get("agent/gateway", {}, signal), []);
  return html`<${Page} title="System">
    ${parts.error && html`<${Failure} error=${parts.error} retry=${parts.reload} />`}
    ${!parts.data && !parts.error && html`<${Loading} />`}
    ${parts.data && html`<section class="panel"><${Parts} checks=${parts.data.checks} gateway=${gateway} /></section>`}
    ${rights.value.seesInstallation
      ? html`<${Checks} /><${Installation} />`
      : html`<p class="note">Workers, queues and settings are shown to people with the scope <code>admin</code>.</p>`}
  <//>`;
}

/** @param {{checks: any[], gateway: import("../load.js").Loaded<any>}} props */
function Parts({ checks, gateway }) {
  return html`<${Table} label="Parts">
    <thead><tr><th>Part</th><th>State</th><th>What to do</th></tr></thead>
    <tbody>
      ${checks.map(
        (/** @type {any} */ check) => html`<tr key=${check.name}>
          <td>${check.name}</td>
          <td><${Badge} tone=${check.ok ? "ok" : "bad"}>${check.ok ? "works" : "does not work"}<//></td>
          <td>${check.ok ? "" : check.detail}</td>
        </tr>`,
      )}
      <tr>
        <td>gateway <span class="quiet">streams live events</span></td>
        <td><${Badge} tone=${gateway.data ? "ok" : gateway.error ? "warn" : "quiet"}>${gateway.data ? "works" : gateway.error ? "none" : "…"}<//></td>
        <td>${gateway.data ? html`<code>${gateway.data.url}</code>` : gateway.error}</td>
      </tr>
    </tbody>
  <//>`;
}

function Installation() {
  const { data, error, reload } = useLoad((signal) => get("agent/system", {}, signal), [], { every: 5000 });
  if (error && !data) return html`<${Failure} error=${error} retry=${reload} />`;
  if (!data) return html`<${Loading} />`;
  return html`
    ${data.unavailable.length > 0 && html`<p class="error" role="alert">No answer from ${data.unavailable.join(", ")}. What they would report is missing here.</p>`}
    <section class="panel"><h2>Workers</h2><p class="note">Processes that run the steps of executions. A slot is one task at a time.</p><${Workers} workers=${data.workers} /></section>
    <section class="panel"><h2>Queues</h2><${Queues} data=${data} /></section>
    <section class="panel"><h2>Gateways</h2><p class="note">Processes that pass live events on to viewers. API processes do it as well, for server-sent events.</p><${Gateways} gateways=${data.gateways} /></section>
    <section class="panel"><h2>Repairs</h2><${Repairs} data=${data} /></section>
    <section class="panel"><h2>Retention</h2><p class="note"><code>everstep prune</code> removes what is older.</p><${Retention} retention=${data.retention} /></section>
    <p class="note">Everstep ${data.version}${data.temporal_version && `, Temporal ${data.temporal_version}`}, namespace <code>${data.namespace}</code>, task queue <code>${data.task_queue}</code></p>`;
}

/** @param {{seen: {is_lost: boolean, seen_at: string}}} props */
function Seen({ seen }) {
  return html`<${Badge} tone=${seen.is_lost ? "bad" : "ok"}>${seen.is_lost ? "silent" : "works"}<//> <span class="quiet">seen <${Ago} at=${seen.seen_at} /></span>`;
}

/** @param {{slots: {used: number, total: number} | null, label: string}} props */
function Slots({ slots, label }) {
  if (!slots) return html`<span class="quiet" title="Workers report them every few seconds, if the Temporal server collects reports">not reported</span>`;
  return html`<span class="slots"><meter min="0" max=${slots.total || 1} value=${slots.used} aria-label=${label}></meter> ${count(slots.used)} of ${count(slots.total)}</span>`;
}

/** @param {{workers: any[]}} props */
function Workers({ workers }) {
  if (workers.length === 0) return html`<p>No worker runs. Start one with <code>everstep worker</code>.</p>`;
  return html`<${Table} label="Workers">
    <thead><tr><th>Worker</th><th>State</th><th>Version</th><th>Workflow slots</th><th>Activity slots</th><th class="number">Executions in memory</th><th>Started</th></tr></thead>
    <tbody>${workers.map(
      (worker) => html`<tr key=${worker.identity}>
        <td><code>${worker.identity}</code></td>
        <td class="nowrap"><${Seen} seen=${worker} /></td>
        <td>${worker.version ?? "unknown"}</td>
        <td class="nowrap"><${Slots} slots=${worker.workflow_slots} label=${`Used workflow slots of ${worker.identity}`} /></td>
        <td class="nowrap"><${Slots} slots=${worker.activity_slots} label=${`Used activity slots of ${worker.identity}`} /></td>
        <td class="number">${count(worker.cached_workflows)}</td>
        <td class="nowrap">${worker.started_at && html`<${Ago} at=${worker.started_at} />`}</td>
      </tr>`,
    )}</tbody>
  <//>`;
}

const STATUSES = /** @type {Record<string, string>} */ ({ pending: "queued", running: "running", paused: "waiting for people" });

/** @param {{data: any}} props */
function Queues({ data }) {
  return html`<dl class="totals">
      ${data.executions.map((/** @type {any} */ each) => html`<div><dt>Executions ${STATUSES[each.status] ?? each.status}</dt><dd>${count(each.count)}</dd><dd class="note">oldest <${Ago} at=${each.oldest_at} /></dd></div>`)}
      ${data.executions.length === 0 && html`<div><dt>Executions that have not ended</dt><dd>0</dd></div>`}
      ${data.undelivered > 0 && html`<div><dt>Commands of people on their way</dt><dd>${count(data.undelivered)}</dd></div>`}
    </dl>
    <${Table} label="Queues">
      <thead><tr><th>Tasks</th><th class="number">Waiting</th><th class="number">Oldest</th><th class="number">Added per second</th><th class="number">Started per second</th></tr></thead>
      <tbody>${data.queues.map(
        (/** @type {any} */ queue) => html`<tr key=${queue.kind}>
          <td>${queue.kind === "workflow" ? "decisions (workflow tasks)" : "model and tool calls (activities)"}</td>
          <td class="number">${count(queue.waiting)}</td>
          <td class="number">${queue.waiting > 0 ? duration(queue.oldest_seconds * 1000) : ""}</td>
          <td class="number">${queue.added_per_second.toFixed(1)}</td>
          <td class="number">${queue.started_per_second.toFixed(1)}</td>
        </tr>`,
      )}</tbody>
    <//>`;
}

/** @param {{gateways: any[]}} props */
function Gateways({ gateways }) {
  if (gateways.length === 0) return html`<p>No gateway runs. Start one with <code>everstep gateway</code>; without one, pages show what is stored.</p>`;
  return html`<${Table} label="Gateways">
    <thead><tr><th>Gateway</th><th>State</th><th>Id</th></tr></thead>
    <tbody>${gateways.map(
      (gateway) => html`<tr key=${gateway.id}><td><code>${gateway.url}</code></td><td class="nowrap"><${Seen} seen=${gateway} /></td><td><code>${gateway.id.slice(0, 8)}</code></td></tr>`,
    )}</tbody>
  <//>`;
}

const REPAIRS = /** @type {Record<string, [string, string]>} */ ({
  launched: ["execution started", "accepted, but their workflows had not been started"],
  released: ["session continued", "a queued message had been left waiting"],
  closed: ["execution closed", "their workflows had ended without recording it"],
  delivered: ["command delivered", "stored, but not delivered to the execution"],
  handed_over: ["session with messages handed over", "an execution had ended before it read them"],
  charged: ["title charged", "model calls whose process was lost"],
});

/** @param {{data: any}} props */
function Repairs({ data }) {
  const made = Object.entries(data.repairs).filter(([, many]) => many > 0);
  return html`<p class="note">What lost processes left behind, repaired by this API process since it started${data.repaired_at && html`; it looked last <${Ago} at=${data.repaired_at} />`}.</p>
    ${made.length === 0
      ? html`<p>Nothing had to be repaired.</p>`
      : html`<ul>${made.map(([kind, many]) => html`<li>${plural(many, REPAIRS[kind]?.[0] ?? kind)} <span class="quiet">${REPAIRS[kind]?.[1]}</span></li>`)}</ul>`}`;
}

const KEPT = /** @type {Record<string, string>} */ ({
  keep_sessions_days: "Sessions without a change",
  keep_executions_days: "Executions without a session",
  keep_envelopes_days: "Stored events for viewers",
  keep_answers_days: "Answers to repeated requests",
  keep_deliveries_days: "Deliveries to webhooks",
  keep_uploads_days: "Uploaded files that no message uses",
});

/** @param {{retention: {setting: string, days: number | null}[]}} props */
function Retention({ retention }) {
  return html`<${Table} label="Retention">
    <thead><tr><th>Data</th><th>Kept</th><th>Setting</th></tr></thead>
    <tbody>${retention.map(
      ({ setting, days }) => html`<tr key=${setting}><td>${KEPT[setting] ?? setting}</td><td>${days === null ? "always" : plural(days, "day")}</td><td><code>${setting}</code></td></tr>`,
    )}</tbody>
  <//>`;
}

function Checks() {
  const { data, error, isLoading, reload } = useLoad((signal) => get("agent/system/checks", {}, signal), []);
  return html`<section class="panel"><h2>Checks</h2>
    <p class="note">What <code>everstep doctor</code> finds from the machine of this API${data && html`, checked <${Ago} at=${data.checked_at} />`}. Commands of agents are checked on a worker's machine only. <button class="link" onClick=${reload}>Check again</button></p>
    ${error && html`<${Failure} error=${error} retry=${reload} />`}
    ${isLoading && html`<${Loading} label="Checking" />`}
    ${data && html`<ul class="findings">${data.findings.map((/** @type {any} */ each) => html`<li><${Badge} tone=${each.ok ? "ok" : "bad"}>${each.ok ? "good" : "wrong"}<//> <span>${each.text}</span></li>`)}</ul>`}
  </section>`;
}
