import { HttpAgent, type HttpAgentConfig, type BaseEvent, type RunAgentInput } from "@ag-ui/client";

export interface EverstepAgentConfig extends HttpAgentConfig {
  /** The place in the thread after which events follow, as an agent had it before. */
  lastEventId?: string;
  /** The shortest pause before a lost connection is opened again, in milliseconds. */
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
