import { connect } from "/everstep-client.js";

const find = (selector) => document.querySelector(selector);
const session = () => location.hash.slice(1);

/** Calls our own application. All attempts of a call have one key, so that it is carried out once. */
async function call(path, body) {
  const headers = { "Content-Type": "application/json", "Idempotency-Key": crypto.randomUUID() };
  const request = body ? { method: "POST", headers, body: JSON.stringify(body) } : {};
  let answer;
  for (let attempt = 1; !answer; attempt++) {
    try {
      answer = await fetch(path, request);
    } catch (error) {
      if (attempt === 3) throw error;
      await new Promise((resolve) => setTimeout(resolve, 1000 * attempt));
    }
  }
  if (!answer.ok) throw new Error((await answer.json()).detail);
  return answer.json();
}

addEventListener("unhandledrejection", ({ reason }) => (find("#error").textContent = reason.message));

/** The element with this id, made where there is none. */
function element(id, className, tag = "p") {
  const known = document.getElementById(id);
  return known ?? find("#story").appendChild(Object.assign(document.createElement(tag), { id, className }));
}

/** A card with a question and buttons; it closes when the answer is stored, also by another window. */
function card(id, text, choices) {
  const box = element(id, "card", "section");
  box.replaceChildren(Object.assign(document.createElement("p"), { textContent: text }));
  for (const [label, choose] of choices) {
    const onclick = async () => {
      box.inert = true; // A second click must not answer again.
      await choose().catch((error) => {
        box.inert = false;
        throw error;
      });
    };
    box.append(Object.assign(document.createElement("button"), { textContent: label, onclick }));
  }
}

const textOf = (execution, step) => element(`${execution} ${step}`, "text");

/** A stored event: each comes once, in order. */
function show({ type, execution_id, payload }) {
  const { request_id, tool_call_id, tool_name, args, args_digest, step_number, error, result_summary } = payload;
  switch (type) {
    case "message.received":
    case "input.received":
      element(payload.message_id, "user").textContent = payload.content;
      break;
    case "agent.step.started":
      textOf(execution_id, step_number);
      break;
    case "agent.step.completed":
      load(execution_id);
      break;
    case "agent.tool.completed":
      element(tool_call_id, "tool").textContent = `${tool_name}: ${error ?? result_summary}`;
      break;
    case "agent.input.requested": {
      const answer = (content) => () => call(`/sessions/${session()}/messages`, { content });
      const choices = payload.choices ?? [];
      card(request_id, payload.prompt, choices.map((choice) => [choice, answer(choice)]));
      break;
    }
    case "agent.approval.requested": {
      const path = `/executions/${execution_id}/approvals/${request_id}`;
      const decide = (decision) => () => call(path, { decision, args_digest });
      const text = `${tool_name} ${JSON.stringify(args)}`;
      card(request_id, text, [["Approve", decide("approve")], ["Deny", decide("deny")]]);
      break;
    }
    case "agent.input.received":
    case "agent.approval.resolved":
      document.getElementById(request_id)?.remove();
      break;
    case "agent.status":
      find("#story").dataset.status = payload.status;
      // The reason why it failed, or why a model call is delayed.
      find("#status").textContent = [payload.status, payload.error_message ?? payload.detail].filter(Boolean).join(": ");
  }
}

/** The stored text of finished steps. It wins over what was streamed. */
async function load(execution) {
  const { items } = await call(`/executions/${execution}/steps`);
  for (const { number, completed_at, messages } of items) {
    const said = messages.find(({ role }) => role === "assistant");
    if (completed_at && said) textOf(execution, number).textContent = said.content;
  }
}

const { url } = await call("/gateway");
const client = connect({
  url,
  token: async () => (await fetch("/token")).text(),
  onstate: (state) => (find("#state").textContent = state),
});

/** Watch the session from its beginning. */
function watch() {
  client.subscribe(`agent.session.${session()}`, {
    since: { seq: 0 },
    onevent: show,
    ontext: ({ execution_id, step_number, content }) => (textOf(execution_id, step_number).textContent = content),
    onreload: loadSession,
  });
}

/** The events are no longer kept, or a backup was restored: show the stored messages instead. */
async function loadSession() {
  find("#story").replaceChildren();
  const { items } = await call(`/sessions/${session()}/messages`);
  for (const { id, role, content, execution_id } of items.reverse()) {
    if (role === "user") element(id, "user").textContent = content;
    else if (execution_id) await load(execution_id);
  }
}

if (session()) watch();

find("form").onsubmit = async (event) => {
  event.preventDefault();
  const content = find("input").value;
  find("input").value = "";
  if (session()) return call(`/sessions/${session()}/messages`, { content });
  location.hash = (await call("/messages", { content })).session_id;
  watch();
};
