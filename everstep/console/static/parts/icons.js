/** Icons: outlines on a grid of 16, in the colour of the text beside them. */

import { html } from "../lib.js";

/** @type {Record<string, string>} */
const PATHS = {
  inbox: "M2 9h3.5l1 2h3l1-2H14M3.5 3h9L14 9v4H2V9z",
  chat: "M2.5 3h11v8H7l-3 2.5V11H2.5z",
  list: "M5.5 4H14M5.5 8H14M5.5 12H14M2 4h.01M2 8h.01M2 12h.01",
  sliders: "M2 5h6m4 0h2M2 11h2m4 0h6M8 5a2 2 0 1 0 4 0 2 2 0 0 0-4 0M4 11a2 2 0 1 0 4 0 2 2 0 0 0-4 0",
  columns: "M2.5 3h4.5v10H2.5zM9 3h4.5v10H9z",
  chart: "M2 13.5h12M4 11V7m4 4V3m4 8V5.5",
  agent: "M4 6h8v6.5H4zM8 6V3m-1.5 6h.01m2.99 0h.01M1.5 8.5v2m13-2v2",
  pulse: "M1.5 8.5h3l2-5 3 9 2-4h3",
  check: "M3 8.5l3.5 3.5L13 4.5",
  cross: "M4 4l8 8m0-8l-8 8",
  clock: "M8 4.5V8l2.5 1.5M2 8a6 6 0 1 0 12 0A6 6 0 0 0 2 8",
  wrench: "M13.5 4.5a3.3 3.3 0 0 1-4.4 4L4.6 13 3 11.4l4.5-4.5a3.3 3.3 0 0 1 4-4.4L9.5 4.6l.4 1.5 1.5.4z",
  chevron: "M6 3.5L10.5 8 6 12.5",
  sun: "M8 1.5v1.5m0 10v1.5M1.5 8H3m10 0h1.5M3.4 3.4l1 1m7.2 7.2l1 1m0-9.2l-1 1m-7.2 7.2l-1 1M5 8a3 3 0 1 0 6 0 3 3 0 0 0-6 0",
  moon: "M13.5 9.5A5.8 5.8 0 0 1 6.5 2.5a5.8 5.8 0 1 0 7 7z",
  screen: "M2 3h12v8H2zM6 13.5h4",
  question: "M6 6a2 2 0 1 1 2.7 1.9c-.5.2-.7.6-.7 1.1v.5m0 2.5h.01M2 8a6 6 0 1 0 12 0A6 6 0 0 0 2 8",
  coin: "M8 4.5v7m2-5.5C9.5 5.3 6 5 6 6.7 6 8.6 10 7.400 10 9.300 10 11 6.500 10.700 6 10M2 8a6 6 0 1 0 12 0A6 6 0 0 0 2 8",
  fork: "M5 3v4a3 3 0 0 0 3 3m3-7v4a3 3 0 0 1-3 3m0 0v3.500M3.500 3h3m3 0h3",
  out: "M9.500 2.500H13.500V6.500M13.500 2.500L7.500 8.500M11.500 9.500V13.500H2.500V4.500H6.500",
  send: "M2.500 8h10m-4-4.500L13 8l-4.500 4.500",
  clip: "M12.500 7.500L7.700 12.300a2.800 2.800 0 0 1-4-4L8.800 3.200a1.900 1.900 0 0 1 2.700 2.700L6.600 10.800a.9.900 0 0 1-1.300-1.300L9.600 5.200",
  panel: "M2 3h12v10H2zM10 3v10",
  user: "M8 8a2.500 2.500 0 1 0 0-5 2.500 2.500 0 0 0 0 5zM3 13.500c.6-2.500 2.500-3.500 5-3.500s4.400 1 5 3.500",
  leave: "M6.500 2.500h-4v11h4M6 8h8m-3-3l3 3-3 3",
};

/** @param {{name: string, size?: number}} props */
export function Icon({ name, size = 16 }) {
  return html`<svg class="icon" width=${size} height=${size} viewBox="0 0 16 16" aria-hidden="true" focusable="false">
    <path d=${PATHS[name] ?? ""} fill="none" stroke="currentColor" stroke-width="1.5" stroke-linecap="round" stroke-linejoin="round" />
  </svg>`;
}
