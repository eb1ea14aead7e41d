import type { Client, Envelope, Position } from "./everstep-client.js";

export interface SessionMessage {
  id: string;
  role: "user" | "assistant" | "info" | "notification";
  content: string;
  created_at: string;
  execution_id: string | null;
  metadata: Record<string, unknown>;
}

export interface SessionRequest {
  request_id: string;
  execution_id: string;
  tool_call_id?: string;
  [field: string]: unknown;
}

export interface SessionSnapshot {
  messages: SessionMessage[];
  /** The text that the model has written so far, by execution id. */
  texts: Record<string, string>;
  /** The open questions and approvals. */
  requests: SessionRequest[];
  /** The status of each execution, by execution id. */
  statuses: Record<string, string>;
  state: "connecting" | "live" | "closed";
  error: string | null;
}

export interface LoadedSession {
  messages: SessionMessage[];
  requests?: SessionRequest[];
}

export interface SessionOptions {
  load?: (id: string) => Promise<LoadedSession>;
  since?: Position;
}

export declare function loader(options: {
  url: string;
  token: string | (() => string | Promise<string>);
  fetch?: typeof fetch;
}): (id: string) => Promise<LoadedSession>;

export declare class SessionStore {
  constructor(client: Client, id: string, options?: SessionOptions);
  subscribe: (listener: () => void) => () => void;
  get: () => SessionSnapshot;
  begin: () => void;
  end(): void;
  take(envelope: Envelope): void;
}

export declare function useSession(client: Client, id: string, options?: SessionOptions): SessionSnapshot;
