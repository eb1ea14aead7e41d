/** What is behind an execution or one of its steps: because, usage, state, messages, tools and raw events. */

import { get } from "../api.js";
import { count, exactTime, usd } from "../format.js";
import { html, useState } from "../lib.js";
import { useLoad } from "../load.js";
import { Badge } from "./badge.js";
import { Failure, Loading } from "./page.js";
import { PromptMessages, PromptTools, SentMessage } from "./prompt_tabs.js";
import { Value } from "./values.js";
import { summary } from "../rows.js";
import { href } from "../router.js";
import { StateTab } from "./state_tab.js";

/** @typedef {import("../live.js").Envelope} Envelope */
/** @typedef {{execution: string, step?: number, envelope?: Envelope, version?: unknown, events?: Envelope[]}} Props */

const TABS = { because: "Because", usage: "Usage", state: "State", messages: "Messages", tools: "Tools", events: "Events" };

/** @param {Props & {close?: () => void}} props */
export function Inspector({ execution, step, envelope, version, events, close }) {
  const [tab, setTab] = useState(/** @type {keyof typeof TABS} */ ("because"));
  const Shown = { because: Because, usage: Usage, state: StateTab, messages: Messages, tools: Tools, events: Events }[tab];
  const onKeyDown = (/** @type {KeyboardEvent} */ event) => {
    const by = event.key === "ArrowRight" ? 1 : event.key === "ArrowLeft" ? -1 : 0;
    if (!by) return;
    const names = /** @type {(keyof typeof TABS)[]} */ (Object.keys(TABS));
    const next = names[(names.indexOf(tab) + by + names.length) % names.length];
    setTab(next);
    document.getElementById(`tab-${next}`)?.focus();
  };
  return html`<div class="inspector">
    <div class="inspector-head">
      <h2>${step ? `Step ${step}` : "Execution"}</h2>
      <a href=${href(`executions/${execution}`)}><code>${execution.slice(0, 8)}</code></a>
      ${close && html`<button class="ghost" onClick=${close}>Close</button>`}
    </div>
    <div class="tabs" role="tablist" aria-label="Inspector" onKeyDown=${onKeyDown}>
      ${Object.entries(TABS).map(
        ([name, label]) => html`<button role="tab" id=${`tab-${name}`} aria-selected=${tab === name} aria-controls="inspector-panel" tabindex=${tab === name ? 0 : -1}
          onClick=${() => setTab(/** @type {keyof typeof TABS} */ (name))}>${label}</button>`,
      )}
    </div>
    <div class="inspector-body" id="inspector-panel" role="tabpanel" aria-labelledby=${`tab-${tab}`} tabindex="0">
      <${Shown} key=${`${execution}/${step ?? ""}`} execution=${execution} step=${step} envelope=${envelope} version=${version} events=${events} />
    </div>
  </div>`;
}

/** @param {Props} props */
function Because({ execution, step, version }) {
  const query = step ? { after: step - 1, limit: 1 } : { limit: 100 };
  const { data, error, reload } = useLoad((signal) => get(`agent/executions/${execution}/because`, query, signal), [execution, step], { fresh: version });
  if (error) return html`<${Failure} error=${error} retry=${reload} />`;
  if (!data) return html`<${Loading} />`;
  return html`<div class="because">
    ${!step && html`<p class="because-end">${data.because}</p>`}
    <ol>${data.steps.map((/** @type {any} */ each) => html`<${StepBecause} key=${each.number} step=${each} isOpen=${Boolean(step)} />`)}</ol>
    ${data.next_cursor && !step && html`<p class="note">The first 100 steps are shown.</p>`}
  </div>`;
}

