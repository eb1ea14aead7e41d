// A React hook that shows a session: its messages, the text that is written, and what waits for people.
//
//   const client = connect({ url: "wss://agents.example/v1", token });
//   const load = loader({ url: "https://agents.example", token });
//
//   function Chat({ id }) {
//     const { messages, texts, requests, state } = useSession(client, id, { load });
//   }
import { useEffect, useMemo, useSyncExternalStore } from "react";

const TERMINAL = new Set(["completed", "stopped", "failed", "cancelled"]);
const USER = new Set(["message.received", "input.received"]);
const REQUESTED = new Set(["agent.input.requested", "agent.approval.requested"]);
const RESOLVED = new Set(["agent.input.received", "agent.approval.resolved"]);

const EMPTY = { messages: [], texts: {}, requests: [], statuses: {}, state: "connecting", error: null };

/** Loads the messages and open requests of a session over the HTTP API. */
export function loader({ url, token, fetch: send = (...given) => fetch(...given) }) {
  const read = async (path) => {
    const credential = typeof token === "function" ? await token() : token;
    const answer = await send(`${url}${path}`, { headers: { Authorization: `Bearer ${credential}` } });
    if (!answer.ok) throw new Error(`HTTP ${answer.status}: ${await answer.text()}`);
    return (await answer.json()).items;
  };
  return async (id) => {
    const [messages, inbox] = await Promise.all([
      read(`/agent/sessions/${id}/messages?limit=200`),
      read("/agent/inbox?limit=200"),
    ]);
    const requests = inbox.filter((request) => request.session_id === id);
    return { messages: messages.reverse(), requests: requests.map((each) => ({ ...each, request_id: each.id })) };
  };
}

/** The role of a message that an envelope announces. */
function role_of({ type, payload }) {
  if (USER.has(type)) return "user";
  if (type === "execution.completed") return "assistant";
  if (type === "execution.paused" && "choices" in payload.metadata) return "assistant";
  return type === "execution.failed" || type === "execution.paused" ? "notification" : "info";
}

/** What is known of a session; each change is a new snapshot. */
export class SessionStore {
  constructor(client, id, { load, since } = {}) {
    this.snapshot = EMPTY;
    this.listeners = new Set();
    this.begin = () => {
      this.subscription = client.subscribe(`agent.session.${id}`, {
        since,
        onreload: () => this.reload(load, id),
        onevent: (envelope) => this.take(envelope),
        ontext: ({ execution_id, content }) => this.change({ texts: { ...this.snapshot.texts, [execution_id]: content } }),
        onerror: (error) => this.change({ error }),
        onstate: (state) => this.change({ state }),
      });
    };
    this.subscribe = (listener) => {
      this.listeners.add(listener);
      return () => this.listeners.delete(listener);
    };
    this.get = () => this.snapshot;
  }

  end() {
    this.subscription?.unsubscribe();
    this.loading = undefined;
  }

  change(changes) {
    this.snapshot = { ...this.snapshot, ...changes };
    for (const listener of this.listeners) listener();
  }

  /** Nothing that was read is valid any more; what arrives while the session is loaded is. */
  async reload(load, id) {
    this.change({ messages: [], texts: {}, requests: [], error: null });
    if (load === undefined) return;
    const loading = (this.loading = load(id));
    try {
      const { messages, requests = [] } = await loading;
      if (this.loading !== loading) return;
      const loaded = new Set(messages.map((message) => message.id));
      const newer = this.snapshot.messages.filter((message) => !loaded.has(message.id));
      const asked = new Set(requests.map((request) => request.request_id));
      const opened = this.snapshot.requests.filter((request) => !asked.has(request.request_id));
      this.change({ messages: [...messages, ...newer], requests: [...requests, ...opened] });
    } catch (error) {
      if (this.loading === loading) this.change({ error: String(error.message ?? error) });
    }
  }

  take(envelope) {
    const { type, payload, execution_id } = envelope;
    if (!type.startsWith("agent.")) this.say(envelope);
    else if (REQUESTED.has(type)) this.change({ requests: [...this.snapshot.requests, { ...payload, execution_id }] });
    else if (RESOLVED.has(type))
      this.change({ requests: this.snapshot.requests.filter((each) => each.request_id !== payload.request_id) });
    else if (type === "agent.status") this.note_status(execution_id, payload.status);
    if (type === "agent.step.completed" || (type === "agent.status" && TERMINAL.has(payload.status))) {
      const { [execution_id]: _, ...texts } = this.snapshot.texts;
      this.change({ texts });
    }
  }

  note_status(execution_id, status) {
    const { requests, statuses } = this.snapshot;
    const open = TERMINAL.has(status) ? requests.filter((each) => each.execution_id !== execution_id) : requests;
    this.change({ requests: open, statuses: { ...statuses, [execution_id]: status } });
  }

  say(envelope) {
    const { payload, timestamp, execution_id } = envelope;
    const message = { id: payload.message_id, role: role_of(envelope), created_at: timestamp, execution_id, ...payload };
    const others = this.snapshot.messages.filter((each) => each.id !== message.id);
    this.change({ messages: [...others, message] });
  }
}

/**
 * Follows a session as long as the component is mounted. `texts` has the text of each execution while its model
 * writes, `requests` the open questions and approvals, `statuses` the status of each execution.
 */
export function useSession(client, id, { load, since } = {}) {
  const store = useMemo(() => new SessionStore(client, id, { load, since }), [client, id]);
  useEffect(() => {
    store.begin();
    return () => store.end();
  }, [store]);
  return useSyncExternalStore(store.subscribe, store.get, store.get);
}
