/** The agents that can be started: what each is made of, where it came from, and a way to try it. */

import { get, post, sentence } from "../api.js";
import { count, shortId } from "../format.js";
import { html, useState } from "../lib.js";
import { useLoad } from "../load.js";
import { failed } from "../notices.js";
import { Badge } from "../parts/badge.js";
import { Failure, Loading, Page } from "../parts/page.js";
import { Table } from "../parts/table.js";
import { Ago } from "../parts/time.js";
import { Value } from "../parts/values.js";
import { go, href } from "../router.js";
import { rights } from "../sign_in.js";

export const title = (/** @type {{name?: string}} */ { name }) => name ?? "Agents";

/** @param {{params: {name?: string}}} props */
export default function Agents({ params: { name } }) {
  return name ? html`<${Agent} name=${name} />` : html`<${List} />`;
}

function List() {
  const { data, error, reload } = useLoad((signal) => get("agent/agents", {}, signal), []);
  return html`<${Page} title="Agents">
    ${error && html`<${Failure} error=${error} retry=${reload} />`}
    ${!data && !error && html`<${Loading} />`}
    ${data &&
    html`<${Table} label="Agents">
      <thead><tr><th>Agent</th><th>Description</th><th>Tools</th><th>Source</th><th>Definition</th></tr></thead>
      <tbody>
        ${data.items.map(
          (/** @type {any} */ agent) => html`<tr key=${agent.name}>
            <td class="nowrap"><a href=${href(`agents/${encodeURIComponent(agent.name)}`)}>${agent.name}</a></td>
            <td>${agent.description} ${agent.name === data.default && html`<${Badge} tone="busy">default<//>`}</td>
            <td>${agent.tools.join(", ") || "none"}</td>
            <td><code>${agent.source}</code></td>
            <td><code title=${agent.definition_hash}>${shortId(agent.definition_hash)}</code></td>
          </tr>`,
        )}
      </tbody>
    <//>`}
  <//>`;
}

/** @param {{name: string}} props */
function Agent({ name }) {
  const { data, error, reload } = useLoad((signal) => get(`agent/agents/${encodeURIComponent(name)}`, {}, signal), [name]);
  if (error) return html`<${Failure} error=${error} retry=${reload} />`;
  if (!data) return html`<${Loading} />`;
  const links = html`<a class="button" href=${href(`executions?agent=${encodeURIComponent(name)}`)}>Its executions</a>`;
  return html`<${Page} title=${name} note=${data.description} actions=${links}>
    ${rights.value.mayWrite && html`<${Playground} name=${name} />`}
    <section class="panel"><h2>Tools</h2>
      ${data.tool_details.length === 0 && html`<p class="note">It has no tools of its own.</p>`}
      <ul class="stack">${data.tool_details.map(
        (/** @type {any} */ tool) => html`<li class="card tool-detail" key=${tool.name}><details>
          <summary><strong>${tool.name}</strong> <${Badge}>${tool.effect}<//> ${tool.approver.length > 0 && html`<${Badge} tone="warn">approval by ${tool.approver.join(", ")}<//>`} <span class="quiet">${tool.description}</span></summary>
          <${Value} value=${tool.schema.properties ?? {}} /></details></li>`,
      )}</ul></section>
    ${data.instructions?.length > 0 && html`<section class="panel"><h2>Instructions</h2>${data.instructions.map((/** @type {string} */ text) => html`<div class="card tool-detail"><${Value} value=${text} /></div>`)}</section>`}
    <section class="panel"><h2>Limits and policies</h2><div class="card tool-detail"><${Value} value=${limitsOf(data.plan)} /></div></section>
    <section class="panel"><h2>Definitions over time</h2><p class="note">The hash changes with instructions, tools, limits and policies. Counted are ${rights.value.seesAll ? "the" : "your"} newest executions of this agent, up to 1,000.</p>
      <${Definitions} uses=${data.definitions} now=${data.definition_hash} /></section>
    <section class="panel"><h2>Origin</h2><dl class="facts">
      <dt>source</dt><dd><code>${data.source}</code></dd><dt>definition</dt><dd><code>${data.definition_hash}</code></dd>
      <dt>preset</dt><dd>${data.preset ?? "the default one"}</dd><dt>capabilities</dt><dd>${data.capabilities.join(", ") || "none"}</dd></dl></section>
  <//>`;
}

/** The plan of an agent without what is shown above it. @param {{[name: string]: unknown}} plan */
function limitsOf({ agent: _, tools: __, ...limits }) {
  return limits;
}

/** @param {{uses: any[], now: string}} props */
function Definitions({ uses, now }) {
  if (uses.length === 0) return html`<p>No execution has begun yet.</p>`;
  return html`<${Table} label="Definitions over time">
    <thead><tr><th>Definition</th><th class="number">Executions</th><th>First</th><th>Last</th></tr></thead>
    <tbody>${uses.map(
      (use) => html`<tr key=${use.definition_hash}>
        <td>${use.definition_hash ? html`<code title=${use.definition_hash}>${shortId(use.definition_hash)}</code>` : html`<span class="quiet">not recorded</span>`}
          ${use.definition_hash === now && html` <${Badge} tone="ok">current<//>`}</td>
        <td class="number">${count(use.executions)}</td><td><${Ago} at=${use.first_at} /></td><td><${Ago} at=${use.last_at} /></td>
      </tr>`,
    )}</tbody>
  <//>`;
}

/** A run in debug mode, which stores its whole state after each step. @param {{name: string}} props */
function Playground({ name }) {
  const [content, setContent] = useState("");
  const [isBusy, setBusy] = useState(false);
  const run = async (/** @type {Event} */ event) => {
    event.preventDefault();
    setBusy(true);
    try {
      const sent = await post("agent/messages", { agent: name, content, debug: true, broadcast: "debug" });
      go(`sessions/${sent.session_id}`);
    } catch (error) {
      failed(sentence(error));
      setBusy(false);
    }
  };
  return html`<form class="panel playground" onSubmit=${run}>
    <label class="field"><span>Try it in debug mode: the state is stored after each step</span>
      <textarea rows="2" dir="auto" value=${content} onInput=${(/** @type {any} */ event) => setContent(event.currentTarget.value)}></textarea></label>
    <div class="buttons"><button class="primary" disabled=${isBusy || !content.trim()}>Run</button></div>
  </form>`;
}
