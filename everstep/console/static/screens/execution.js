/** An execution: why it ended or waits, its steps over time, its subagents and its ledger, with the inspector beside. */

import { get, post, Problem, sentence } from "../api.js";
import { between, count, duration, exactTime, plural, totalTokens, usd } from "../format.js";
import { html, useState } from "../lib.js";
import { useLoad } from "../load.js";
import { done, failed } from "../notices.js";
import { Badge, Status } from "../parts/badge.js";
import { ExportDialog } from "../parts/export_dialog.js";
import { ForkDialog } from "../parts/fork_dialog.js";
import { Inspector } from "../parts/inspector.js";
import { Markdown } from "../parts/markdown.js";
import { Failure, Loading, Page } from "../parts/page.js";
import { RequestCard } from "../parts/request_card.js";
import { Took } from "../parts/time.js";
import { Value } from "../parts/values.js";
import { Waterfall } from "../parts/waterfall.js";
import { go, href, query, setQuery } from "../router.js";
import { rights, signIn } from "../sign_in.js";
import { useChanges, useStreamLog } from "../use_log.js";

export const title = (/** @type {{id: string}} */ { id }) => `Execution ${id.slice(0, 8)}`;

const ENDS = new Set(["completed", "stopped", "failed", "cancelled"]);

/** @param {string} path @param {AbortSignal} signal @returns {Promise<any[]>} up to 500 steps */
async function readSteps(path, signal) {
  /** @type {any[]} */
  const items = [];
  let after = 0;
  do {
    const page = await get(`${path}/steps`, { after, limit: 100 }, signal);
    items.push(...page.items);
    after = Number(page.next_cursor);
  } while (after && items.length < 500);
  return items;
}

/** @param {string} id @param {AbortSignal} signal */
async function read(id, signal) {
  const path = `agent/executions/${id}`;
  const execution = await get(path, {}, signal);
  const [because, steps, requests, children] = await Promise.all([
    get(`${path}/because`, { limit: 1 }, signal),
    readSteps(path, signal),
    get(`${path}/requests`, { status: "all", limit: 100 }, signal),
    get("agent/executions", { parent_execution_id: id, limit: 50 }, signal),
  ]);
  return { execution, because: because.because, steps, requests: requests.items, children: children.items };
}

/** @param {{params: {id: string}}} props */
export default function Execution({ params: { id } }) {
  const known = useLoad((signal) => get(`agent/executions/${id}`, {}, signal), [id]);
  if (known.error) return html`<${Failure} error=${known.error} retry=${known.reload} />`;
  if (!known.data) return html`<${Loading} />`;
  const stream = known.data.session_id ? ["session", known.data.session_id] : ["execution", id];
  return html`<${Detail} id=${id} kind=${stream[0]} stream=${stream[1]} />`;
}

/** @param {{id: string, kind: "session" | "execution", stream: string}} props */
function Detail({ id, kind, stream }) {
  const log = useStreamLog(kind, stream);
  const version = useChanges(log);
  const { data, error, reload } = useLoad((signal) => read(id, signal), [id], { fresh: version });
  const [forking, fork] = useState(/** @type {number | null} */ (null));
  const [isExporting, setExporting] = useState(false);
  const step = query.value.has("step") ? Number(query.value.get("step")) : undefined;
  if (error && !data) return html`<${Failure} error=${error} retry=${reload} />`;
  if (!data) return html`<${Loading} />`;
  const { execution, because, steps, requests, children } = data;
  const open = requests.filter((/** @type {any} */ each) => each.state === "open");
  const answer = execution.output?.response;
  const cost = execution.tree_cost_usd ?? execution.cost_usd;
  const note = html`<${Status} status=${execution.status} reason=${execution.stop_reason} /> <span>${execution.agent}</span> · <span>for ${execution.user_id ?? "no user"}</span> · <${Took} from=${execution.started_at} to=${execution.completed_at} /> · <span>${count(totalTokens(execution.usage))} tokens</span>${cost !== null && html` · <span title="With its subagents">${usd(cost)}</span>`}`;
  return html`<div class="execution">
    <div class="execution-main">
      <${Page} title=${`Execution ${id.slice(0, 8)}`} note=${note} actions=${html`<${Actions} execution=${execution} waits=${open.length > 0} last=${steps.at(-1)?.number ?? 0} step=${step} fork=${fork} save=${() => setExporting(true)} reload=${reload} />`} wide>
        <section class="panel"><p class="because-end">${because}</p>
          ${execution.error_message && html`<p class="error" dir="auto">${execution.error_message}</p>`}</section>
        ${open.map((/** @type {any} */ each) => html`<section class="panel card request-row" key=${each.id}><${RequestCard} request=${each} decided=${reload} hasKeys /></section>`)}
        <section class="panel"><h2>Steps</h2>
          <${Waterfall} steps=${steps} requests=${requests} current=${step} now=${Date.now()} choose=${(/** @type {number} */ one) => setQuery({ step: one === step ? null : String(one) })} />
          ${steps.length >= 500 && html`<p class="note">The first 500 steps are shown.</p>`}</section>
        ${answer && html`<section class="panel"><h2>Answer</h2><${Markdown} text=${String(answer)} /></section>`}
        ${execution.output?.data && html`<section class="panel"><h2>Result</h2><${Value} value=${execution.output.data} /></section>`}
        ${children.length > 0 && html`<section class="panel"><h2>Subagents</h2><div class="card"><${Tree} executions=${children} /></div></section>`}
        <${Ledger} id=${id} />
      <//>
    </div>
    <aside class="session-side" aria-label="Inspector"><${Inspector} execution=${id} step=${step} version=${version} events=${log.held()} /></aside>
    ${forking !== null && html`<${ForkDialog} execution=${id} step=${forking} close=${() => fork(null)} />`}
    ${isExporting && html`<${ExportDialog} execution=${id} close=${() => setExporting(false)} />`}
  </div>`;
}

