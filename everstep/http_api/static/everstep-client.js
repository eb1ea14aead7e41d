/**
 * Watches agents: the protocol `everstep.v1`, and the reader's rule of docs/streaming.md. Needs nothing else.
 *
 *     import { connect } from "/everstep-client.js";
 *
 *     const client = connect({
 *       url: "wss://agents.example/v1",
 *       token: async () => (await fetch("/my/token")).text(), // asked anew for each connection
 *     });
 *     const subscription = client.subscribe(`agent.session.${id}`, {
 *       since: JSON.parse(sessionStorage.getItem(id) ?? "null"), // or null: from now on
 *       onreload: () => loadSession(id), // what was read is void, or nothing was: ask the HTTP API
 *       onevent: (envelope) => show(envelope), // what is stored: each once, in order
 *       ontext: ({ execution_id, content }) => showDraft(execution_id, content), // all of the text so far
 *     });
 *     addEventListener("pagehide", () => sessionStorage.setItem(id, JSON.stringify(subscription.position)));
 *
 * Connections that are cut come back by themselves, and go on where they were.
 */

/** @typedef {[step_number: number, attempt: number]} Attempted */
/** @typedef {[step_number: number, attempt: number, next_index: number]} Place */
/** @typedef {"applied" | "dropped" | "resync"} Taken */
/** @typedef {{[name: string]: any}} Fields */
/** @typedef {{execution_id: string, step_number: number, attempt: number, next_index: number}} DraftPosition */
/** @typedef {{epoch: string | null, seq: number, drafts?: DraftPosition[]}} Position */
/** @typedef {{type: string, session_id: string | null, execution_id: string, timestamp: string, payload: Fields,
 *             id: string, seq: number | null}} Envelope */

const REMEMBERED_ENDS = 1000;
const MAX_DRAFTS = 100;
const TERMINAL = new Set(["completed", "stopped", "failed", "cancelled"]);

/** After every attempt: nothing more is written. @type {Attempted} */
const ENDED = [Infinity, 0];

/** Below zero where the first comes earlier, as far as it goes. @param {number[]} one @param {number[]} other */
function compare(one, other) {
  const at = one.findIndex((number, index) => number !== other[index]);
  return at < 0 ? 0 : one[at] - other[at];
}

/** @param {Fields} fields @param {string} name @returns {number} */
function count(fields, name, minimum = 0) {
  const value = fields[name];
  if (Number.isSafeInteger(value) && value >= minimum) return value;
  throw new TypeError(`${name} is ${JSON.stringify(value)}, and no whole number of at least ${minimum}`);
}

/** @param {Fields} fields @param {string} name @returns {string} */
function text(fields, name) {
  const value = fields[name];
  if (typeof value === "string" && !/[\0\p{Surrogate}]/u.test(value)) return value;
  throw new TypeError(`${name} is no text`);
}

/** @param {Fields} payload @param {string} index @returns {Place} */
function placeOf(payload, index) {
  return [count(payload, "step_number"), count(payload, "attempt", 1), count(payload, index)];
}

/** The first attempt that may still write after what is stored. @param {string} type @param {Fields} payload */
function fenceOf(type, payload) {
  /** @returns {Attempted} */
  const from = (/** @type {number} */ step, /** @type {number} */ attempt) => [step, attempt];
  if (type === "agent.step.completed") return from(count(payload, "step_number") + 1, 0);
  if (type === "agent.attempt.superseded")
    return from(count(payload, "step_number"), count(payload, "next_attempt"));
  if (type !== "agent.status") return null;
  if (payload.status === undefined) throw new TypeError("status is missing");
  return TERMINAL.has(payload.status) ? ENDED : null;
}

/** What the latest attempt of an execution's latest step wrote, as far as it is known. */
class Draft {
  /** Nothing of an attempt before this one is accepted any more. @type {Attempted} */
  floor = [0, 0];
  /** Which chunk comes next. @type {Place} */
  place = [0, 0, 0];
  content = "";
  is_complete = false;

  /** Whether its step is over: the stored message wins over the text. */
  get isSettled() {
    return compare(this.floor, this.place) > 0;
  }

  /** A chunk. @param {Place} at @param {string} content @param {boolean} is_complete @returns {Taken} */
  take([step_number, attempt, index], content, is_complete) {
    if (compare(this.floor, [step_number, attempt]) > 0) return "dropped";
    if (compare([step_number, attempt], this.place)) this.#begin([step_number, attempt]);
    if (index !== this.place[2]) return index < this.place[2] ? "dropped" : "resync";
    this.content += content;
    this.place = [step_number, attempt, index + 1];
    this.is_complete = is_complete;
    return "applied";
  }

