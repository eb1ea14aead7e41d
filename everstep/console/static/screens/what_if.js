/** What other limits would have changed in past executions, without asking a model. */

import { post, sentence } from "../api.js";
import { compact, count, duration, plural, usd } from "../format.js";
import { html, useEffect, useState } from "../lib.js";
import { Badge } from "../parts/badge.js";
import { Empty, Failure, Page } from "../parts/page.js";
import { Table } from "../parts/table.js";
import { href, query, setQuery } from "../router.js";

export const title = "What-if";

/** @type {[string, string, number, number][]} */
const SLIDERS = [
  ["max_steps", "Maximum steps", 1, 60],
  ["max_tokens", "Maximum tokens", 1000, 500_000],
  ["max_retries", "Maximum failures in a row", 0, 10],
  ["repeated_call_limit", "Maximum identical calls in a row", 2, 50],
];
const SOON = 250;
const LAST = [50, 200, 1000];

/** The other policy, from the address. */
function changes() {
  return Object.fromEntries(SLIDERS.map(([name]) => [name, query.value.get(name)]).filter(([, value]) => value !== null).map(([name, value]) => [name, Number(value)]));
}

/** @param {{[name: string]: number}} change @param {number} limit */
function useWhatIf(change, limit) {
  const [state, setState] = useState(/** @type {{data?: any, error?: string, isBusy: boolean}} */ ({ isBusy: false }));
  const body = JSON.stringify({ ...change, limit, ...(query.value.get("agent") && { agent: query.value.get("agent") }) });
  useEffect(() => {
    if (Object.keys(change).length === 0) {
      setState({ isBusy: false });
      return undefined;
    }
    let isOver = false;
    setState((before) => ({ ...before, isBusy: true }));
    // A slider moves through many values: only the one at which it rests is asked for.
    const soon = setTimeout(() => {
      post("agent/what-if", JSON.parse(body)).then(
        (data) => !isOver && setState({ data, isBusy: false }),
        (error) => !isOver && setState({ error: sentence(error), isBusy: false }),
      );
    }, SOON);
    return () => {
      isOver = true;
      clearTimeout(soon);
    };
  }, [body]);
  return state;
}

export default function WhatIf() {
  const change = changes();
  const limit = Number(query.value.get("last") ?? 200);
  const { data, error, isBusy } = useWhatIf(change, limit);
  return html`<${Page} title="What-if" note="Past executions under other limits. Their recorded decisions are repeated; no model is called.">
    <section class="panel card sliders">
      ${SLIDERS.map(([name, label, least, most]) => html`<${Slider} key=${name} name=${name} label=${label} least=${least} most=${most} value=${change[name]} />`)}
      <label class="field"><span>Over the last</span><select onChange=${(/** @type {any} */ event) => setQuery({ last: event.currentTarget.value })}>
        ${LAST.map((each) => html`<option value=${each} selected=${each === limit}>${each} executions</option>`)}</select></label>
      <label class="field"><span>Agent</span><input placeholder="any" value=${query.value.get("agent") ?? ""} onChange=${(/** @type {any} */ event) => setQuery({ agent: event.currentTarget.value })} /></label>
    </section>
    ${error && html`<${Failure} error=${error} />`}
    ${!data && !error && html`<${Empty} icon="sliders" title=${isBusy ? "Repeating the decisions…" : "Move a slider"}>It shows which executions would have ended differently, and what that saves.<//>`}
    ${data && html`<div aria-busy=${isBusy}><${Result} data=${data} /></div>`}
  <//>`;
}

/** @param {{name: string, label: string, least: number, most: number, value: number | undefined}} props */
function Slider({ name, label, least, most, value }) {
  const set = (/** @type {string | null} */ next) => setQuery({ [name]: next });
  return html`<div class="slider">
    <label class="check"><input type="checkbox" checked=${value !== undefined} onChange=${() => set(value === undefined ? String(Math.round((least + most) / 4)) : null)} /> ${label}</label>
    <input type="range" aria-label=${label} min=${least} max=${most} step=${Math.max(1, Math.round((most - least) / 500))} disabled=${value === undefined} value=${value ?? most}
      onInput=${(/** @type {any} */ event) => set(event.currentTarget.value)} />
    <span class="number mono">${value === undefined ? "unchanged" : count(value)}</span>
  </div>`;
}

/** @param {{data: any}} props */
function Result({ data }) {
  return html`<section class="panel"><p class="because-end">${data.differing === 0 ? `All ${count(data.examined)} examined executions would have ended as they did.` : `${plural(data.differing, "execution")} of ${count(data.examined)} would have ended differently: ${count(data.ended_earlier)} earlier, ${count(data.ended_later)} later.`}</p>
      <dl class="totals"><div><dt>Tokens saved</dt><dd>${compact(data.tokens_saved)}</dd></div><div><dt>Cost saved</dt><dd>${usd(data.cost_saved)}</dd></div><div><dt>Work saved</dt><dd>${duration(data.seconds_saved * 1000)}</dd></div><div><dt>Unknown</dt><dd>${count(data.undetermined)}</dd></div></dl></section>
    ${data.executions.length > 0 &&
    html`<${Table} label="Executions that would differ"><thead><tr><th>Execution</th><th>Agent</th><th>Ends</th><th>Diverges after</th><th>Because</th><th class="number">Tokens</th></tr></thead>
      <tbody>${data.executions.map((/** @type {any} */ each) => html`<tr key=${each.id}><td><a href=${href(`executions/${each.id}?step=${each.parts_at_step}`)}><code>${each.id.slice(0, 8)}</code></a></td><td>${each.agent}</td>
        <td><${Badge} tone=${each.verdict === "earlier" ? "warn" : "busy"}>${each.verdict}<//></td><td class="nowrap">step ${each.parts_at_step}</td><td>${each.because}${each.note && html` <span class="quiet">${each.note}</span>`}</td><td class="number">${compact(each.tokens_saved)}</td></tr>`)}</tbody><//>`}`;
}