/** @param {{execution: any, waits: boolean, last: number, step: number | undefined, fork: (step: number) => void, save: () => void, reload: () => void}} props */
function Actions({ execution, waits, last, step, fork, save, reload }) {
  const isOver = ENDS.has(execution.status);
  const act = async (/** @type {string} */ name, /** @type {string} */ said) => {
    try {
      const now = await post(`agent/executions/${execution.id}/${name}`);
      done(now.is_cancelling ? "It is being cancelled." : said);
      if (name === "retry") go(`executions/${now.id}`);
      else reload();
    } catch (error) {
      const hasEnded = name === "cancel" && error instanceof Problem && error.status === 409;
      if (hasEnded) done("It had ended before.");
      else failed(sentence(error));
      reload();
    }
  };
  const { mayWrite, mayCommand, seesAll } = rights.value;
  const ui = signIn.value?.temporal_workflows_url;
  return html`
    ${execution.session_id && html`<a class="button" href=${href(`sessions/${execution.session_id}`)}>Session</a>`}
    ${execution.parent_execution_id && html`<a class="button" href=${href(`executions/${execution.parent_execution_id}`)}>Parent</a>`}
    ${ui && html`<a class="button" href=${`${ui}/agent-execution%2F${execution.id}`} target="_blank" rel="noopener">Temporal</a>`}
    ${last > 0 && html`<a class="button" href=${href(`what-if?execution=${execution.id}`)}>What if…</a>`}
    ${seesAll && last > 0 && html`<button onClick=${save}>Save as test…</button>`}
    ${mayWrite && !execution.parent_execution_id && last > 0 && html`<button onClick=${() => fork(step ?? last)}>Fork…</button>`}
    ${mayWrite && execution.status === "failed" && html`<button onClick=${() => act("retry", "It continues in a new execution.")}>Retry</button>`}
    ${mayWrite && execution.status === "running" && html`<button onClick=${() => act("pause", "It pauses once its running calls are done.")}>Pause</button>`}
    ${mayWrite && execution.status === "paused" && !waits && html`<button onClick=${() => act("resume", "It continues.")}>Resume</button>`}
    ${!isOver && mayCommand(execution.user_id, "cancel") && html`<button class="danger" onClick=${() => act("cancel", "It is cancelled.")}>Cancel</button>`}`;
}

/** @param {{executions: any[]}} props */
function Tree({ executions }) {
  return html`<ul class="tree">${executions.map((each) => html`<li key=${each.id}><${Branch} execution=${each} /></li>`)}</ul>`;
}

/** @param {{execution: any}} props */
function Branch({ execution }) {
  const { data } = useLoad((signal) => get("agent/executions", { parent_execution_id: execution.id, limit: 50 }, signal), [execution.id, execution.status]);
  return html`<div><${Status} status=${execution.status} reason=${execution.stop_reason} /><a href=${href(`executions/${execution.id}`)}>${execution.agent}</a>
      <span class="quiet">${plural(execution.step_count, "step")}</span>
      <span class="quiet">${execution.started_at ? duration(between(execution.started_at, execution.completed_at)) : ""}</span>
      <span class="quiet">${usd(execution.cost_usd)}</span></div>
    ${data?.items.length > 0 && html`<${Tree} executions=${data.items} />`}`;
}

/** @param {{id: string}} props */
function Ledger({ id }) {
  const [isOpen, setOpen] = useState(false);
  return html`<section class="panel"><details onToggle=${(/** @type {any} */ event) => setOpen(event.currentTarget.open)}>
    <summary>Ledger <span class="note">every fact and decision, in a chain of hashes that shows later changes</span></summary>${isOpen && html`<${Entries} id=${id} />`}</details></section>`;
}

/** @param {{id: string}} props */
function Entries({ id }) {
  const { data, error, reload } = useLoad((signal) => get(`agent/executions/${id}/ledger`, { limit: 200 }, signal), [id]);
  if (error) return html`<${Failure} error=${error} retry=${reload} />`;
  if (!data) return html`<${Loading} />`;
  return html`<ol class="event-list">${data.entries.map((/** @type {any} */ entry, /** @type {number} */ index) => html`<li key=${index}><details>
    <summary><span class="quiet">${index + 1}</span> <${Badge}>${entry.kind}<//> <span class="quiet">${entry.at ? exactTime(entry.at) : ""} ${String(entry.hash ?? "").slice(0, 12)}</span></summary>
    <${Value} value=${entry} /></details></li>`)}</ol>`;
}
