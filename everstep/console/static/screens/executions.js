/** All executions, newest first: filters in the address, saved filters, columns, and several cancelled at once. */

import { get, post, Problem, sentence } from "../api.js";
import { between, compact, count, duration, exactTime, plural, totalTokens, usd } from "../format.js";
import { openRequests } from "../inbox.js";
import { useKeys } from "../keys.js";
import { html, useState } from "../lib.js";
import { useLoad, usePages } from "../load.js";
import { done, failed } from "../notices.js";
import { Status } from "../parts/badge.js";
import { DraftInput } from "../parts/draft_input.js";
import { useListKeys } from "../parts/list_keys.js";
import { Empty, Failure, Loading, Page } from "../parts/page.js";
import { SearchField } from "../parts/search_field.js";
import { SearchHits } from "../parts/search_hits.js";
import { Table } from "../parts/table.js";
import { Ago } from "../parts/time.js";
import { go, href, query, setQuery } from "../router.js";
import { forgetFilter, hiddenColumns, savedFilters, saveFilter, toggleColumn } from "../saved_filters.js";
import { rights } from "../sign_in.js";

/** @typedef {{[name: string]: any}} Execution */
/** @typedef {{id: string, label: string, isNumber?: boolean, show: (execution: Execution) => any}} Column */

export const title = "Executions";

const STATUSES = ["pending", "running", "paused", "completed", "failed", "cancelled"];
const UNDER_WAY = new Set(["pending", "running", "paused"]);
const SPANS = { "": "Any time", "1": "Last hour", "24": "Last day", "168": "Last week", "720": "Last 30 days" };

/** @type {Column[]} */
const COLUMNS = [
  { id: "agent", label: "Agent", show: (each) => each.agent },
  { id: "user", label: "User", show: (each) => each.user_id },
  { id: "because", label: "Because", show: (each) => html`<span title=${each.because}>${reasonOf(each)}</span>` },
  { id: "session", label: "Session", show: (each) => each.session_id && html`<a href=${href(`sessions/${each.session_id}`)}><code>${each.session_id.slice(0, 8)}</code></a>` },
  { id: "steps", label: "Steps", isNumber: true, show: (each) => count(each.step_count) },
  { id: "tokens", label: "Tokens", isNumber: true, show: (each) => compact(totalTokens(each.usage)) },
  { id: "took", label: "Took", isNumber: true, show: (each) => (each.started_at ? duration(between(each.started_at, each.completed_at)) : "") },
  { id: "cost", label: "Cost", isNumber: true, show: (each) => usd(each.cost_usd) },
  { id: "began", label: "Began", show: (each) => html`<${Ago} at=${each.created_at} />` },
];

const WAITS = {
  input: () => "waits for an answer",
  approval: (/** @type {string} */ tool) => `waits for a decision about ${tool}`,
  budget: () => "waits for a larger budget",
};

/** Why it ended, without the status, which has a column of its own; or what it waits for. @param {Execution} execution */
function reasonOf({ id, status, because, queue_position }) {
  if (because) return because.replace(/^(completed|stopped|failed|cancelled): /, "");
  if (status === "pending" && queue_position) return `waits at position ${queue_position} of its queue`;
  if (status !== "paused") return "";
  const request = openRequests.value?.find((each) => each.execution_id === id);
  return request ? WAITS[request.kind](request.tool) : "waits for other people";
}

/** The beginning of the span, to the minute: the same request as long as it means the same. @param {string | null} hours */
function sinceOf(hours) {
  if (!hours || !(Number(hours) > 0)) return null;
  return new Date(Math.floor((Date.now() - Number(hours) * 3_600_000) / 60_000) * 60_000).toISOString();
}

/** What is shown of a search, in the address as `show`. */
const VIEWS = { messages: "Messages", executions: "Executions" };

export default function Executions() {
  const named = Object.fromEntries(["q", "status", "agent", "user_id"].map((name) => [name, query.value.get(name)]));
  const filters = { ...named, since: sinceOf(query.value.get("hours")) };
  const hasHits = Boolean(named.q) && query.value.get("show") !== "executions";
  return html`<${Page} title="Executions" wide>
    <${SearchField} />
    <${Filters} />
    ${named.q && html`<div class="tabs" role="group" aria-label="Matches">${Object.entries(VIEWS).map(
      ([view, label]) => html`<button aria-pressed=${hasHits === (view === "messages")} onClick=${() => setQuery({ show: view === "messages" ? null : view })}>${label}</button>`)}</div>`}
    ${hasHits ? html`<${SearchHits} wanted=${filters} />` : html`<${List} wanted=${{ ...filters, because: "true" }} />`}
  <//>`;
}

