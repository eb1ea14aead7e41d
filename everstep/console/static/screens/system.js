/** Whether the parts of the installation work. */

import { get, Problem } from "../api.js";
import { html } from "../lib.js";
import { useLoad } from "../load.js";
import { Badge } from "../parts/badge.js";
import { Failure, Loading, Page } from "../parts/page.js";
import { Table } from "../parts/table.js";

export const title = "System";

/** The checks, also if some fail: the answer has the status 503 then. @param {AbortSignal} signal */
async function readChecks(signal) {
  const response = await fetch(new URL("../../../readyz", import.meta.url), { signal, cache: "no-store" });
  const document = await response.json();
  if (!Array.isArray(document.checks)) throw new Problem(response.status, document.title, document.detail);
  return document;
}

export default function System() {
  const { data, error, reload } = useLoad(readChecks, [], { every: 5000 });
  const gateway = useLoad((signal) => get("agent/gateway", {}, signal), []);
  return html`<${Page} title="System">
    ${error && html`<${Failure} error=${error} retry=${reload} />`}
    ${!data && !error && html`<${Loading} />`}
    ${data &&
    html`<${Table} label="Checks">
        <thead><tr><th>Part</th><th>State</th><th>What to do</th></tr></thead>
        <tbody>
          ${data.checks.map(
            (/** @type {any} */ check) => html`<tr key=${check.name}>
              <td>${check.name}</td>
              <td><${Badge} tone=${check.ok ? "ok" : "bad"}>${check.ok ? "works" : "does not work"}<//></td>
              <td>${check.ok ? "" : check.detail}</td>
            </tr>`,
          )}
          <tr>
            <td>gateway</td>
            <td>
              <${Badge} tone=${gateway.data ? "ok" : gateway.error ? "warn" : "quiet"}>
                ${gateway.data ? "works" : gateway.error ? "none" : "…"}
              <//>
            </td>
            <td>${gateway.data ? html`<code>${gateway.data.url}</code>` : gateway.error}</td>
          </tr>
        </tbody>
      <//>`}
  <//>`;
}
