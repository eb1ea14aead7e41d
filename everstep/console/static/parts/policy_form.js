/** The other policy of a what-if: limits as sliders with exact values, the error policy, and limits to leave out. */

import { html } from "../lib.js";
import { query, setQuery } from "../router.js";
import { DraftInput } from "./draft_input.js";

/** @typedef {{name: string, label: string, least: number, most: number, step: number, note: string}} Limit */

/** @type {Limit[]} */
const LIMITS = [
  { name: "max_steps", label: "Maximum steps", least: 1, most: 60, step: 1, note: "A step is one call of the model, with the tool calls that it asked for." },
  { name: "max_tokens", label: "Maximum tokens", least: 1000, most: 500_000, step: 1000, note: "Input and output of all steps together." },
  { name: "timeout_seconds", label: "Maximum time in seconds", least: 1, most: 3600, step: 1, note: "Time in which the execution waits for people is not counted." },
  { name: "max_retries", label: "Maximum failures in a row", least: 0, most: 10, step: 1, note: "How often a failure is retried before the execution ends." },
  { name: "repeated_call_limit", label: "Maximum identical calls in a row", least: 2, most: 50, step: 1, note: "The same call with the same result." },
  { name: "budget_usd", label: "Budget in dollars", least: 0.01, most: 10, step: 0.01, note: "For each execution with its subagents." },
  { name: "budget_tokens", label: "Budget in tokens", least: 1000, most: 1_000_000, step: 1000, note: "For each execution with its subagents." },
  { name: "budget_steps", label: "Budget in steps", least: 1, most: 100, step: 1, note: "For each execution with its subagents." },
];

const ERROR_POLICIES = {
  stop_on_any_error: "end at the first failure",
  retry_tool_errors: "retry failed tools, rate limits and timeouts",
  ignore_tool_errors: "continue after failed tools",
  retry_all: "retry every failure",
};

const CRITERIA = {
  StepsLimit: "steps",
  TokenUsageLimit: "tokens",
  ExecutionTimeLimit: "time",
  CumulativeExecutionTimeLimit: "time over the whole session",
  RepeatedCallLimit: "identical calls",
};

/** The other policy, from the address, as `POST /agent/what-if` takes it. @returns {{[name: string]: unknown}} */
export function policyChange() {
  /** @type {{[name: string]: unknown}} */
  const change = {};
  for (const { name } of LIMITS) {
    const value = query.value.get(name);
    if (value !== null && Number.isFinite(Number(value))) change[name] = Number(value);
  }
  const policy = query.value.get("error_policy");
  if (policy) change.error_policy = policy;
  const without = leftOut();
  if (without.length > 0) change.without_criteria = without;
  return change;
}

function leftOut() {
  return (query.value.get("without") ?? "").split(",").filter(Boolean);
}

export function PolicyForm() {
  const policy = query.value.get("error_policy") ?? "";
  const without = leftOut();
  const toggle = (/** @type {string} */ name) => {
    const next = without.includes(name) ? without.filter((each) => each !== name) : [...without, name];
    setQuery({ without: next.join(",") });
  };
  return html`
    ${LIMITS.map((limit) => html`<${Slider} key=${limit.name} limit=${limit} />`)}
    <label class="policy-choice"><span>After a failure</span>
      <select onChange=${(/** @type {any} */ event) => setQuery({ error_policy: event.currentTarget.value })}>
        <option value="">unchanged</option>
        ${Object.entries(ERROR_POLICIES).map(([name, label]) => html`<option value=${name} selected=${name === policy}>${label}</option>`)}
      </select></label>
    <fieldset class="policy-choice"><legend>Without the limit of</legend>
      <div class="checks">${Object.entries(CRITERIA).map(([name, label]) => html`<label class="check"><input type="checkbox" checked=${without.includes(name)} onChange=${() => toggle(name)} /> ${label}</label>`)}</div>
    </fieldset>`;
}

/** @param {{limit: Limit}} props */
function Slider({ limit: { name, label, least, most, step, note } }) {
  const held = query.value.get(name);
  const set = (/** @type {string | null} */ next) => setQuery({ [name]: next });
  const typical = Math.max(least, Math.round((least + most) / 4 / step) * step);
  return html`<div class="slider">
    <label class="check" title=${note}><input type="checkbox" checked=${held !== null} onChange=${() => set(held === null ? String(typical) : null)} /> ${label}</label>
    <input type="range" aria-label=${label} min=${least} max=${most} step=${step} disabled=${held === null} value=${held ?? most}
      onInput=${(/** @type {any} */ event) => set(event.currentTarget.value)} />
    ${held === null
      ? html`<span class="number quiet">unchanged</span>`
      : html`<${DraftInput} type="number" class="number" aria-label=${`${label}, exact`} min=${least} step=${step} value=${held} commit=${set} />`}
  </div>`;
}
