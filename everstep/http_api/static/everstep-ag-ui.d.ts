import { HttpAgent, type HttpAgentConfig, type BaseEvent, type RunAgentInput } from "@ag-ui/client";

export interface EverstepAgentConfig extends HttpAgentConfig {
  /** The id of the last event that was received: the stream continues after it. */
  lastEventId?: string;
  /** The shortest delay before a reconnect, in milliseconds. */
  retryMin?: number;
}

export declare class EverstepAgent extends HttpAgent {
  constructor(config: EverstepAgentConfig);
  lastEventId?: string;
  retryMin: number;
  protected connect(input: RunAgentInput): ReturnType<HttpAgent["run"]>;
  clone(): EverstepAgent;
}

export type { BaseEvent };