/** @param {{step: any, isOpen: boolean}} props */
function StepBecause({ step, isOpen }) {
  return html`<li><details open=${isOpen}>
    <summary><span class="quiet">Step ${step.number}</span> ${step.because}</summary>
    <ul class="votes">
      ${step.votes.map(
        (/** @type {any} */ vote) => html`<li><${Badge} tone=${{ forbid: "bad", stop: "warn", request: "ok" }[/** @type {string} */ (vote.decision)] ?? "quiet"}>${vote.decision}<//> <strong>${vote.criterion}</strong> <span class="quiet">${vote.reason}</span></li>`,
      )}
      ${step.folded_votes > 0 && html`<li class="quiet">${count(step.folded_votes)} more had no objection.</li>`}
      ${step.superseded.map((/** @type {string} */ each) => html`<li class="quiet">${each}</li>`)}
      ${step.compactions.map((/** @type {string} */ each) => html`<li class="quiet">${each}</li>`)}
      ${step.messages.map((/** @type {any} */ each) => html`<li class="quiet">${each.kind} by ${each.by ?? "someone"}</li>`)}
    </ul>
  </details></li>`;
}

/** @param {Props} props */
function Usage({ execution, step, version }) {
  const { data, error, reload } = useLoad((signal) => get(`agent/executions/${execution}`, {}, signal), [execution], { fresh: version });
  const one = useLoad(
    (signal) => (step ? get(`agent/executions/${execution}/steps`, { after: step - 1, limit: 1 }, signal) : Promise.resolve(null)),
    [execution, step],
    { fresh: version },
  );
  if (error) return html`<${Failure} error=${error} retry=${reload} />`;
  if (!data) return html`<${Loading} />`;
  const own = one.data?.items[0];
  return html`<div class="stack">
    ${own && html`<h3>Step ${step}</h3><${Amounts} usage=${own.usage} cost=${own.cost_usd} />`}
    <h3>Execution</h3>
    <${Amounts} usage=${data.usage} cost=${data.cost_usd} tree=${data.tree_cost_usd} />
    ${data.budgets.length > 0 && html`<h3>Budgets</h3>`}
    ${data.budgets.map(
      (/** @type {any} */ each) => html`<div class="budget">
        <span>${each.scope}, in ${each.unit}</span>
        <meter min="0" max=${each.limit || 1} value=${each.spent + each.reserved} aria-label=${`Spent of the budget of the ${each.scope}`}></meter>
        <span class="number">${each.spent} of ${each.limit}</span>
      </div>`,
    )}
  </div>`;
}

/** @param {{usage: {[name: string]: number} | null, cost: number | null, tree?: number | null}} props */
function Amounts({ usage, cost, tree }) {
  return html`<dl class="facts">
    ${Object.entries(usage ?? {}).map(([name, tokens]) => html`<dt>${name} tokens</dt><dd class="mono">${count(tokens)}</dd>`)}
    <dt>cost</dt><dd class="mono">${usd(cost)}</dd>
    ${tree !== undefined && html`<dt>with subagents</dt><dd class="mono">${usd(tree)}</dd>`}
  </dl>`;
}

/** @param {Props} props */
function Messages({ execution, step, version }) {
  return step ? html`<${PromptMessages} execution=${execution} step=${step} />` : html`<${AddedMessages} execution=${execution} version=${version} />`;
}

/** @param {Props} props */
function AddedMessages({ execution, version }) {
  const { data, error, reload } = useLoad((signal) => get(`agent/executions/${execution}/steps`, { limit: 200 }, signal), [execution], { fresh: version });
  if (error) return html`<${Failure} error=${error} retry=${reload} />`;
  if (!data) return html`<${Loading} />`;
  return html`<div class="stack">
    <p class="note">What each step added to the conversation. Choose a step to see the whole prompt that the model read.</p>
    ${data.items.map(
      (/** @type {any} */ each) => html`<section key=${each.number}>
        <h3>Step ${each.number}</h3>
        ${each.messages.map((/** @type {any} */ message) => html`<${SentMessage} message=${message} />`)}
      </section>`,
    )}
    ${data.next_cursor && html`<p class="note">The first 200 steps are shown.</p>`}
  </div>`;
}

/** @param {Props} props */
function Tools({ execution, step, events = [] }) {
  const last = events.findLast((each) => each.type === "agent.step.started" && each.execution_id === execution)?.payload.step_number;
  const shown = step ?? last;
  return shown ? html`<${PromptTools} execution=${execution} step=${shown} />` : html`<p class="note">Choose a step to see the tools that it offered.</p>`;
}

/** @param {Props} props */
function Events({ events = [], execution, envelope }) {
  const [most, setMost] = useState(100);
  const mine = events.filter((each) => each.execution_id === execution);
  const shown = mine.slice(-most);
  return html`<div class="stack">
    ${envelope && html`<h3>${envelope.type}</h3><dl class="facts"><dt>number</dt><dd>${envelope.seq}</dd><dt>time</dt><dd>${exactTime(envelope.timestamp)}</dd></dl><${Value} value=${envelope.payload} />`}
    <h3>Loaded events of this execution</h3>
    ${mine.length > most && html`<button class="link" onClick=${() => setMost(most + 200)}>Show earlier ones</button>`}
    <ol class="event-list">${shown.map((each) => html`<li key=${each.id}><details>
      <summary><span class="quiet">${each.seq}</span> <code>${each.type}</code> <span class="quiet">${summary(each)}</span></summary>
      <${Value} value=${each.payload} /></details></li>`)}</ol>
  </div>`;
}

