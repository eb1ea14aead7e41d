from agent_domain.announcements import (
    Announcement as Announcement,
    Context as Context,
    MessageRole as MessageRole,
)
from agent_domain.broadcast import (
    BroadcastConfig as BroadcastConfig,
    CanBroadcastAgentEvents as CanBroadcastAgentEvents,
)
from agent_domain.builder import (
    AgentCapability as AgentCapability,
)
from agent_domain.cached_context import (
    CachedContext as CachedContext,
    InferenceRequest as InferenceRequest,
    ResponseFormat as ResponseFormat,
)
from agent_domain.capabilities.approvals import (
    ApprovalMode as ApprovalMode,
    ApprovalRule as ApprovalRule,
)
from agent_domain.capabilities.bash import (
    BashPolicy as BashPolicy,
    ExecutionPolicy as ExecutionPolicy,
)
from agent_domain.capabilities.extraction import (
    Nothing as Nothing,
    SchemaDefinition as SchemaDefinition,
    SchemaRegistry as SchemaRegistry,
    StructuredOutputPolicy as StructuredOutputPolicy,
)
from agent_domain.capabilities.scratchpad import (
    MetadataPolicy as MetadataPolicy,
)
from agent_domain.capabilities.skills import (
    Skill as Skill,
)
from agent_domain.capabilities.subagents import (
    SubagentPolicy as SubagentPolicy,
)
from agent_domain.capabilities.tasks import (
    TodoPolicy as TodoPolicy,
)
from agent_domain.contexts import (
    ContextCaller as ContextCaller,
    ContextPolicy as ContextPolicy,
    MessageContext as MessageContext,
)
from agent_domain.continuation import (
    CallableCriterion as CallableCriterion,
    ContinuationCriteria as ContinuationCriteria,
    ContinuationDecision as ContinuationDecision,
    ContinuationEvaluation as ContinuationEvaluation,
    ContinuationOutcome as ContinuationOutcome,
    Criterion as Criterion,
    Signalled as Signalled,
)
from agent_domain.contracts import (
    AbstractAgentDefinition as AbstractAgentDefinition,
    AgentContract as AgentContract,
    AgentContractRegistry as AgentContractRegistry,
    AgentDescriptor as AgentDescriptor,
    AgentFactory as AgentFactory,
    RunsAgent as RunsAgent,
)
from agent_domain.criteria import (
    CumulativeExecutionTimeLimit as CumulativeExecutionTimeLimit,
    ErrorPolicyCriterion as ErrorPolicyCriterion,
    ErrorPresenceCheck as ErrorPresenceCheck,
    ExecutionTimeLimit as ExecutionTimeLimit,
    FinishReasonCheck as FinishReasonCheck,
    ResolvesErrorContext as ResolvesErrorContext,
    ResponseContentCheck as ResponseContentCheck,
    RetryLimit as RetryLimit,
    SelfCriticContinuationCheck as SelfCriticContinuationCheck,
    StepsLimit as StepsLimit,
    StopOnFinalDecision as StopOnFinalDecision,
    TokenUsageLimit as TokenUsageLimit,
    ToolCallPresenceCheck as ToolCallPresenceCheck,
)
from agent_domain.definition import (
    AgentDefinition as AgentDefinition,
)
from agent_domain.drivers import (
    CanExecuteToolCalls as CanExecuteToolCalls,
    CanUseTools as CanUseTools,
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
    ErrorContext as ErrorContext,
    ErrorHandlingDecision as ErrorHandlingDecision,
    ErrorPolicy as ErrorPolicy,
    FailingStep as FailingStep,
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
    ToolError as ToolError,
    ToolFailed as ToolFailed,
    ToolTimedOut as ToolTimedOut,
    UnknownName as UnknownName,
    UnreadableAnswer as UnreadableAnswer,
    WrongApi as WrongApi,
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
    ModelCallDelayed as ModelCallDelayed,
    StreamEventReceived as StreamEventReceived,
    TokenUsageReported as TokenUsageReported,
    ToolCallCompleted as ToolCallCompleted,
    ToolCallStarted as ToolCallStarted,
)
from agent_domain.facts import (
    CritiqueFacts as CritiqueFacts,
    CritiqueVerdict as CritiqueVerdict,
    ExecutionFacts as ExecutionFacts,
    StateInfo as StateInfo,
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
    AwaitApproval as AwaitApproval,
    AwaitInput as AwaitInput,
    AwaitResume as AwaitResume,
    Infer as Infer,
    Process as Process,
    Rules as Rules,
    RunSubagents as RunSubagents,
    RunTools as RunTools,
    Stop as Stop,
    decide as decide,
)
from agent_domain.messages import (
    Message as Message,
    MessageStore as MessageStore,
    Role as Role,
)
from agent_domain.plan import (
    REGISTERED as REGISTERED,
    CriterionRef as CriterionRef,
    CriterionRegistry as CriterionRegistry,
    CumulativeTimeout as CumulativeTimeout,
    DriverKind as DriverKind,
    ExecutionPlan as ExecutionPlan,
    PlannedTool as PlannedTool,
    RegisteredCriterion as RegisteredCriterion,
)
from agent_domain.ports import (
    CallRecord as CallRecord,
    CallRow as CallRow,
    Command as Command,
    CommandKind as CommandKind,
    EventRecord as EventRecord,
    ExecutionRef as ExecutionRef,
    ExecutionRow as ExecutionRow,
    ExecutionSpec as ExecutionSpec,
    ExecutionStore as ExecutionStore,
    Page as Page,
    RequestRow as RequestRow,
    RequestState as RequestState,
    Resolution as Resolution,
    RetryWait as RetryWait,
    Steering as Steering,
    StepRow as StepRow,
    StoredEnvelope as StoredEnvelope,
)
from agent_domain.processors import (
    AgentHook as AgentHook,
    ProcessorWithModel as ProcessorWithModel,
)
from agent_domain.react import (
    ReActDriver as ReActDriver,
)
from agent_domain.reader import (
    Place as Place,
    Position as Position,
)
from agent_domain.result import (
    Failure as Failure,
    Success as Success,
)
from agent_domain.sessions import (
    ContextForbidden as ContextForbidden,
    SessionStatus as SessionStatus,
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
    ExecutionData as ExecutionData,
)
from agent_domain.status import (
    AgentStatus as AgentStatus,
    ExecutionStatus as ExecutionStatus,
    StopReason as StopReason,
    WireStatus as WireStatus,
)
from agent_domain.step_error import (
    ErrorType as ErrorType,
    StepError as StepError,
)
from agent_domain.step_facts import (
    Besides as Besides,
    CallFacts as CallFacts,
    CallNeed as CallNeed,
    StepFacts as StepFacts,
    StepType as StepType,
)
from agent_domain.steps import (
    AgentStep as AgentStep,
    InferenceResponse as InferenceResponse,
    StepExecution as StepExecution,
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
    Toolbox as Toolbox,
    ToolCall as ToolCall,
    ToolContext as ToolContext,
    ToolExecution as ToolExecution,
    ToolOptions as ToolOptions,
    ToolResult as ToolResult,
)
from agent_domain.toolsets import (
    Asker as Asker,
    ListedTool as ListedTool,
    Toolset as Toolset,
)
from agent_domain.usage import (
    Usage as Usage,
)
from agent_domain.values import (
    FrozenDict as FrozenDict,
    FrozenList as FrozenList,
)
from agent_domain.views import (
    ExecutionView as ExecutionView,
    LoopState as LoopState,
    StepView as StepView,
)
from agent_domain.wishes import (
    Wishes as Wishes,
)
from everstep.agents.files import (
    AgentRegistry as AgentRegistry,
    AgentSpec as AgentSpec,
)
from everstep.capabilities.approval import (
    UseApproval as UseApproval,
)
from everstep.capabilities.bash import (
    BashTool as BashTool,
    UseBash as UseBash,
)
from everstep.capabilities.critique import (
    UseSelfCritique as UseSelfCritique,
)
from everstep.capabilities.files import (
    EditFileTool as EditFileTool,
    ListDirTool as ListDirTool,
    ReadFileTool as ReadFileTool,
    SearchFilesTool as SearchFilesTool,
    UseFileTools as UseFileTools,
    WriteFileTool as WriteFileTool,
)
from everstep.capabilities.llm_query import (
    LlmQueryTool as LlmQueryTool,
)
from everstep.capabilities.mcp import (
    HttpServer as HttpServer,
    StdioServer as StdioServer,
    UseMCP as UseMCP,
)
from everstep.capabilities.metadata import (
    UseMetadataTools as UseMetadataTools,
)
from everstep.capabilities.react import (
    UseReAct as UseReAct,
)
from everstep.capabilities.skills import (
    LoadSkillTool as LoadSkillTool,
    SkillLibrary as SkillLibrary,
    UseSkills as UseSkills,
)
from everstep.capabilities.structured_output import (
    UseStructuredOutputs as UseStructuredOutputs,
)
from everstep.capabilities.subagents import (
    UseSubagents as UseSubagents,
)
from everstep.capabilities.tasks import (
    UseTaskPlanning as UseTaskPlanning,
)
from everstep.capabilities.user_input import (
    UseUserInput as UseUserInput,
)
from everstep.client.client import (
    Client as Client,
    Execution as Execution,
)
from everstep.inference.models import (
    Models as Models,
)
from everstep.inference.presets import (
    Driver as Driver,
    Preset as Preset,
    Presets as Presets,
)
from everstep.inference.scripted import (
    Pace as Pace,
    Scenario as Scenario,
    ScenarioModel as ScenarioModel,
    Script as Script,
    ScriptedCall as ScriptedCall,
    ScriptedError as ScriptedError,
    ScriptedTurn as ScriptedTurn,
)
from everstep.local.agent import (
    Agent as Agent,
    AgentBuilder as AgentBuilder,
)
from everstep.local.broadcast import (
    AgentEventEnvelopeAdapter as AgentEventEnvelopeAdapter,
)
from everstep.local.clock import (
    Clock as Clock,
    SystemClock as SystemClock,
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
from workflows.contracts import (
    ExecutionResult as ExecutionResult,
)
