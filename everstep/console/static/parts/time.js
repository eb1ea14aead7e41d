/** Times that stay right while they are shown. */

import { ago, between, duration, exactTime } from "../format.js";
import { html, signal, useEffect } from "../lib.js";

const minute = signal(Date.now());
const second = signal(Date.now());
let tickers = 0;
/** @type {ReturnType<typeof setInterval> | undefined} */
let ticking;

setInterval(() => (minute.value = Date.now()), 30_000);

/** How long ago; the exact time is in the tooltip. @param {{at: string}} props */
export function Ago({ at }) {
  return html`<time datetime=${at} title=${exactTime(at)}>${ago(at, minute.value)}</time>`;
}

/** How long something takes or took. @param {{from: string | null, to: string | null}} props */
export function Took({ from, to }) {
  return from ? (to ? html`<span>${duration(between(from, to))}</span>` : html`<${Running} from=${from} />`) : null;
}

/** @param {{from: string}} props */
function Running({ from }) {
  useEffect(() => {
    tickers += 1;
    ticking ??= setInterval(() => (second.value = Date.now()), 1000);
    return () => {
      tickers -= 1;
      if (tickers > 0) return;
      clearInterval(ticking);
      ticking = undefined;
    };
  }, []);
  return html`<span>${duration(second.value - Date.parse(from))}</span>`;
}
