// An agent of Everstep for AG-UI: the client's HttpAgent, which goes on after a disconnect and connects to threads.
//
//   const agent = new EverstepAgent({ url: "https://agents.example/agui/assistant", headers, threadId });
//   await agent.connectAgent();                    // the conversation so far, and what runs
//   agent.addMessage({ id, role: "user", content });
//   await agent.runAgent();
//
// If the connection is lost, events go on after the last one: each arrives once. `agent.lastEventId` is the place
// in the thread; a page that stores it passes it on as `lastEventId`.
import { HttpAgent } from "@ag-ui/client";

const RETRY_MIN = 250;
const RETRY_MAX = 15000;

/** The server-sent events of a response, as they are completed: `{ text, id, event }`. */
async function* frames_of(body) {
  const decoder = new TextDecoder();
  let rest = "";
  for await (const bytes of body) {
    rest += decoder.decode(bytes, { stream: true });
    const parts = rest.split("\n\n");
    rest = parts.pop();
    for (const text of parts) {
      const lines = text.split("\n");
      const field = (name) => lines.find((line) => line.startsWith(`${name}: `))?.slice(name.length + 2);
      const data = field("data");
      yield { text, id: field("id"), event: data === undefined ? null : JSON.parse(data) };
    }
  }
}

const pause = (milliseconds, signal) =>
  new Promise((resolve) => {
    const timer = setTimeout(resolve, milliseconds);
    signal?.addEventListener("abort", () => (clearTimeout(timer), resolve()), { once: true });
  });

export class EverstepAgent extends HttpAgent {
  constructor({ lastEventId, retryMin = RETRY_MIN, ...config }) {
    super(config);
    this.lastEventId = lastEventId;
    this.retryMin = retryMin;
    this.send = this.fetch;
    this.fetch = (url, init) => this.follow(() => this.send(url, init), JSON.parse(init.body), init);
  }

  /** The address of the thread's events. */
  stream_url({ threadId, runId }) {
    const url = new URL(`${this.url.replace(/\/$/, "")}/${encodeURIComponent(threadId)}/stream`, globalThis.location?.href);
    if (runId) url.searchParams.set("runId", runId);
    return url.href;
  }

  /** Ask for the events of a thread after an event. */
  resume(input, { headers, signal }, lastEventId) {
    const { "Content-Type": _, ...rest } = headers;
    const after = lastEventId === undefined ? {} : { "Last-Event-ID": lastEventId };
    return this.send(this.stream_url(input), { headers: { ...rest, ...after }, signal });
  }

  connect(input) {
    const agent = Object.create(this);
    agent.fetch = (url, init) => {
      const request = { threadId: input.threadId };
      return this.follow(() => this.resume(request, init, this.lastEventId), request, init, false);
    };
    return HttpAgent.prototype.run.call(agent, input);
  }

  /** A response whose body goes on, over new connections, until the run has ended. */
  async follow(begin, input, init, is_open = true) {
    const first = await begin();
    if (!first.ok || !first.body) return first;
    const agent = this;
    const body = new ReadableStream({
      async start(controller) {
        let response = first;
        let failures = 0;
        for (;;) {
          let is_cut = false;
          try {
            for await (const { text, id, event } of frames_of(response.body)) {
              if (event?.type === "RUN_ERROR" && event.code === "reconnect") {
                is_cut = true;
                continue;
              }
              failures = 0;
              if (event?.type === "RUN_STARTED") is_open = true;
              if (event?.type === "RUN_FINISHED" || event?.type === "RUN_ERROR") is_open = false;
              controller.enqueue(new TextEncoder().encode(`${text}\n\n`));
              if (id !== undefined) agent.lastEventId = id;
            }
            if (!is_cut && !is_open) return controller.close();
          } catch (error) {
            if (init.signal?.aborted) return controller.error(error);
            if (!is_open) return controller.close();
          }
          do {
            const limit = Math.min(RETRY_MAX, agent.retryMin * 2 ** failures++);
            await pause(limit * (0.5 + Math.random() / 2), init.signal);
            if (init.signal?.aborted) return controller.error(new DOMException("The run was aborted", "AbortError"));
            response = await agent.resume(input, init, agent.lastEventId).catch(() => null);
          } while (response === null || response.status >= 500);
          if (!response.ok) return controller.error(new Error(`HTTP ${response.status}: ${await response.text()}`));
        }
      },
    });
    return new Response(body, { status: first.status, headers: first.headers });
  }

  clone() {
    const cloned = super.clone();
    Object.assign(cloned, { lastEventId: this.lastEventId, retryMin: this.retryMin, send: this.send });
    cloned.fetch = (url, init) => cloned.follow(() => cloned.send(url, init), JSON.parse(init.body), init);
    return cloned;
  }
}
