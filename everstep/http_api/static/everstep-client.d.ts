export interface DraftPosition {
  execution_id: string;
  step_number: number;
  attempt: number;
  next_index: number;
}

export interface Position {
  epoch: string | null;
  seq: number;
  drafts?: DraftPosition[];
}

export interface Envelope {
  type: string;
  session_id: string | null;
  execution_id: string;
  timestamp: string;
  payload: Record<string, any>;
  id: string;
  seq: number | null;
}

export interface StreamText {
  execution_id: string;
  step_number: number;
  attempt: number;
  content: string;
  is_complete: boolean;
}

export type ConnectionState = "connecting" | "live" | "closed";

export interface SubscriptionOptions {
  since?: Position | null;
  onevent?: (envelope: Envelope) => void;
  ontext?: (text: StreamText) => void;
  onreload?: (from: { epoch: string; seq: number }) => void;
  onerror?: (message: string) => void;
  onstate?: (state: ConnectionState) => void;
}

export interface Subscription extends AsyncIterable<Envelope> {
  readonly position: Position;
  unsubscribe(): void;
}

export interface Client {
  subscribe(channel: string, options?: SubscriptionOptions): Subscription;
  close(): void;
}

export interface ConnectOptions {
  url: string;
  token: string | (() => string | Promise<string>);
  onerror?: (message: string) => void;
  onstate?: (state: ConnectionState) => void;
  WebSocket?: unknown;
  [option: string]: unknown;
}

export declare function connect(options: ConnectOptions): Client;

export declare class Reader {
  constructor(since?: Position | null);
  take(envelope: Envelope): "applied" | "dropped" | "resync";
  joined(epoch: string, seq: number, recovered: boolean): void;
  readonly position: Position;
}
