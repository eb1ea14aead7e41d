/** All sessions, newest first, and the way to begin one. */

import { get, post, sentence } from "../api.js";
import { html, useRef, useState } from "../lib.js";
import { useKeys } from "../keys.js";
import { useLoad, usePages } from "../load.js";
import { failed } from "../notices.js";
import { Dialog } from "../parts/dialog.js";
import { Empty, Failure, Loading, Page } from "../parts/page.js";
import { Table } from "../parts/table.js";
import { useListKeys } from "../parts/list_keys.js";
import { Ago } from "../parts/time.js";
import { go, href, query, setQuery } from "../router.js";
import { rights } from "../sign_in.js";

export const title = "Sessions";

const EVERY = 4000;

export default function Sessions() {
  const [isBeginning, setBeginning] = useState(query.value.has("new"));
  const search = query.value.get("search") ?? "";
  const list = usePages("agent/sessions", { search, status: query.value.get("status") }, { every: EVERY });
  const field = useRef(/** @type {HTMLInputElement | null} */ (null));
  const current = useListKeys(list.items, (session) => go(`sessions/${session.id}`));
  useKeys([
    { keys: "/", label: "Search", run: () => field.current?.focus() },
    { keys: "n", label: "New session", run: () => rights.value.mayWrite && setBeginning(true) },
  ]);
  const actions =
    rights.value.mayWrite && html`<button class="primary" onClick=${() => setBeginning(true)}>New session</button>`;
  return html`<${Page} title="Sessions" actions=${actions}>
    <div class="filters">
      <input type="search" ref=${field} placeholder="Search titles" aria-label="Search in titles" value=${search}
        onInput=${(/** @type {any} */ event) => setQuery({ search: event.currentTarget.value })} />
      <select aria-label="Status" value=${query.value.get("status") ?? ""}
        onChange=${(/** @type {any} */ event) => setQuery({ status: event.currentTarget.value })}>
        <option value="">Any status</option>
        <option value="active">Active</option>
        <option value="archived">Archived</option>
        <option value="closed">Closed</option>
      </select>
      <a href=${href(`executions${search ? `?${new URLSearchParams({ q: search })}` : ""}`)}>${search ? `Search messages for “${search}”` : "Search messages"}</a>
    </div>
    ${list.error && html`<${Failure} error=${list.error} retry=${list.reload} />`}
    ${list.isLoading && html`<${Loading} />`}
    ${!list.isLoading && !list.error && list.items.length === 0 && html`<${Empty} icon="chat" title="No sessions">
      ${search ? "No session has these words in its title." : "A session starts with a message to an agent."}
    <//>`}
    ${list.items.length > 0 &&
    html`<${Table} label="Sessions">
        <thead><tr><th>Session</th><th>Agent</th><th>User</th><th>Updated</th></tr></thead>
        <tbody>
          ${list.items.map(
            (/** @type {any} */ session, /** @type {number} */ index) => html`<tr
              key=${session.id}
              class=${index === current ? "current" : ""}
            >
              <td class="clip"><a href=${href(`sessions/${session.id}`)}>${session.title || "Untitled"}</a></td>
              <td class="nowrap">${session.agent ?? ""}</td>
              <td>${session.user_id}</td>
              <td class="nowrap"><${Ago} at=${session.updated_at} /></td>
            </tr>`,
          )}
        </tbody>
      <//>`}
    ${list.hasMore && html`<div class="more"><button onClick=${list.more}>Show more</button></div>`}
    ${isBeginning && html`<${NewSession} close=${() => setBeginning(false)} />`}
  <//>`;
}

/** @param {{close: () => void}} props */
function NewSession({ close }) {
  const { data: agents } = useLoad((signal) => get("agent/agents", {}, signal), []);
  const [agent, setAgent] = useState(query.value.get("agent") ?? "");
  const [content, setContent] = useState("");
  const [isBusy, setBusy] = useState(false);
  const begin = async () => {
    if (!content.trim()) return;
    setBusy(true);
    try {
      const sent = await post("agent/messages", { content, agent: agent || undefined });
      go(`sessions/${sent.session_id}`);
    } catch (error) {
      failed(sentence(error));
      setBusy(false);
    }
  };
  const onKeyDown = (/** @type {KeyboardEvent} */ event) => {
    if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) void begin();
  };
  return html`<${Dialog} title="New session" close=${close}>
    <form class="form" onSubmit=${(/** @type {Event} */ event) => (event.preventDefault(), void begin())}>
      <label class="field">
        <span>Agent</span>
        <select value=${agent || agents?.default} onChange=${(/** @type {any} */ event) => setAgent(event.currentTarget.value)}>
          ${agents?.items.map(
            (/** @type {any} */ each) =>
              html`<option value=${each.name} selected=${each.name === (agent || agents.default)}>${each.name}</option>`,
          )}
        </select>
      </label>
      <label class="field">
        <span>Message</span>
        <textarea rows="5" autofocus value=${content} onKeyDown=${onKeyDown}
          onInput=${(/** @type {any} */ event) => setContent(event.currentTarget.value)}></textarea>
      </label>
      <div class="buttons">
        <button class="primary" disabled=${isBusy || !content.trim()}>Send</button>
        <button type="button" onClick=${close}>Cancel</button>
      </div>
    </form>
  <//>`;
}
