/** A session on one page: the thread, the minimap above it, the inspector beside it, and the composer below. */

import { get, patch, sentence } from "../api.js";
import { usd } from "../format.js";
import { useKeys } from "../keys.js";
import { html, useMemo, useRef, useState } from "../lib.js";
import { liveState } from "../live.js";
import { useLoad } from "../load.js";
import { failed } from "../notices.js";
import { Badge, Status } from "../parts/badge.js";
import { Composer } from "../parts/composer.js";
import { DraftInput } from "../parts/draft_input.js";
import { ForkDialog } from "../parts/fork_dialog.js";
import { Icon } from "../parts/icons.js";
import { Inspector } from "../parts/inspector.js";
import { Minimap } from "../parts/minimap.js";
import { Failure, Loading } from "../parts/page.js";
import { BLOCK, Thread } from "../parts/thread.js";
import { query, setQuery } from "../router.js";
import { rights } from "../sign_in.js";
import { useChanges, useStreamLog } from "../use_log.js";
import { usePlace } from "../use_place.js";

/** @typedef {import("../rows.js").Row} Row */

export const title = "Session";

const ENDS = new Set(["completed", "stopped", "failed", "cancelled"]);
const MOST_EXECUTIONS = 200;

/** @param {string} id @param {AbortSignal} signal */
async function readExecutions(id, signal) {
  const page = await get("agent/executions", { session_id: id, limit: MOST_EXECUTIONS }, signal);
  const waits = await Promise.all(
    page.items.filter((/** @type {any} */ each) => each.started_at).slice(0, 20).map((/** @type {any} */ each) =>
      get(`agent/executions/${each.id}/requests`, { status: "all", limit: 100 }, signal).then((found) => found.items)),
  );
  return { items: page.items, waits: waits.flat() };
}

/** @param {{params: {id: string}}} props */
export default function Session({ params: { id } }) {
  const log = useStreamLog("session", id);
  const version = useChanges(log);
  const session = useLoad((signal) => get(`agent/sessions/${id}`, {}, signal), [id], { fresh: version });
  const executions = useLoad((signal) => readExecutions(id, signal), [id], { fresh: version });
  const [selected, select] = useState(/** @type {Row | null} */ (null));
  const [isFull, setFull] = useState(false);
  const [forking, fork] = useState(/** @type {Row | null} */ (null));
  const handle = useRef(/** @type {import("../parts/block_list.js").BlockListHandle | null} */ (null));
  usePlace(log, handle, select);
  const hasInspector = query.value.get("inspect") !== "off" && (query.value.has("inspect") || innerWidth > 1100);
  const show = (/** @type {boolean} */ isShown) => setQuery({ inspect: isShown ? "on" : "off" });
  const all = executions.data?.items ?? [];
  const infos = useMemo(
    () => new Map(all.map((/** @type {any} */ each) => [each.id, { agent: each.agent, parent: each.parent_execution_id, isOver: ENDS.has(each.status) }])),
    [executions.data],
  );
  const running = all.find((/** @type {any} */ each) => !each.parent_execution_id && !ENDS.has(each.status));
  useKeys([
    { keys: "G", label: "Go to the end", run: () => handle.current?.toEnd() },
    { keys: "Home", label: "Go to the beginning", run: () => handle.current?.toBlock(Math.floor((log.first - 1) / BLOCK)) },
    { keys: "]", label: "Show or hide the inspector", run: () => show(!hasInspector) },
    { keys: "v", label: "Show all events, or fewer", run: () => setFull(!isFull) },
  ]);
  if (session.error) return html`<${Failure} error=${session.error} retry=${session.reload} />`;
  if (!session.data) return html`<${Loading} />`;
  const goTo = async (/** @type {number} */ at) => {
    const seq = await log.seqAt(at);
    handle.current?.toBlock(Math.floor((seq - 1) / BLOCK));
  };
  const latest = query.value.get("execution") ?? all.find((/** @type {any} */ each) => !each.parent_execution_id)?.id;
  const inspected = selected?.envelope.execution_id ?? latest;
  const step = selected?.kind === "step" ? selected.envelope.payload.step_number : undefined;
  const choose = (/** @type {Row} */ row) => {
    select(selected?.key === row.key ? null : row);
    if (!hasInspector) show(true);
  };
  return html`<div class=${hasInspector ? "session with-inspector" : "session"}>
    <div class="session-main">
      <${Head} session=${session.data} running=${running} reload=${session.reload} isFull=${isFull} setFull=${setFull} hasInspector=${hasInspector} show=${show} />
      <${Minimap} executions=${all} waits=${executions.data?.waits ?? []} goTo=${goTo} now=${Date.now()} />
      ${log.isLoading.value ? html`<${Loading} />` : html`<${Thread} log=${log} executions=${infos} selected=${selected?.key ?? null} select=${choose}
        fork=${rights.value.mayWrite ? fork : undefined} isFull=${isFull} label="Thread" handle=${handle} />`}
      ${rights.value.mayWrite &&
      html`<${Composer} session=${session.data} running=${running} mayCancel=${running && rights.value.mayCommand(running.user_id, "cancel")} sent=${() => handle.current?.toEnd()} />`}
    </div>
    ${hasInspector && inspected &&
    html`<aside class="session-side" aria-label="Inspector"><${Inspector} execution=${inspected} step=${step} envelope=${selected?.envelope} version=${version} events=${log.held()} close=${() => show(false)} /></aside>`}
    ${forking && html`<${ForkDialog} execution=${forking.envelope.execution_id} step=${forking.envelope.payload.step_number} close=${() => fork(null)} />`}
  </div>`;
}

/** @param {{session: any, running: any, reload: () => void, isFull: boolean, setFull: (isFull: boolean) => void, hasInspector: boolean, show: (isShown: boolean) => void}} props */
function Head({ session, running, reload, isFull, setFull, hasInspector, show }) {
  const [isEditing, edit] = useState(false);
  const rename = async (/** @type {string} */ next) => {
    edit(false);
    if (!next.trim() || next === session.title) return;
    try {
      await patch(`agent/sessions/${session.id}`, { title: next });
      reload();
    } catch (error) {
      failed(sentence(error));
    }
  };
  return html`<header class="session-head">
    ${isEditing
      ? html`<${DraftInput} aria-label="Title" autofocus value=${session.title ?? ""} commit=${rename} onBlur=${() => edit(false)}
          onKeyDown=${(/** @type {any} */ event) => (event.key === "Enter" ? event.currentTarget.blur() : event.key === "Escape" && edit(false))} />`
      : html`<h1 tabindex="-1" dir="auto">${session.title || "Untitled"}</h1>`}
    ${!isEditing && rights.value.mayWrite && html`<button class="ghost" onClick=${() => edit(true)}>Rename</button>`}
    <span class="fill"></span>
    ${running ? html`<${Status} status=${running.status} />` : html`<${Badge}>${session.status}<//>`}
    ${liveState.value === "connecting" && html`<${Badge} tone="warn">reconnecting<//>`}
    <span class="quiet">${session.agent ?? ""}</span>
    ${session.cost_usd !== null && html`<span class="quiet" title="What its executions cost">${usd(session.cost_usd)}</span>`}
    <button class="ghost" aria-pressed=${isFull} onClick=${() => setFull(!isFull)}>${isFull ? "Fewer events" : "All events"}</button>
    <button class="ghost" aria-pressed=${hasInspector} title="Inspector ( ] )" aria-label="Inspector" onClick=${() => show(!hasInspector)}><${Icon} name="panel" /></button>
  </header>`;
}