  /** A snapshot: all that was written before this place. @param {Place} at @param {string} content @returns {Taken} */
  replace(at, content) {
    if (compare(this.floor, at) > 0 || compare(at, this.place) <= 0) return "dropped";
    this.#begin([at[0], at[1]]);
    this.content = content;
    this.place = at;
    return "applied";
  }

  /** Whatever was written before this attempt is over. @param {Attempted} floor */
  fence(floor) {
    if (compare(floor, this.floor) <= 0) return;
    if (floor[0] === this.place[0]) this.#begin(floor);
    this.floor = floor;
  }

  /** The stored message of this step wins over the text. @param {number} step_number @param {string} content */
  settle(step_number, content) {
    if (step_number === this.place[0]) {
      this.content = content;
      this.is_complete = true;
    }
    this.fence([step_number + 1, 0]);
  }

  /** @param {Attempted} attempted */
  #begin(attempted) {
    this.floor = attempted;
    this.place = [...attempted, 0];
    this.content = "";
    this.is_complete = false;
  }
}

/** Reads one stream by the reader's rule: without a gap, nothing twice. It knows no sockets. */
export class Reader {
  /** What is being written, by execution. @type {Map<string, Draft>} */
  drafts = new Map();
  /** @type {Set<string>} */
  #ended = new Set();

  /** @param {Position | null} [since] where to go on from; of its drafts there is no text, so they come anew */
  constructor(since) {
    this.seq = since ? count(since, "seq") : 0;
    this.epoch = since?.epoch == null ? null : text(since, "epoch");
  }

  /** Where to go on from. @returns {Position} */
  get position() {
    const drafts = [];
    for (const [execution_id, { isSettled, place }] of this.drafts) {
      const [step_number, attempt, next_index] = place;
      if (!isSettled) drafts.push({ execution_id, step_number, attempt, next_index });
    }
    return { epoch: this.epoch, seq: this.seq, ...(drafts.length && { drafts }) };
  }

  /** What follows comes after this; where nothing was recovered, what was read so far is void.
   * @param {string} epoch @param {number} seq @param {boolean} recovered */
  joined(epoch, seq, recovered) {
    this.epoch = epoch;
    if (recovered) return;
    this.seq = seq;
    this.drafts.clear();
    this.#ended.clear();
  }

  /** The next envelope that came, stored or streamed; throws if it cannot be read.
   * @param {Envelope} envelope @returns {Taken} */
  take({ type, execution_id, payload, seq }) {
    const [isChunk, isSnapshot] = [type === "agent.stream.chunk", type === "agent.stream.snapshot"];
    if (seq != null) {
      count({ seq }, "seq", 1);
      if (isChunk || isSnapshot) throw new TypeError(`${type} is never stored`);
      if (seq !== this.seq + 1) return seq <= this.seq ? "dropped" : "resync";
      const floor = fenceOf(type, payload);
      this.seq = seq;
      if (floor === ENDED) this.#end(execution_id);
      else if (floor) this.#draft(execution_id).fence(floor);
      return "applied";
    }
    if (this.#ended.has(execution_id) || !(isChunk || isSnapshot)) return "dropped";
    const at = placeOf(payload, isChunk ? "chunk_index" : "next_index");
    const content = text(payload, "content");
    if (isSnapshot) return this.#draft(execution_id).replace(at, content);
    if (payload.is_complete === undefined) throw new TypeError("is_complete is missing");
    return this.#draft(execution_id).take(at, content, Boolean(payload.is_complete));
  }

  /** The stored message of a completed step, wherever it was read.
   * @param {string} execution_id @param {number} step_number @param {string} content */
  settle(execution_id, step_number, content) {
    this.drafts.get(execution_id)?.settle(step_number, content);
  }

  /** @param {string} execution_id */
  #end(execution_id) {
    this.drafts.delete(execution_id);
    this.#ended.add(execution_id);
    const [oldest] = this.#ended;
    if (this.#ended.size > REMEMBERED_ENDS) this.#ended.delete(oldest);
  }

  /** @param {string} execution_id */
  #draft(execution_id) {
    const draft = this.drafts.get(execution_id) ?? new Draft();
    this.drafts.set(execution_id, draft);
    return draft;
  }
}

const CHANNEL = /^agent\.(?:(session|execution)\.)?([0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12})$/;

/** Which stream a channel means, however it is called. @param {string} channel */
function streamOf(channel) {
  const found = CHANNEL.exec(channel);
  if (found) return `${found[1] ?? "session"}.${found[2]}`;
  throw new TypeError(`${channel} is no channel; use agent.session.{id} or agent.execution.{id}`);
}