/** @param {{wanted: import("../api.js").Query}} props */
function List({ wanted }) {
  const [chosen, setChosen] = useState(/** @type {ReadonlySet<string>} */ (new Set()));
  const list = usePages("agent/executions", wanted, { every: wanted.q ? undefined : 4000 });
  const current = useListKeys(list.items, (/** @type {Execution} */ each) => go(`executions/${each.id}`));
  const columns = COLUMNS.filter((each) => !hiddenColumns.value.includes(each.id));
  const toggle = (/** @type {string} */ id) => {
    const next = new Set(chosen);
    if (!next.delete(id)) next.add(id);
    setChosen(next);
  };
  const mayCancel = (/** @type {Execution} */ each) => UNDER_WAY.has(each.status) && rights.value.mayCommand(each.user_id, "cancel");
  const batch = /** @type {Execution[]} */ (list.items).filter((each) => chosen.has(each.id) && mayCancel(each));
  useKeys([{ keys: "x", label: "Select for a batch", run: () => list.items[current] && toggle(/** @type {Execution} */ (list.items[current]).id) }]);
  return html`
    ${batch.length > 0 && html`<${Batch} executions=${batch} finish=${() => (setChosen(new Set()), list.reload())} />`}
    ${list.error && html`<${Failure} error=${list.error} retry=${list.reload} />`}
    ${list.isLoading && html`<${Loading} />`}
    ${!list.isLoading && !list.error && list.items.length === 0 && html`<${Empty} icon="list" title="No executions">${query.value.size ? "No execution matches these filters." : "An execution starts with a message to an agent."}<//>`}
    ${list.items.length > 0 &&
    html`<${Table} label="Executions">
      <thead><tr>
        <th><span class="hidden-text">Select</span></th><th>Status</th><th>Execution</th>
        ${columns.map(({ label, isNumber }) => html`<th class=${isNumber ? "number" : ""}>${label}</th>`)}
      </tr></thead>
      <tbody>
        ${/** @type {Execution[]} */ (list.items).map(
          (each, index) => html`<tr key=${each.id} class=${index === current ? "current" : ""}>
            <td><input type="checkbox" aria-label=${`Select ${each.id.slice(0, 8)}`} disabled=${!mayCancel(each)} checked=${chosen.has(each.id) && mayCancel(each)} onChange=${() => toggle(each.id)} /></td>
            <td class="nowrap"><${Status} status=${each.status} reason=${each.stop_reason} />${each.queue_position && html` <span class="quiet" title="Its position in the queue of its tenant">no. ${each.queue_position}</span>`}</td>
            <td class="nowrap"><a href=${href(`executions/${each.id}`)} title=${exactTime(each.created_at)}><code>${each.id.slice(0, 8)}</code></a>${each.parent_execution_id && html` <span class="quiet">subagent</span>`}</td>
            ${columns.map(({ isNumber, show }) => html`<td class=${isNumber ? "number" : "clip"}>${show(each)}</td>`)}
          </tr>`,
        )}
      </tbody>
    <//>`}
    ${list.hasMore && html`<div class="more"><button onClick=${list.more}>Show more</button></div>`}`;
}

function Filters() {
  const { data: agents } = useLoad((signal) => get("agent/agents", {}, signal), []);
  const [name, setName] = useState("");
  const value = (/** @type {string} */ key) => query.value.get(key) ?? "";
  const change = (/** @type {string} */ key) => (/** @type {any} */ event) => setQuery({ [key]: event.currentTarget.value });
  const text = query.value.toString();
  const save = (/** @type {Event} */ event) => {
    event.preventDefault();
    if (name.trim()) saveFilter(name.trim(), text);
    setName("");
  };
  return html`<div class="filters" role="search">
    <select aria-label="Status" onChange=${change("status")}>
      <option value="">Any status</option>${STATUSES.map((each) => html`<option value=${each} selected=${each === value("status")}>${each}</option>`)}</select>
    <select aria-label="Agent" onChange=${change("agent")}>
      <option value="">Any agent</option>${agents?.items.map((/** @type {any} */ each) => html`<option value=${each.name} selected=${each.name === value("agent")}>${each.name}</option>`)}</select>
    <select aria-label="Time" onChange=${change("hours")}>
      ${Object.entries(SPANS).map(([hours, label]) => html`<option value=${hours} selected=${hours === value("hours")}>${label}</option>`)}</select>
    ${rights.value.seesAll && html`<${DraftInput} aria-label="User" placeholder="User" value=${value("user_id")} commit=${(/** @type {string} */ user) => setQuery({ user_id: user })} />`}
    ${text && html`<button class="link" onClick=${() => go("executions", { replace: true })}>Clear</button>`}
    <span class="fill"></span>
    ${savedFilters.value.map((each) => html`<span class="saved"><a class="button" href=${href(`executions?${each.query}`)}>${each.name}</a><button class="ghost" aria-label=${`Remove ${each.name}`} onClick=${() => forgetFilter(each.name)}>×</button></span>`)}
    ${text && html`<form class="saved" onSubmit=${save}><input aria-label="Name of the filter" placeholder="Save as…" size="12" value=${name} onInput=${(/** @type {any} */ event) => setName(event.currentTarget.value)} />${name && html`<button>Save</button>`}</form>`}
    <details class="menu"><summary class="button">Columns</summary><div class="menu-body card">
      ${COLUMNS.map(({ id, label }) => html`<label class="check"><input type="checkbox" checked=${!hiddenColumns.value.includes(id)} onChange=${() => toggleColumn(id)} /> ${label}</label>`)}
    </div></details>
  </div>`;
}

/** @param {{executions: Execution[], finish: () => void}} props */
function Batch({ executions, finish }) {
  const [isBusy, setBusy] = useState(false);
  const cancel = async () => {
    setBusy(true);
    const results = await Promise.allSettled(executions.map((each) => post(`agent/executions/${each.id}/cancel`)));
    const good = results.filter((each) => each.status === "fulfilled").length;
    if (good) done(`${plural(good, "execution")} cancelled.`);
    const bad = results.flatMap((each) => (each.status === "rejected" ? [each.reason] : []));
    const ended = bad.filter((each) => each instanceof Problem && each.status === 409).length;
    if (ended) done(`${plural(ended, "execution")} had ended before.`);
    if (bad.length > ended) failed(sentence(bad.find((each) => !(each instanceof Problem && each.status === 409))));
    setBusy(false);
    finish();
  };
  return html`<div class="batch card" role="group" aria-label="Batch">
    <span>${executions.length} chosen</span>
    <button class="danger" disabled=${isBusy} onClick=${cancel}>Cancel them</button>
    <button class="ghost" onClick=${finish}>Clear</button>
  </div>`;
}
