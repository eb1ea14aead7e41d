/** The place in a session that the address names, such as a search result: shown, and selected. */

import { useEffect } from "./lib.js";
import { BLOCK } from "./parts/thread.js";
import { query } from "./router.js";
import { laterIn, rowsOf } from "./rows.js";

/** @typedef {import("./live.js").Envelope} Envelope */
/** @typedef {import("./rows.js").Row} Row */
/** @typedef {{current: import("./parts/block_list.js").BlockListHandle | null}} Handle */

/** Frames in which the row may appear. */
const FRAMES = 60;

/** @param {import("./stream_log.js").StreamLog} log @param {Handle} handle @param {(row: Row) => void} select */
export function usePlace(log, handle, select) {
  const at = Date.parse(query.value.get("at") ?? "");
  const isReady = !log.isLoading.value && !Number.isNaN(at);
  useEffect(() => {
    if (!isReady) return undefined;
    let isOver = false;
    const show = async () => {
      const near = await log.seqAt(at);
      if (isOver) return;
      const held = log.held();
      // Texts of steps are not selected.
      const row = rowNear(rowsOf(held, laterIn(held)).filter(({ kind }) => kind !== "text"), at);
      handle.current?.toBlock(Math.floor(((row?.envelope.seq ?? near) - 1) / BLOCK));
      if (!row) return;
      select(row);
      reveal(FRAMES, () => isOver);
    };
    void show();
    return () => {
      isOver = true;
    };
  }, [log, isReady, at]);
}

/** The row that the address names, or else the one of the execution that is nearest in time. @param {Row[]} rows @param {number} at */
function rowNear(rows, at) {
  const own = rows.filter(({ envelope }) => envelope.execution_id === query.peek().get("execution"));
  const distance = (/** @type {Row} */ { envelope }) => Math.abs(Date.parse(envelope.timestamp) - at);
  // A call that waits for a decision has not started: its request is shown instead.
  const requests = query.peek().has("call") ? own.filter(({ kind }) => kind === "request") : [];
  const nearest = (requests.length ? requests : own).sort((a, b) => distance(a) - distance(b))[0];
  return own.find(({ envelope }) => isNamed(envelope)) ?? nearest;
}

/** Whether the address names this event. @param {Envelope} envelope */
function isNamed({ type, payload }) {
  const call = query.peek().get("call");
  if (call) return type === "agent.tool.started" && payload.tool_call_id === call;
  const step = Number(query.peek().get("step"));
  return step ? type === "agent.step.completed" && payload.step_number === step : type === "message.received";
}

/** Scroll to the selected row once it is there. @param {number} frames @param {() => boolean} isOver */
function reveal(frames, isOver) {
  const row = document.querySelector(".row.selected");
  if (row) row.scrollIntoView({ block: "center" });
  else if (frames > 0 && !isOver()) requestAnimationFrame(() => reveal(frames - 1, isOver));
}