/** Call what a page gave us; what it throws is reported as its own, and stops nothing here.
 * @template {any[]} A @param {((...args: A) => unknown) | undefined} callback @param {A} args */
function tell(callback, ...args) {
  try {
    callback?.(...args);
  } catch (error) {
    queueMicrotask(() => {
      throw error;
    });
  }
}

/** @param {number} seconds with more than fits into a timer, it would be over at once @param {() => void} then */
function later(seconds, then) {
  return setTimeout(then, Math.min(seconds * 1000, 2 ** 31 - 1));
}

/** When a token expires, in seconds; NaN if it does not say so. @param {string} token @returns {number} */
function expiryOf(token) {
  try {
    return Number(JSON.parse(atob(token.split(".")[1].replaceAll("-", "+").replaceAll("_", "/"))).exp);
  } catch {
    return NaN; // Not everything that opens doors is a JWT.
  }
}

/** @typedef {"connecting" | "live" | "closed"} State */
/** @typedef {{execution_id: string, step_number: number, attempt: number, content: string, is_complete: boolean}} Text */
/**
 * @typedef {object} Watching
 * @property {Position | null} [since] where to go on from; without it, from now on
 * @property {(envelope: Envelope) => unknown} [onevent] what is stored: each once, in order
 * @property {(text: Text) => unknown} [ontext] all of a step's text so far; empty where it is begun anew
 * @property {(from: {epoch: string, seq: number}) => unknown} [onreload] forget what is shown, load it from the API
 * @property {(message: string) => unknown} [onerror] it may not be watched
 * @property {(state: State) => unknown} [onstate]
 */

/** A channel that is watched; made by `subscribe`. */
class Subscription {
  /** @type {State} */
  state = "connecting";
  isJoining = false;
  #watching;
  #send;
  #hasPlace;
  /** @type {ReturnType<typeof setTimeout> | undefined} */
  #resync;
  #resyncDelay = 0;
  #resyncAt = -Infinity;
  /** @type {Set<(envelope: Envelope | null) => void>} */
  #iterators = new Set();

  /** @param {string} channel @param {Watching} watching @param {(frame: Fields) => void} send @param {() => void} leave */
  constructor(channel, watching, send, leave) {
    this.channel = channel;
    this.reader = new Reader(watching.since);
    /** Watch no longer. */
    this.unsubscribe = leave;
    this.#watching = watching;
    this.#send = send;
    this.#hasPlace = watching.since != null;
  }

  /** Where to go on from: a page keeps it as JSON, and gives it as `since` when it is loaded again. */
  get position() {
    return this.reader.position;
  }

  /** What is stored, from now on, until it is watched no longer. @returns {AsyncGenerator<Envelope>} */
  async *[Symbol.asyncIterator]() {
    /** @type {(Envelope | null)[]} */
    const queue = this.state === "closed" ? [null] : [];
    let wake = () => {};
    const add = (/** @type {Envelope | null} */ envelope) => void (queue.push(envelope), wake());
    this.#iterators.add(add);
    try {
      for (let envelope; ; ) {
        while (!queue.length) await new Promise((resolve) => (wake = () => resolve(undefined)));
        if (!(envelope = queue.shift())) return;
        yield envelope;
      }
    } finally {
      this.#iterators.delete(add);
    }
  }

  // What follows is called by the client.

  join() {
    const { drafts, ...since } = this.position;
    this.isJoining = true;
    // Texts that do not fit into a position come anew.
    const place = { ...since, ...(drafts && { drafts: drafts.slice(-MAX_DRAFTS) }) };
    this.#send({ type: "sub", channel: this.channel, ...(this.#hasPlace && { since: place }) });
  }

