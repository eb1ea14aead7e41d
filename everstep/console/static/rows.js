/** What a thread shows of the events of a stream: messages, calls, steps, requests and notes, each as a row. */

import { plural } from "./format.js";

/** @typedef {import("./live.js").Envelope} Envelope */
/**
 * @typedef {object} Row
 * @property {"user" | "assistant" | "failed" | "request" | "call" | "step" | "note" | "event"} kind
 * @property {string} key
 * @property {Envelope} envelope
 * @property {Envelope} [result] the end of a call
 */

const NOTES = new Set(["execution.cancelled", "execution.resumed", "agent.attempt.superseded"]);

/** The row of an event; null if it says nothing that another row does not. @param {Envelope} envelope
 * @returns {Row["kind"] | null} */
function kindOf({ type, payload }) {
  switch (type) {
    case "message.received":
    case "input.received":
      return "user";
    case "execution.completed":
      return "assistant";
    case "execution.failed":
      return "failed";
    case "execution.paused":
      return payload.metadata?.request_id ? "request" : null;
    case "agent.tool.started":
      return "call";
    case "agent.step.completed":
      return "step";
    default:
      return NOTES.has(type) ? "note" : null;
  }
}

/** The rows of some events. @param {Envelope[]} envelopes @param {(id: string) => Envelope | undefined} resultOf
 * @param {boolean} isFull whether all events are shown @returns {Row[]} */
export function rowsOf(envelopes, resultOf, isFull = false) {
  /** @type {Row[]} */
  const rows = [];
  for (const envelope of envelopes) {
    const kind = kindOf(envelope) ?? (isFull ? "event" : null);
    if (!kind) continue;
    const result = kind === "call" ? resultOf(envelope.payload.tool_call_id) : undefined;
    rows.push({ kind, key: envelope.id, envelope, result });
  }
  return rows;
}

/** The ends of calls among these events, by the id of the call. @param {Envelope[]} envelopes */
export function resultsIn(envelopes) {
  /** @type {Map<string, Envelope>} */
  const results = new Map();
  for (const each of envelopes) if (each.type === "agent.tool.completed") results.set(each.payload.tool_call_id, each);
  return results;
}

/** One line about any event. @param {Envelope} envelope */
export function summary({ type, payload }) {
  if (typeof payload.content === "string") return payload.content;
  switch (type) {
    case "agent.status":
      return payload.detail ?? `${payload.previous_status} → ${payload.status}`;
    case "agent.step.started":
      return `step ${payload.step_number} reads ${plural(payload.message_count, "message")}`;
    case "agent.continuation":
      return payload.because ?? `step ${payload.step_number}: ${payload.resolved_by}`;
    case "agent.attempt.superseded":
      return `attempt ${payload.attempt ?? ""} of step ${payload.step_number} was given up, attempt ${payload.next_attempt} follows`;
    case "agent.tool.completed":
      return `${payload.tool_name}: ${payload.error ?? payload.result_summary ?? ""}`;
    default:
      return payload.tool_name ?? payload.prompt ?? "";
  }
}
