/** All executions, newest first. */

import { html } from "../lib.js";
import { between, count, duration, usd } from "../format.js";
import { usePages } from "../load.js";
import { Status } from "../parts/badge.js";
import { useListKeys } from "../parts/list_keys.js";
import { Empty, Failure, Loading, Page } from "../parts/page.js";
import { Table } from "../parts/table.js";
import { Ago } from "../parts/time.js";
import { go, href, query, setQuery } from "../router.js";

export const title = "Executions";

const STATUSES = ["pending", "running", "paused", "completed", "failed", "cancelled"];

export default function Executions() {
  const status = query.value.get("status") ?? "";
  const list = usePages("agent/executions", { status, agent: query.value.get("agent") }, { every: 4000 });
  const current = useListKeys(list.items, (execution) => go(`executions/${execution.id}`));
  return html`<${Page} title="Executions" wide>
    <div class="filters">
      <select aria-label="Status" value=${status}
        onChange=${(/** @type {any} */ event) => setQuery({ status: event.currentTarget.value })}>
        <option value="">Any status</option>
        ${STATUSES.map((each) => html`<option value=${each}>${each}</option>`)}
      </select>
    </div>
    ${list.error && html`<${Failure} error=${list.error} retry=${list.reload} />`}
    ${list.isLoading && html`<${Loading} />`}
    ${!list.isLoading && !list.error && list.items.length === 0 && html`<${Empty} icon="list" title="No executions" />`}
    ${list.items.length > 0 &&
    html`<${Table} label="Executions">
      <thead><tr>
        <th>Status</th><th>Execution</th><th>Agent</th><th>User</th>
        <th class="number">Steps</th><th class="number">Took</th><th class="number">Cost</th><th>Began</th>
      </tr></thead>
      <tbody>
        ${list.items.map(
          (/** @type {any} */ each, /** @type {number} */ index) => html`<tr key=${each.id} class=${index === current ? "current" : ""}>
            <td><${Status} status=${each.status} reason=${each.stop_reason} /></td>
            <td><a href=${href(`executions/${each.id}`)}><code>${each.id.slice(0, 8)}</code></a></td>
            <td>${each.agent}</td>
            <td>${each.user_id}</td>
            <td class="number">${count(each.step_count)}</td>
            <td class="number">${each.started_at ? duration(between(each.started_at, each.completed_at)) : ""}</td>
            <td class="number">${usd(each.cost_usd)}</td>
            <td class="nowrap"><${Ago} at=${each.created_at} /></td>
          </tr>`,
        )}
      </tbody>
    <//>`}
    ${list.hasMore && html`<div class="more"><button onClick=${list.more}>Show more</button></div>`}
  <//>`;
}