  /** @param {Fields} answer */
  joined(answer) {
    const [epoch, seq] = [text(answer, "epoch"), count(answer, "seq")];
    this.isJoining = false;
    this.#hasPlace = true;
    this.reader.joined(epoch, seq, answer.recovered);
    this.turn("live");
    if (!answer.recovered) tell(this.#watching.onreload, { epoch, seq });
  }

  /** @param {State} state @param {string} [error] */
  turn(state, error) {
    if (error !== undefined) tell(this.#watching.onerror, error);
    if (state === this.state) return;
    this.state = state;
    this.isJoining = false;
    clearTimeout(this.#resync);
    this.#resync = undefined;
    if (state === "closed") this.#iterators.forEach((add) => add(null));
    tell(this.#watching.onstate, state);
  }

  /** @param {Envelope} envelope */
  take(envelope) {
    const { execution_id, seq } = envelope;
    const before = this.reader.drafts.get(execution_id)?.place;
    const taken = this.reader.take(envelope);
    const draft = this.reader.drafts.get(execution_id);
    if (taken === "applied" && seq != null) {
      tell(this.#watching.onevent, envelope);
      this.#iterators.forEach((add) => add(envelope));
    }
    if (draft && !draft.isSettled && draft.place !== before) {
      const { place, content, is_complete } = draft;
      const [step_number, attempt] = place;
      tell(this.#watching.ontext, { execution_id, step_number, attempt, content, is_complete });
    }
    if (taken === "resync") this.#resyncSoon();
  }

  /** Something is missing: subscribe again from the position, and where that does not help, ever more slowly. */
  #resyncSoon() {
    if (this.isJoining || this.#resync !== undefined) return;
    const ago = performance.now() / 1000 - this.#resyncAt;
    this.#resyncDelay = ago > 60 ? 0 : Math.min(30, Math.max(0.25, 2 * this.#resyncDelay));
    this.#resync = later(Math.max(0, this.#resyncDelay - ago), () => {
      this.#resync = undefined;
      this.#resyncAt = performance.now() / 1000;
      this.join();
    });
  }
}

/**
 * @typedef {object} Options
 * @property {string} url of the gateway, with or without its path `/v1`
 * @property {string | (() => string | Promise<string>)} token
 * @property {(message: string) => unknown} [onerror] what went wrong, whether or not it is tried again
 * @property {(state: State) => unknown} [onstate]
 * @property {new (url: string, protocol: string) => WebSocket} [WebSocket] where there is none, or another is wanted
 * @property {number} [retryMin] seconds until the second attempt to connect; from then on they double
 * @property {number} [retryMax] at most so many
 * @property {number} [patience] seconds to wait for any sign of life that was asked for
 */

/** The endpoint of a gateway. @param {string} url */
const endpoint = (url) => {
  const address = url.replace(/\/+$/, "");
  return address.endsWith("/v1") ? address : `${address}/v1`;
};

/** One connection, which comes back, and what is watched over it; made by `connect`. */
class Client {
  /** @type {State} */
  state = "connecting";
  /** @type {Map<string, Subscription>} */
  #subscriptions = new Map();
  /** @type {WebSocket | undefined} */
  #socket;
  /** Counts connections, so that nothing of an earlier one is taken for one of this one. */
  #turn = 0;
  #failures = 0;
  #liveSince = Infinity;
  #pingAfter = Infinity;
  /** @type {{[name in "connect" | "ping" | "silence" | "refresh"]?: ReturnType<typeof setTimeout>}} */
  #timers = {};
  #options;

  /** @param {Options} options */
  constructor(options) {
    this.#options = { retryMin: 1, retryMax: 30, patience: 10, WebSocket: globalThis.WebSocket, ...options };
    void this.#connect();
  }

  /** Watch a channel. @param {string} channel @param {Watching} [watching] */
  subscribe(channel, watching = {}) {
    const stream = streamOf(channel);
    if (this.#subscriptions.has(stream)) throw new Error(`${channel} is watched already`);
    if (this.state === "closed") throw new Error("the connection is closed");
    const send = (/** @type {Fields} */ frame) => this.#send(frame);
    const subscription = new Subscription(channel, watching, send, () => {
      if (this.#subscriptions.get(stream) !== subscription) return;
      this.#subscriptions.delete(stream);
      if (this.state === "live") this.#send({ type: "unsub", channel });
      subscription.turn("closed");
    });
    this.#subscriptions.set(stream, subscription);
    if (this.state === "live") subscription.join();
    return subscription;
  }

  /** Watch nothing any more. */
  close() {
    this.#drop();
    this.#become("closed");
    this.#subscriptions.clear();
  }

  async #connect() {
    const { url, WebSocket } = this.#options;
    const turn = ++this.#turn;
    try {
      const token = await this.#token();
      if (turn !== this.#turn) return;
      const socket = (this.#socket = new WebSocket(endpoint(url), "everstep.v1"));
      socket.onopen = () => turn === this.#turn && this.#send({ type: "hello", token });
      socket.onmessage = ({ data }) => turn === this.#turn && this.#received(data, token);
      socket.onclose = ({ code, reason }) => turn === this.#turn && this.#lost(code, reason);
      socket.onerror = () => {}; // It is closed as well.
      this.#expectLife();
    } catch (error) {
      if (turn === this.#turn) this.#lost(0, String(error));
    }
  }

  async #token() {
    const { token } = this.#options;
    return typeof token === "function" ? await token() : token;
  }

  /** @param {Fields} frame */
  #send(frame) {
    this.#socket?.send(JSON.stringify(frame));
    this.#pingInTime();
  }

  /** The gateway lets go of those whom it does not hear. */
  #pingInTime() {
    clearTimeout(this.#timers.ping);
    this.#timers.ping = later(this.#pingAfter, () => {
      this.#send({ type: "ping" });
      this.#expectLife();
    });
  }

  /** Whatever comes next shows that somebody is there; if nothing comes, the connection is lost. */
  #expectLife() {
    this.#timers.silence ??= later(this.#options.patience, () => this.#lost(0, "nothing was heard in time"));
  }

  /** @param {unknown} data @param {string} token */
  #received(data, token) {
    clearTimeout(this.#timers.silence);
    delete this.#timers.silence;
    try {
      const frame = JSON.parse(typeof data === "string" ? data : "");
      if (frame.payload) this.#news(frame);
      else this.#answered(frame, token);
    } catch (error) {
      tell(this.#options.onerror, `a frame cannot be read: ${error}`);
    }
  }

  /** @param {Envelope} envelope */
  #news(envelope) {
    const { session_id, execution_id } = envelope;
    const stream = session_id == null ? `execution.${execution_id}` : `session.${session_id}`;
    const subscription = this.#subscriptions.get(stream);
    if (subscription?.state === "live") subscription.take(envelope);
  }

  /** @param {Fields} frame @param {string} token */
  #answered(frame, token) {
    const stream = frame.channel && streamOf(frame.channel);
    const subscription = this.#subscriptions.get(stream);
    if (frame.type === "welcome") {
      this.#liveSince = performance.now();
      this.#pingAfter = frame.ping_after || Infinity;
      this.#become("live");
      this.#pingInTime();
      this.#refreshInTime(token);
      for (const each of this.#subscriptions.values()) each.join();
    } else if (frame.type === "sub_ok") {
      subscription?.joined(frame);
    } else if (frame.type === "sub_error") {
      this.#subscriptions.delete(stream);
      subscription?.turn("closed", frame.message);
    } else if (frame.type === "bye") {
      this.#lost(frame.code, frame.reason, frame.reconnect_in);
    }
  }

  /** Ask for a newer token a minute before this one expires, by our clock. @param {string} token */
  #refreshInTime(token, before = -Infinity) {
    const expiry = expiryOf(token);
    const left = expiry - Date.now() / 1000;
    // One that lasts no longer than the last one is not asked for again and again. The gateway says when it is over.
    if (typeof this.#options.token !== "function" || !(left > 0 && expiry > before)) return;
    const turn = this.#turn;
    this.#timers.refresh = later(left - Math.min(60, left / 4), async () => {
      try {
        const newer = await this.#token();
        if (turn !== this.#turn) return;
        this.#send({ type: "refresh", token: newer });
        this.#refreshInTime(newer, expiry);
      } catch (error) {
        tell(this.#options.onerror, `there is no newer token: ${error}`);
      }
    });
  }

  /** The connection is no more. @param {number} code @param {string} reason
   * @param {number | null} [reconnectIn] as the gateway wants it; null for never */
  #lost(code, reason, reconnectIn) {
    const { retryMin, retryMax, patience, onerror } = this.#options;
    const isFinal = reconnectIn === null || (code >= 3500 && code < 4000);
    this.#drop();
    tell(onerror, `the connection is ${isFinal ? "closed" : "lost"} (${code}): ${reason}`);
    if (this.state === "closed") return;
    if (isFinal) return this.close();
    // One that was good for a while is no failure.
    if (performance.now() - this.#liveSince > patience * 1000) this.#failures = 0;
    this.#liveSince = Infinity;
    const pause = Math.min(retryMax, retryMin * 2 ** this.#failures) * (0.5 + Math.random() / 2);
    const wait = reconnectIn === undefined || this.#failures ? pause : 0;
    this.#failures += 1;
    this.#timers.connect = later(Math.max(wait, reconnectIn ?? 0), () => void this.#connect());
    this.#become("connecting");
  }

  /** Let go of the connection, whatever becomes of it. */
  #drop() {
    this.#turn += 1;
    Object.values(this.#timers).forEach(clearTimeout);
    this.#timers = {};
    this.#pingAfter = Infinity;
    this.#socket?.close();
    this.#socket = undefined;
  }

  /** @param {State} state */
  #become(state) {
    if (state === this.state) return;
    this.state = state;
    tell(this.#options.onstate, state);
    if (state !== "live") for (const each of this.#subscriptions.values()) each.turn(state);
  }
}

/** Connect to a gateway, and stay connected until `close()` or until it is no use. @param {Options} options */
export function connect(options) {
  return new Client(options);
}
