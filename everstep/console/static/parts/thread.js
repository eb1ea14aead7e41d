/** The thread of a session or an execution: rows of its events, and what is being written. */

import { html, useMemo, useRef } from "../lib.js";
import { hasRow, laterIn, rowsOf } from "../rows.js";
import { BlockList } from "./block_list.js";
import { DraftRow, TextRow, ThreadRow } from "./thread_row.js";

/** @typedef {import("../stream_log.js").StreamLog} StreamLog */
/** @typedef {import("../rows.js").Row} Row */
/** @typedef {import("./thread_row.js").ExecutionInfo} ExecutionInfo */

/** Events of one block. */
export const BLOCK = 40;
/** How far after a call its end is looked for. */
const AHEAD = 400;

/** @param {{log: StreamLog, executions: Map<string, ExecutionInfo>, selected: string | null, select: (row: Row) => void,
 *   fork?: (row: Row) => void, isFull: boolean, label: string, handle: {current: import("./block_list.js").BlockListHandle | null}}} props */
export function Thread({ log, executions, selected, select, fork, isFull, label, handle }) {
  const version = log.version.value;
  const count = Math.ceil(log.last / BLOCK);
  const later = useMemo(() => laterIn(log.held()), [version]);
  /** Rows of blocks that are complete do not change. @type {{current: Map<string, Row[]>}} */
  const cache = useRef(new Map());
  const drafts = log.drafts.value;
  const rowsOfBlock = (/** @type {number} */ block) => {
    const from = block * BLOCK + 1;
    const to = Math.min(log.last, from + BLOCK - 1);
    if (to < log.first) return [];
    const envelopes = log.slice(Math.max(from, log.first), to);
    if (!envelopes) return null;
    const isSettled = log.last - to > AHEAD;
    const name = `${block} ${isFull}`;
    const known = isSettled && cache.current.get(name);
    if (known) return known;
    const rows = rowsOf(envelopes, later, isFull);
    if (isSettled) {
      cache.current.set(name, rows);
      const oldest = cache.current.keys().next().value;
      if (cache.current.size > 100 && oldest !== undefined) cache.current.delete(oldest);
    }
    return rows;
  };
  const renderBlock = (/** @type {number} */ block) => {
    const rows = rowsOfBlock(block);
    if (!rows) return html`<div class="block-loading" aria-hidden="true"></div>`;
    return rows.map((row) => {
      const execution = executions.get(row.envelope.execution_id);
      if (row.kind === "text") return html`<${TextRow} key=${row.key} row=${row} draft=${drafts.get(row.envelope.execution_id)} execution=${execution} />`;
      return html`<${ThreadRow} key=${row.key} row=${row} execution=${execution} isSelected=${selected === row.key} select=${select} fork=${fork} />`;
    });
  };
  const tail = [...drafts.values()]
    .filter((draft) => !hasRow(later, draft))
    .map((draft) => html`<${DraftRow} key=${draft.execution_id} draft=${draft} execution=${executions.get(draft.execution_id)} />`);
  return html`<${BlockList} count=${count} renderBlock=${renderBlock} estimate=${520} label=${label} handle=${handle}
    tail=${html`${tail}${log.error.value && html`<p class="error" role="alert">${log.error.value}</p>`}`} />`;
}
