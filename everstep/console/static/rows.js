/** What a thread shows of the events of a stream: messages, calls, steps, requests and notes, each as a row. */

import { plural } from "./format.js";

/** @typedef {import("./live.js").Envelope} Envelope */
/**
 * @typedef {object} Row
 * @property {"user" | "assistant" | "failed" | "request" | "text" | "call" | "step" | "note" | "event"} kind
 * @property {string} key
 * @property {Envelope} envelope
 * @property {Envelope} [result] the end of a call
 * @property {boolean} [isStored] whether the text of the step is stored
 */

const CALLED = new Set(["agent.tool.started", "agent.approval.requested", "agent.input.requested"]);
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
    case "agent.step.started":
      return "text";
    case "agent.tool.started":
      return "call";
    case "agent.step.completed":
      return "step";
    default:
      return NOTES.has(type) ? "note" : null;
  }
}

/** What later events say about earlier ones.
 * @typedef {object} Later
 * @property {Map<string, Envelope>} results the ends of calls, by the id of the call
 * @property {Map<string, Envelope>} starts the last start of each step: an attempt may have been given up
 * @property {Map<string, Envelope>} ends the end of each step
 * @property {Set<string>} called the steps of which a call began or waits for people: their text is stored
 */

/** @param {Envelope[]} envelopes @returns {Later} */
export function laterIn(envelopes) {
  const found = { results: new Map(), starts: new Map(), ends: new Map(), called: new Set() };
  /** The step that each execution is at. @type {Map<string, string>} */
  const steps = new Map();
  for (const each of envelopes) {
    if (each.type === "agent.tool.completed") found.results.set(each.payload.tool_call_id, each);
    if (CALLED.has(each.type)) found.called.add(steps.get(each.execution_id) ?? "");
    if (each.type === "agent.step.completed") found.ends.set(stepName(each), each);
    if (each.type !== "agent.step.started") continue;
    found.starts.set(stepName(each), each);
    steps.set(each.execution_id, stepName(each));
  }
  return found;
}

/** @param {{execution_id: string, payload: {[name: string]: any}}} event */
function stepName({ execution_id, payload }) {
  return `${execution_id}/${payload.step_number}`;
}

/** Whether a text is written into the row of its step. @param {Later} later
 * @param {{execution_id: string, step_number: number}} draft */
export function hasRow({ starts }, { execution_id, step_number }) {
  return starts.has(stepName({ execution_id, payload: { step_number } }));
}

/** The rows of some events. @param {Envelope[]} envelopes @param {Later} later
 * @param {boolean} isFull whether all events are shown @returns {Row[]} */
export function rowsOf(envelopes, later, isFull = false) {
  /** @type {Row[]} */
  const rows = [];
  for (const envelope of envelopes) {
    const kind = kindOf(envelope);
    if (isFull && (!kind || kind === "text")) rows.push({ kind: "event", key: envelope.id, envelope });
    if (!kind) continue;
    if (kind === "text") {
      // The text of the last step is the execution's answer, which has a row of its own.
      const name = stepName(envelope);
      const end = later.ends.get(name);
      const isLast = later.starts.get(name)?.id === envelope.id;
      if (isLast && end?.payload.has_tool_calls !== false)
        rows.push({ kind, key: `${envelope.id} text`, envelope, isStored: Boolean(end) || later.called.has(name) });
      continue;
    }
    const result = kind === "call" ? later.results.get(envelope.payload.tool_call_id) : undefined;
    rows.push({ kind, key: envelope.id, envelope, result });
  }
  return rows;
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
