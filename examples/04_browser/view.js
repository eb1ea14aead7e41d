// What both pages have in common: the HTTP API, and how an execution is shown. How news comes is up to each page.

const config = await (await fetch("/config.json")).json();
export const { gateway, token } = config;

/** What the HTTP API answers. */
export async function api(path, body) {
  const answer = await fetch(config.api + path, {
    method: body ? "POST" : "GET",
    headers: { Authorization: `Bearer ${token}`, "Content-Type": "application/json" },
    body: body && JSON.stringify(body),
  });
  if (!answer.ok) throw new Error(await answer.text());
  return answer.json();
}

const find = (selector) => document.querySelector(selector);
const session = () => location.hash.slice(1);
let positionOf;

/** Watch the session that the address names, or the one that the first message makes. `watch(session, since)` answers
 * with a function that says how far it has come. */
export function begin(watch) {
  const follow = (since) => {
    positionOf = watch(session(), since);
    find("nav .other").hash = location.hash;
    moved();
  };
  find("form").onsubmit = async (event) => {
    event.preventDefault();
    const body = { content: find("input").value };
    if (session()) return api(`/agent/sessions/${session()}/messages`, body);
    location.hash = (await api("/agent/messages", body)).session_id;
    follow({ seq: 0 });
  };
  if (session()) {
    // What is shown is kept together with its position. The text of a step under way is sent anew as a whole; of one
    // that is over by now the API has it. Where nothing is kept, all that ever happened in the session is sent.
    const kept = JSON.parse(sessionStorage.getItem(session()));
    if (kept) find("main").innerHTML = kept.shown;
    for (const { id } of document.querySelectorAll("article")) load(id);
    follow(kept?.position ?? { seq: 0 });
  }
  addEventListener("pagehide", () => {
    const kept = positionOf && { position: positionOf(), shown: find("main").innerHTML };
    if (kept) sessionStorage.setItem(session(), JSON.stringify(kept));
  });
}

/** The element with this id, made where there is none. */
function element(parent, tag, id, className = "") {
  const known = document.getElementById(id);
  return known ?? parent.appendChild(Object.assign(document.createElement(tag), { id, className }));
}

const articleOf = (execution) => element(find("#story"), "article", execution);
const textOf = (execution, step) => element(articleOf(execution), "p", `${execution} ${step}`, "text");
const tell = (message_id, content) => (element(find("#story"), "p", message_id, "user").textContent = content);

/** A stored envelope: each comes once, in order. */
export function show({ seq, type, execution_id, payload }) {
  element(find("#events"), "li", `seq ${seq}`, type).textContent = `${seq} ${type}`;
  const { tool_call_id, tool_name, args_summary, result_summary, error, step_number, status } = payload;
  const call = () => element(articleOf(execution_id), "p", tool_call_id, "tool");
  if (["message.received", "input.received"].includes(type)) tell(payload.message_id, payload.content);
  if (type === "agent.step.started") textOf(execution_id, step_number);
  if (type === "agent.step.completed") load(execution_id);
  if (type === "agent.tool.started") call().textContent = `${tool_name}(${args_summary}) …`;
  if (type === "agent.tool.completed") call().textContent = `${tool_name}: ${error ?? result_summary}`;
  if (type === "agent.status") articleOf(execution_id).dataset.status = status;
  moved();
}

/** All that the model has written of a step so far. */
export function write({ execution_id, step_number, content }) {
  textOf(execution_id, step_number).textContent = content;
  moved();
}

/** The texts of steps that are over, as they are stored. They win over what was streamed. */
async function load(execution) {
  try {
    const { items } = await api(`/agent/executions/${execution}/steps`);
    for (const { number, completed_at, messages } of items) {
      const said = messages.find(({ role }) => role === "assistant");
      if (completed_at && said) textOf(execution, number).textContent = said.content;
    }
  } catch {
    setTimeout(load, 2000, execution); // The API is away.
  }
}

/** What is shown is void: the history has changed, or envelopes are not kept for so long. */
export async function loadAnew() {
  find("#story").textContent = find("#events").textContent = "";
  const { items } = await api(`/agent/sessions/${session()}/messages?limit=200`);
  for (const { id, role, content, execution_id } of items.reverse()) {
    if (role === "user") tell(id, content);
    else if (!document.getElementById(execution_id)) load(articleOf(execution_id).id);
  }
}

/** Whether the page is connected. */
export function showState(state) {
  find("#state").className = find("#state").textContent = state;
}

function moved() {
  const { seq, epoch, drafts = [] } = positionOf();
  const history = epoch ? ` of the history ${epoch.slice(0, 8)}` : "";
  const text = drafts.map(({ step_number, next_index }) => `, and chunk ${next_index} of step ${step_number}`);
  find("#position").textContent = `envelope ${seq}${history}${text.join("")}`;
  for (const list of document.querySelectorAll("#story, #events")) list.scrollTop = list.scrollHeight;
}
