from agent_domain.agent_spec import (
    AgentSpec as AgentSpec,
)
from agent_domain.broadcast import (
    BroadcastConfig as BroadcastConfig,
)
from agent_domain.builder import (
    AgentCapability as AgentCapability,
)
from agent_domain.cached_context import (
    CachedContext as CachedContext,
    InferenceRequest as InferenceRequest,
    ResponseFormat as ResponseFormat,
)
from agent_domain.capabilities.bash import (
    BashPolicy as BashPolicy,
    ExecutionPolicy as ExecutionPolicy,
)
from agent_domain.capabilities.extraction import (
    SchemaDefinition as SchemaDefinition,
    SchemaRegistry as SchemaRegistry,
    StructuredOutputPolicy as StructuredOutputPolicy,
)
from agent_domain.capabilities.scratchpad import (
    MetadataPolicy as MetadataPolicy,
)
from agent_domain.capabilities.subagents import (
    SubagentPolicy as SubagentPolicy,
)
from agent_domain.capabilities.tasks import (
    TodoPolicy as TodoPolicy,
)
from agent_domain.continuation import (
    ContinuationCriteria as ContinuationCriteria,
    ContinuationDecision as ContinuationDecision,
    ContinuationEvaluation as ContinuationEvaluation,
    ContinuationOutcome as ContinuationOutcome,
)
from agent_domain.contracts import (
    AbstractAgentDefinition as AbstractAgentDefinition,
    AgentContract as AgentContract,
    AgentContractRegistry as AgentContractRegistry,
    AgentDescriptor as AgentDescriptor,
    AgentFactory as AgentFactory,
)
from agent_domain.criteria import (
    CumulativeExecutionTimeLimit as CumulativeExecutionTimeLimit,
    ErrorPolicyCriterion as ErrorPolicyCriterion,
    ErrorPresenceCheck as ErrorPresenceCheck,
    ExecutionTimeLimit as ExecutionTimeLimit,
    FinishReasonCheck as FinishReasonCheck,
    ResponseContentCheck as ResponseContentCheck,
    RetryLimit as RetryLimit,
    SelfCriticContinuationCheck as SelfCriticContinuationCheck,
    StepsLimit as StepsLimit,
    StopOnFinalDecision as StopOnFinalDecision,
    TokenUsageLimit as TokenUsageLimit,
    ToolCallPresenceCheck as ToolCallPresenceCheck,
)
from agent_domain.drivers import (
    Model as Model,
    OnText as OnText,
    Reply as Reply,
    StepDriver as StepDriver,
    ToolCallingDriver as ToolCallingDriver,
)
from agent_domain.envelopes import (
    Envelope as Envelope,
)
from agent_domain.error_policy import (
    ErrorHandlingDecision as ErrorHandlingDecision,
    ErrorPolicy as ErrorPolicy,
)
from agent_domain.errors import (
    AgentError as AgentError,
    Escaped as Escaped,
    EverstepError as EverstepError,
    HookFailed as HookFailed,
    InvalidInput as InvalidInput,
    InvalidModelOutput as InvalidModelOutput,
    ListenerFailed as ListenerFailed,
    ModelError as ModelError,
    ModelTimeout as ModelTimeout,
    ModelUnavailable as ModelUnavailable,
    RateLimited as RateLimited,
    ToolFailed as ToolFailed,
    UnknownName as UnknownName,
)
from agent_domain.events import (
    AgentFailed as AgentFailed,
    AgentFinished as AgentFinished,
    AgentStateUpdated as AgentStateUpdated,
    AgentStepCompleted as AgentStepCompleted,
    AgentStepStarted as AgentStepStarted,
    ContinuationEvaluated as ContinuationEvaluated,
    Event as Event,
    EventBus as EventBus,
    StreamEventReceived as StreamEventReceived,
    TokenUsageReported as TokenUsageReported,
    ToolCallCompleted as ToolCallCompleted,
    ToolCallStarted as ToolCallStarted,
)
from agent_domain.function_tool import (
    BaseTool as BaseTool,
    FunctionTool as FunctionTool,
    tool as tool,
)
from agent_domain.inquiry import (
    AskModel as AskModel,
    ModelChoice as ModelChoice,
)
from agent_domain.loop import (
    Infer as Infer,
    Rules as Rules,
    RunTools as RunTools,
    Stop as Stop,
    decide as decide,
)
from agent_domain.messages import (
    Message as Message,
    Role as Role,
)
from agent_domain.plan import (
    REGISTERED as REGISTERED,
    CriterionRegistry as CriterionRegistry,
    ExecutionPlan as ExecutionPlan,
)
from agent_domain.processors import (
    AgentHook as AgentHook,
)
from agent_domain.react import (
    ReActDriver as ReActDriver,
)
from agent_domain.reader import (
    Position as Position,
)
from agent_domain.result import (
    Failure as Failure,
    Success as Success,
)
from agent_domain.snapshots import (
    ContinuationAgentStateSerializer as ContinuationAgentStateSerializer,
    SlimAgentStateSerializer as SlimAgentStateSerializer,
    SlimSerializationConfig as SlimSerializationConfig,
)
from agent_domain.spawning import (
    CanSpawn as CanSpawn,
    ChildEnd as ChildEnd,
    Spawn as Spawn,
)
from agent_domain.state import (
    AgentState as AgentState,
)
from agent_domain.status import (
    AgentStatus as AgentStatus,
    StopReason as StopReason,
)
from agent_domain.step_error import (
    ErrorType as ErrorType,
)
from agent_domain.steps import (
    AgentStep as AgentStep,
    InferenceResponse as InferenceResponse,
)
from agent_domain.stop_signal import (
    StopSignal as StopSignal,
)
from agent_domain.testing import (
    DeterministicAgentDriver as DeterministicAgentDriver,
    MockTool as MockTool,
    ScenarioStep as ScenarioStep,
    ScriptedModel as ScriptedModel,
    calls as calls,
    says as says,
)
from agent_domain.tools import (
    Effect as Effect,
    Tool as Tool,
    ToolCall as ToolCall,
    ToolContext as ToolContext,
    ToolExecution as ToolExecution,
    ToolOptions as ToolOptions,
    ToolResult as ToolResult,
)
from agent_domain.usage import (
    Usage as Usage,
)
from everstep.agents.files import (
    AgentRegistry as AgentRegistry,
)
from everstep.capabilities.approval import UseApproval as UseApproval
from everstep.capabilities.bash import UseBash as UseBash
from everstep.capabilities.critique import UseSelfCritique as UseSelfCritique
from everstep.capabilities.files import (
    ListDirTool as ListDirTool,
    SearchFilesTool as SearchFilesTool,
    UseFileTools as UseFileTools,
)
from everstep.capabilities.llm_query import LlmQueryTool as LlmQueryTool
from everstep.capabilities.mcp import (
    HttpServer as HttpServer,
    StdioServer as StdioServer,
    UseMCP as UseMCP,
)
from everstep.capabilities.metadata import UseMetadataTools as UseMetadataTools
from everstep.capabilities.react import UseReAct as UseReAct
from everstep.capabilities.skills import (
    SkillLibrary as SkillLibrary,
    UseSkills as UseSkills,
)
from everstep.capabilities.structured_output import UseStructuredOutputs as UseStructuredOutputs
from everstep.capabilities.subagents import UseSubagents as UseSubagents
from everstep.capabilities.tasks import UseTaskPlanning as UseTaskPlanning
from everstep.capabilities.user_input import UseUserInput as UseUserInput
from everstep.client.client import Client as Client, Execution as Execution
from everstep.local.agent import (
    Agent as Agent,
    AgentBuilder as AgentBuilder,
)
from everstep.local.broadcast import (
    AgentEventEnvelopeAdapter as AgentEventEnvelopeAdapter,
)
from everstep.local.runner import (
    LocalRunner as LocalRunner,
)
from everstep.local.trace import (
    Trace as Trace,
)
from everstep.streaming.client import (
    Stream as Stream,
    stream as stream,
)
from everstep.streaming.news import (
    Happened as Happened,
    Reload as Reload,
    StreamRefused as StreamRefused,
    Wrote as Wrote,
)
