from everstep.agent_domain.agents.builder import AgentCapability as AgentCapability
from everstep.agent_domain.agents.call_limits import CallLimits as CallLimits
from everstep.agent_domain.agents.compaction_policy import CompactionPolicy as CompactionPolicy
from everstep.agent_domain.agents.contracts import (
    AbstractAgentDefinition as AbstractAgentDefinition,
    AgentContract as AgentContract,
    AgentContractRegistry as AgentContractRegistry,
    AgentDescriptor as AgentDescriptor,
    AgentFactory as AgentFactory,
    RunsAgent as RunsAgent,
)
from everstep.agent_domain.agents.definition import AgentDefinition as AgentDefinition
from everstep.agent_domain.agents.drivers import (
    CanExecuteToolCalls as CanExecuteToolCalls,
    CanUseTools as CanUseTools,
    Model as Model,
    OnText as OnText,
    Reply as Reply,
    StepDriver as StepDriver,
    ToolCallingDriver as ToolCallingDriver,
)
from everstep.agent_domain.agents.plan import (
    REGISTERED as REGISTERED,
    CriterionRef as CriterionRef,
    CriterionRegistry as CriterionRegistry,
    CumulativeTimeout as CumulativeTimeout,
    DriverKind as DriverKind,
    ExecutionPlan as ExecutionPlan,
    PlannedTool as PlannedTool,
    RegisteredCriterion as RegisteredCriterion,
)
from everstep.agent_domain.agents.processors import (
    AgentHook as AgentHook,
    ProcessorWithModel as ProcessorWithModel,
)
from everstep.agent_domain.agents.react import ReActDriver as ReActDriver
from everstep.agent_domain.agents.spawning import CanSpawn as CanSpawn, Spawn as Spawn
from everstep.agent_domain.agents.token_counting import ContextWindow as ContextWindow
from everstep.agent_domain.attachments import (
    Attachment as Attachment,
    AttachmentLimits as AttachmentLimits,
    ReadableFile as ReadableFile,
)
from everstep.agent_domain.capabilities.approvals import (
    ApprovalMode as ApprovalMode,
    ApprovalRule as ApprovalRule,
)
from everstep.agent_domain.capabilities.bash import (
    BashPolicy as BashPolicy,
    ExecutionPolicy as ExecutionPolicy,
)
from everstep.agent_domain.capabilities.critique import (
    CritiqueFacts as CritiqueFacts,
    CritiqueVerdict as CritiqueVerdict,
    SelfCriticContinuationCheck as SelfCriticContinuationCheck,
)
from everstep.agent_domain.capabilities.extraction import (
    Nothing as Nothing,
    SchemaDefinition as SchemaDefinition,
    SchemaRegistry as SchemaRegistry,
    StructuredOutputPolicy as StructuredOutputPolicy,
)
from everstep.agent_domain.capabilities.rights import (
    Actor as Actor,
    Decider as Decider,
    DecisionPolicy as DecisionPolicy,
)
from everstep.agent_domain.capabilities.scratchpad import (
    MetadataPolicy as MetadataPolicy,
)
from everstep.agent_domain.capabilities.skills import (
    Skill as Skill,
)
from everstep.agent_domain.capabilities.subagents import (
    SubagentPolicy as SubagentPolicy,
)
from everstep.agent_domain.capabilities.tasks import (
    TodoPolicy as TodoPolicy,
)
from everstep.agent_domain.errors import (
    AgentError as AgentError,
    ContextTooLong as ContextTooLong,
    Escaped as Escaped,
    EverstepError as EverstepError,
    HookFailed as HookFailed,
    InvalidInput as InvalidInput,
    InvalidModelOutput as InvalidModelOutput,
    ListenerFailed as ListenerFailed,
    MessageTooLong as MessageTooLong,
    ModelError as ModelError,
    ModelTimeout as ModelTimeout,
    ModelUnavailable as ModelUnavailable,
    NotFound as NotFound,
    NotPermitted as NotPermitted,
    RateLimited as RateLimited,
    ResourceFailed as ResourceFailed,
    StoreUnavailable as StoreUnavailable,
    ToolError as ToolError,
    ToolFailed as ToolFailed,
    ToolTimedOut as ToolTimedOut,
    UnknownName as UnknownName,
    UnreadableAnswer as UnreadableAnswer,
    WrongApi as WrongApi,
)
from everstep.agent_domain.explanation.because import (
    ExecutionBecause as ExecutionBecause,
    HeardMessage as HeardMessage,
    StepBecause as StepBecause,
)
from everstep.agent_domain.explanation.states import explain_state as explain_state
from everstep.agent_domain.ids import ExecutionRef as ExecutionRef, Scope as Scope
from everstep.agent_domain.loop.budget import (
    Budget as Budget,
    BudgetScope as BudgetScope,
    BudgetUnit as BudgetUnit,
    ExhaustedBudget as ExhaustedBudget,
    OnExhausted as OnExhausted,
)
from everstep.agent_domain.loop.child_end import ChildEnd as ChildEnd
from everstep.agent_domain.loop.continuation import (
    CallableCriterion as CallableCriterion,
    ContinuationCriteria as ContinuationCriteria,
    ContinuationDecision as ContinuationDecision,
    ContinuationEvaluation as ContinuationEvaluation,
    ContinuationOutcome as ContinuationOutcome,
    Criterion as Criterion,
    Signalled as Signalled,
)
from everstep.agent_domain.loop.criteria import (
    CumulativeExecutionTimeLimit as CumulativeExecutionTimeLimit,
    ErrorPolicyCriterion as ErrorPolicyCriterion,
    ErrorPresenceCheck as ErrorPresenceCheck,
    ExecutionTimeLimit as ExecutionTimeLimit,
    FinishReasonCheck as FinishReasonCheck,
    ResolvesErrorContext as ResolvesErrorContext,
    ResponseContentCheck as ResponseContentCheck,
    RetryLimit as RetryLimit,
    StepsLimit as StepsLimit,
    StopOnFinalDecision as StopOnFinalDecision,
    TokenUsageLimit as TokenUsageLimit,
    ToolCallPresenceCheck as ToolCallPresenceCheck,
)
from everstep.agent_domain.loop.error_policy import (
    ErrorContext as ErrorContext,
    ErrorHandlingDecision as ErrorHandlingDecision,
    ErrorPolicy as ErrorPolicy,
    FailingStep as FailingStep,
)
from everstep.agent_domain.loop.explanations import explain_end as explain_end
from everstep.agent_domain.loop.facts import (
    ExecutionFacts as ExecutionFacts,
    StateInfo as StateInfo,
)
from everstep.agent_domain.loop.hook_requests import Wishes as Wishes
from everstep.agent_domain.loop.loop import (
    AwaitApproval as AwaitApproval,
    AwaitBudget as AwaitBudget,
    AwaitInput as AwaitInput,
    AwaitResume as AwaitResume,
    CriteriaView as CriteriaView,
    Infer as Infer,
    Process as Process,
    Rules as Rules,
    RunSubagents as RunSubagents,
    RunTools as RunTools,
    Stop as Stop,
    decide as decide,
)
from everstep.agent_domain.loop.repeated_calls import (
    LoopReminder as LoopReminder,
    RepeatedCallLimit as RepeatedCallLimit,
    RepeatedCalls as RepeatedCalls,
)
from everstep.agent_domain.loop.run_context import RunContext as RunContext
from everstep.agent_domain.loop.status import (
    AgentStatus as AgentStatus,
    ExecutionStatus as ExecutionStatus,
    StopReason as StopReason,
    WireStatus as WireStatus,
)
from everstep.agent_domain.loop.step_error import ErrorType as ErrorType, StepError as StepError
from everstep.agent_domain.loop.step_facts import (
    Besides as Besides,
    CallFacts as CallFacts,
    CallNeed as CallNeed,
    StepFacts as StepFacts,
    StepType as StepType,
)
from everstep.agent_domain.loop.stop_signal import StopSignal as StopSignal
from everstep.agent_domain.loop.usage import Usage as Usage
from everstep.agent_domain.loop.views import (
    ExecutionView as ExecutionView,
    StepView as StepView,
)
from everstep.agent_domain.media_types import FileKind as FileKind
from everstep.agent_domain.messages.cached_context import (
    CachedContext as CachedContext,
    InferenceRequest as InferenceRequest,
    ResponseFormat as ResponseFormat,
)
from everstep.agent_domain.messages.compaction import Compaction as Compaction
from everstep.agent_domain.messages.messages import (
    Message as Message,
    MessageList as MessageList,
    MessageStore as MessageStore,
    Role as Role,
)
from everstep.agent_domain.pricing.prices import PriceList as PriceList, Prices as Prices
from everstep.agent_domain.result import (
    Failure as Failure,
    Success as Success,
)
from everstep.agent_domain.state.broadcast_adapter import (
    BroadcastConfig as BroadcastConfig,
    CanBroadcastAgentEvents as CanBroadcastAgentEvents,
)
from everstep.agent_domain.state.events import (
    AgentFailed as AgentFailed,
    AgentFinished as AgentFinished,
    AgentStateUpdated as AgentStateUpdated,
    AgentStepCompleted as AgentStepCompleted,
    AgentStepStarted as AgentStepStarted,
    ContinuationEvaluated as ContinuationEvaluated,
    ConversationCompacted as ConversationCompacted,
    Event as Event,
    EventBus as EventBus,
    ModelCallDelayed as ModelCallDelayed,
    StreamEventReceived as StreamEventReceived,
    TokenUsageReported as TokenUsageReported,
    ToolCallCompleted as ToolCallCompleted,
    ToolCallProgressed as ToolCallProgressed,
    ToolCallStarted as ToolCallStarted,
)
from everstep.agent_domain.state.execution_data import ExecutionData as ExecutionData
from everstep.agent_domain.state.snapshots import (
    ContinuationAgentStateSerializer as ContinuationAgentStateSerializer,
    SlimAgentStateSerializer as SlimAgentStateSerializer,
    SlimSerializationConfig as SlimSerializationConfig,
)
from everstep.agent_domain.state.state import AgentState as AgentState
from everstep.agent_domain.state.steps import (
    AgentStep as AgentStep,
    InferenceResponse as InferenceResponse,
    StepExecution as StepExecution,
)
from everstep.agent_domain.storage.alignment import Difference as Difference
from everstep.agent_domain.storage.attachments import (
    AttachmentIndex as AttachmentIndex,
    AttachmentKey as AttachmentKey,
    AttachmentStore as AttachmentStore,
    AttachmentUse as AttachmentUse,
)
from everstep.agent_domain.storage.audit import AuditReport as AuditReport, Break as Break
from everstep.agent_domain.storage.calls import (
    AnsweredQuestion as AnsweredQuestion,
    CallRecord as CallRecord,
    CallRow as CallRow,
)
from everstep.agent_domain.storage.commands import (
    Command as Command,
    CommandKind as CommandKind,
    Steering as Steering,
)
from everstep.agent_domain.storage.comparison import (
    ComparedCall as ComparedCall,
    ComparedExecution as ComparedExecution,
    ComparedStep as ComparedStep,
    ComparedValue as ComparedValue,
    Comparison as Comparison,
    PlacedStep as PlacedStep,
)
from everstep.agent_domain.storage.contexts import (
    ContextCaller as ContextCaller,
    ContextPolicy as ContextPolicy,
    MessageContext as MessageContext,
)
from everstep.agent_domain.storage.execution_store import ExecutionStore as ExecutionStore
from everstep.agent_domain.storage.executions import (
    ExecutionRow as ExecutionRow,
    ExecutionSpec as ExecutionSpec,
    Page as Page,
)
from everstep.agent_domain.storage.ledger import LedgerEntry as LedgerEntry
from everstep.agent_domain.storage.recorded_executions import (
    RecordFilter as RecordFilter,
)
from everstep.agent_domain.storage.requests import (
    RequestKind as RequestKind,
    RequestRow as RequestRow,
    RequestState as RequestState,
    Resolution as Resolution,
)
from everstep.agent_domain.storage.sessions import (
    ContextForbidden as ContextForbidden,
    ExecutionFilter as ExecutionFilter,
    SessionStatus as SessionStatus,
)
from everstep.agent_domain.storage.steps import RetryWait as RetryWait, StepRow as StepRow
from everstep.agent_domain.storage.text_query import QueryTerm as QueryTerm, TextQuery as TextQuery
from everstep.agent_domain.storage.text_search import (
    Excerpt as Excerpt,
    HitKind as HitKind,
    HitLocation as HitLocation,
    SearchTooSlow as SearchTooSlow,
    TextHit as TextHit,
)
from everstep.agent_domain.stream.envelopes import Envelope as Envelope
from everstep.agent_domain.stream.reader import Place as Place, Position as Position
from everstep.agent_domain.stream.records import EventRecord as EventRecord, StoredEnvelope as StoredEnvelope
from everstep.agent_domain.stream.session_messages import (
    Announcement as Announcement,
    Context as Context,
    MessageRole as MessageRole,
)
from everstep.agent_domain.testing import (
    DeterministicAgentDriver as DeterministicAgentDriver,
    MockTool as MockTool,
    ScenarioStep as ScenarioStep,
    ScriptedModel as ScriptedModel,
    calls as calls,
    says as says,
)
from everstep.agent_domain.tools.cancellation import Cancellation as Cancellation
from everstep.agent_domain.tools.function_tool import (
    BaseTool as BaseTool,
    FunctionTool as FunctionTool,
    tool as tool,
)
from everstep.agent_domain.tools.inquiry import AskModel as AskModel, ModelChoice as ModelChoice
from everstep.agent_domain.tools.progress import Progress as Progress
from everstep.agent_domain.tools.resources import (
    Resource as Resource,
    Resources as Resources,
    resource as resource,
)
from everstep.agent_domain.tools.tools import (
    Effect as Effect,
    Tool as Tool,
    Toolbox as Toolbox,
    ToolCall as ToolCall,
    ToolContext as ToolContext,
    ToolExecution as ToolExecution,
    ToolLogger as ToolLogger,
    ToolOptions as ToolOptions,
    ToolResult as ToolResult,
)
from everstep.agent_domain.tools.toolsets import (
    Asker as Asker,
    ListedTool as ListedTool,
    Toolset as Toolset,
)
from everstep.agent_domain.values import (
    FrozenDict as FrozenDict,
    FrozenList as FrozenList,
)
from everstep.agent_domain.what_if.policy_change import PolicyChange as PolicyChange
from everstep.agent_domain.what_if.repeating import ChangedEnd as ChangedEnd, WhatIfResult as WhatIfResult
from everstep.agent_domain.what_if.report import WhatIfReport as WhatIfReport
from everstep.agent_domain.what_if.spending import Spending as Spending
from everstep.agents.agent_files import (
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
from everstep.client.structured_results import CompletedExecution as CompletedExecution
from everstep.client.sync import (
    SyncClient as SyncClient,
    SyncExecution as SyncExecution,
)
from everstep.client.what_if import WhatIf as WhatIf
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
from everstep.local.broadcast import (
    AgentEventEnvelopeAdapter as AgentEventEnvelopeAdapter,
)
from everstep.local.clock import (
    Clock as Clock,
    SystemClock as SystemClock,
)
from everstep.local.local_agent import (
    Agent as Agent,
)
from everstep.local.runner import (
    LocalRunner as LocalRunner,
)
from everstep.local.trace import (
    Trace as Trace,
)
from everstep.runtime.builder import (
    AgentBuilder as AgentBuilder,
)
from everstep.runtime.service_client import open_client as open_client
from everstep.steps.attachments import (
    Attachments as Attachments,
    FetchedFile as FetchedFile,
    FetchesFiles as FetchesFiles,
)
from everstep.steps.resource_lifetimes import open_resources as open_resources
from everstep.streams.client_events import (
    Happened as Happened,
    Reload as Reload,
    StreamRefused as StreamRefused,
    Wrote as Wrote,
)
from everstep.streams.gateway_client import Stream as Stream, stream as stream
from everstep.workflows.contracts import (
    ExecutionResult as ExecutionResult,
)
