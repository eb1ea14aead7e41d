/**
 * The stored events of a session or an execution. They are numbered without gaps, so any part is read by its numbers:
 * the log holds a bounded number of pages, however long the stream is. New events come over the gateway.
 */

import { get, sentence } from "./api.js";
import { signal } from "./lib.js";
import { watch } from "./live.js";

/** @typedef {import("./live.js").Envelope} Envelope */
/** @typedef {{execution_id: string, step_number: number, attempt: number, content: string}} DraftText */

export const PAGE = 200;
const MOST_PAGES = 30;

export class StreamLog {
  /** Changes whenever something of the log has changed. */
  version = signal(0);
  /** @type {import("@preact/signals").Signal<string | null>} */
  error = signal(null);
  isLoading = signal(true);
  /** What is being written, by execution. @type {import("@preact/signals").Signal<Map<string, DraftText>>} */
  drafts = signal(new Map());
  first = 1;
  last = 0;
  /** By the number of the page; the one that was used last comes last. @type {Map<number, Envelope[]>} */
  #pages = new Map();
  /** @type {Map<number, Promise<void>>} */
  #reading = new Map();
  /** @type {Set<(envelope: Envelope) => void>} */
  #listeners = new Set();
  #kind;
  #id;
  #stop = () => {};
  #isOver = false;

  /** @param {"session" | "execution"} kind @param {string} id */
  constructor(kind, id) {
    this.#kind = kind;
    this.#id = id;
  }

  /** Read the end, and follow what comes after it. */
  async open() {
    try {
      await this.#readEnd();
    } catch (error) {
      this.error.value = sentence(error);
    }
    this.isLoading.value = false;
    if (this.#isOver) return;
    this.#stop = watch(this.#kind, this.#id, {
      since: { epoch: null, seq: this.last },
      onevent: (envelope) => this.#append(envelope),
      ontext: (text) => this.#write(text),
      onreload: () => void this.#reload(),
      onerror: (message) => (this.error.value = message),
    });
  }

  close() {
    this.#isOver = true;
    this.#stop();
  }

  /** Call a function for each new event. @param {(envelope: Envelope) => void} listener @returns {() => void} */
  listen(listener) {
    this.#listeners.add(listener);
    return () => void this.#listeners.delete(listener);
  }

  /** The events with these numbers, as far as they are there; what is missing is read. @param {number} from
   * @param {number} to the last one @returns {Envelope[] | null} null while they are read */
  slice(from, to) {
    /** @type {Envelope[]} */
    const found = [];
    for (let page = pageOf(from); page <= pageOf(to); page += 1) {
      const items = this.#pages.get(page);
      if (!items) {
        void this.read(page);
        return null;
      }
      this.#touch(page, items);
      for (const each of items) if (each.seq !== null && each.seq >= from && each.seq <= to) found.push(each);
    }
    return found;
  }

  /** The events that are there, without reading any. @returns {Envelope[]} */
  held() {
    return [...this.#pages].sort(([one], [other]) => one - other).flatMap(([, items]) => items);
  }

  /** The number of the last event at or before a time. @param {number} at in milliseconds */
  async seqAt(at) {
    let [low, high] = [this.first, this.last];
    while (low < high) {
      const middle = Math.ceil((low + high) / 2);
      await this.read(pageOf(middle));
      const found = this.slice(middle, middle)?.[0];
      if (!found) return low;
      if (Date.parse(found.timestamp) <= at) low = middle;
      else high = middle - 1;
    }
    return low;
  }

  /** Read a page, once. @param {number} page @returns {Promise<void>} */
  read(page) {
    if (this.#pages.has(page)) return Promise.resolve();
    const known = this.#reading.get(page);
    if (known) return known;
    const reading = this.#readPage(page).finally(() => this.#reading.delete(page));
    this.#reading.set(page, reading);
    return reading;
  }

  /** @param {number} page @returns {Promise<void>} */
  async #readPage(page) {
    try {
      const after = page * PAGE;
      const found = await get(`agent/streams/${this.#id}/envelopes`, { after, limit: PAGE });
      this.first = found.first_seq || 1;
      this.last = Math.max(this.last, found.last_seq);
      const items = found.items.filter((/** @type {Envelope} */ each) => (each.seq ?? 0) <= after + PAGE);
      this.error.value = null;
      const end = items.at(-1)?.seq ?? after;
      // What came over the gateway while this was read is not in it: read it again.
      if (end < Math.min(this.last, after + PAGE) && end >= this.first) return await this.#readPage(page);
      this.#keep(page, items);
    } catch (error) {
      this.error.value = sentence(error);
    }
  }

  async #readEnd() {
    const probe = await get(`agent/streams/${this.#id}/envelopes`, { limit: 1 });
    this.first = probe.first_seq || 1;
    this.last = probe.last_seq;
    const page = pageOf(Math.max(1, this.last));
    await Promise.all([page - 1, page].filter((each) => each >= 0).map((each) => this.read(each)));
    this.version.value += 1;
  }

  /** The stored events may have changed: nothing that was read is valid. */
  async #reload() {
    this.#pages.clear();
    this.drafts.value = new Map();
    this.last = 0;
    try {
      await this.#readEnd();
    } catch (error) {
      this.error.value = sentence(error);
    }
  }

  /** @param {Envelope} envelope */
  #append(envelope) {
    const seq = envelope.seq ?? 0;
    this.last = Math.max(this.last, seq);
    const page = pageOf(seq);
    // A page is whole up to its end, or not there: its first event begins it.
    const items = this.#pages.get(page) ?? (seq === page * PAGE + 1 ? [] : null);
    if (items && (items.at(-1)?.seq ?? page * PAGE) === seq - 1) this.#keep(page, [...items, envelope]);
    this.#settle(envelope);
    for (const listener of this.#listeners) listener(envelope);
    this.version.value += 1;
  }

  /** @param {DraftText} text */
  #write(text) {
    const drafts = new Map(this.drafts.peek());
    if (text.content === "") drafts.delete(text.execution_id);
    else drafts.set(text.execution_id, text);
    this.drafts.value = drafts;
  }

  /** The stored event wins over the text that was streamed. @param {Envelope} envelope */
  #settle({ type, execution_id, payload }) {
    const draft = this.drafts.peek().get(execution_id);
    if (!draft) return;
    const ends = type === "agent.status" && ["completed", "stopped", "failed", "cancelled"].includes(payload.status);
    const isStep = type === "agent.step.completed" && payload.step_number >= draft.step_number;
    if (!ends && !isStep && type !== "agent.attempt.superseded") return;
    const drafts = new Map(this.drafts.peek());
    drafts.delete(execution_id);
    this.drafts.value = drafts;
  }

  /** @param {number} page @param {Envelope[]} items */
  #keep(page, items) {
    this.#touch(page, items);
    const end = pageOf(this.last);
    for (const old of this.#pages.keys()) {
      if (this.#pages.size <= MOST_PAGES) break;
      if (old !== end) this.#pages.delete(old);
    }
    this.version.value += 1;
  }

  /** @param {number} page @param {Envelope[]} items */
  #touch(page, items) {
    this.#pages.delete(page);
    this.#pages.set(page, items);
  }
}

/** @param {number} seq */
function pageOf(seq) {
  return Math.floor((Math.max(1, seq) - 1) / PAGE);
}
