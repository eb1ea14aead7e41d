/** The agents that can be started, and where each came from. */

import { get } from "../api.js";
import { shortId } from "../format.js";
import { html } from "../lib.js";
import { useLoad } from "../load.js";
import { Badge } from "../parts/badge.js";
import { Failure, Loading, Page } from "../parts/page.js";
import { Table } from "../parts/table.js";

export const title = "Agents";

export default function Agents() {
  const { data, error, reload } = useLoad((signal) => get("agent/agents", {}, signal), []);
  return html`<${Page} title="Agents">
    ${error && html`<${Failure} error=${error} retry=${reload} />`}
    ${!data && !error && html`<${Loading} />`}
    ${data &&
    html`<${Table} label="Agents">
        <thead>
          <tr><th>Agent</th><th>Description</th><th>Tools</th><th>Source</th><th>Definition</th></tr>
        </thead>
        <tbody>
          ${data.items.map(
            (/** @type {any} */ agent) => html`<tr key=${agent.name}>
              <td class="nowrap">${agent.name} ${agent.name === data.default && html`<${Badge} tone="busy">default<//>`}</td>
              <td>${agent.description}</td>
              <td>${agent.tools.join(", ") || "none"}</td>
              <td><code>${agent.source}</code></td>
              <td><code title=${agent.definition_hash}>${shortId(agent.definition_hash)}</code></td>
            </tr>`,
          )}
        </tbody>
      <//>`}
  <//>`;
}
