/**
 * Live data: one connection to the gateway for the page, with `everstep-client.js`, which comes back by itself and
 * goes on where it was. The gateway admits the page with a ticket, as its cookie is only for the API.
 */

import { connect } from "everstep-client";
import { get, post, Problem } from "./api.js";
import { signal } from "./lib.js";

/** @typedef {import("everstep-client").Envelope} Envelope */
/** @typedef {import("everstep-client").Text} LiveText */
/** @typedef {"connecting" | "live" | "closed" | "off"} LiveState */
/**
 * @typedef {object} Watching
 * @property {import("everstep-client").Position | null} [since]
 * @property {(envelope: Envelope) => unknown} [onevent]
 * @property {(text: LiveText) => unknown} [ontext]
 * @property {(from: {epoch: string, seq: number}) => unknown} [onreload]
 * @property {(message: string) => unknown} [onerror]
 */

/** The state of the connection; `off` where nothing is watched or there is no gateway. */
export const liveState = signal(/** @type {LiveState} */ ("off"));

/** @type {Promise<ReturnType<typeof connect> | null> | null} */
let connecting = null;
let watchers = 0;

async function open() {
  try {
    const { url } = await get("agent/gateway");
    return connect({
      url,
      token: async () => (await post("agent/gateway/ticket")).ticket,
      onstate: (state) => (liveState.value = state),
    });
  } catch (error) {
    if (error instanceof Problem && error.status === 404) return null;
    connecting = null;
    throw error;
  }
}

/** Watch a stream until the returned function is called. @param {"session" | "execution"} kind @param {string} id
 * @param {Watching} watching @returns {() => void} */
export function watch(kind, id, watching) {
  let isOver = false;
  /** @type {{unsubscribe: () => void} | undefined} */
  let subscription;
  watchers += 1;
  connecting ??= open();
  connecting.then(
    (client) => {
      if (isOver || !client) return;
      subscription = client.subscribe(`agent.${kind}.${id}`, watching);
      liveState.value = client.state;
    },
    (error) => watching.onerror?.(String(error)),
  );
  return () => {
    if (isOver) return;
    isOver = true;
    watchers -= 1;
    subscription?.unsubscribe();
    if (watchers === 0) void close();
  };
}

/** Close the connection, when nothing is watched and when the person signs out. */
export async function close() {
  const client = await connecting?.catch(() => null);
  if (watchers > 0) return;
  connecting = null;
  client?.close();
  liveState.value = "off";
}
