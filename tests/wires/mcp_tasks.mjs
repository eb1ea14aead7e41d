// Calls `start` as a task, with the unmodified SDK and its tasks extension, in both generations of tasks.
// Arguments: the URL, the generation (v1 or v2), the message, and what is answered to a form, as JSON.
import { Client, StreamableHTTPClientTransport } from "@modelcontextprotocol/client";
import { createTaskSessionFromClient, toolDeclarationFromMcpTool } from "@modelcontextprotocol/ext-tasks/client";

const [url, generation, message, reply] = process.argv.slice(2);
const headers = { Authorization: `Bearer ${process.env.TOKEN}` };
const isModern = generation === "v2";
const version = "2026-07-28";
const clientInfo = { name: "judge", version: "1" };
const capabilities = { elicitation: { form: {} }, extensions: { "io.modelcontextprotocol/tasks": {} } };

const client = new Client(clientInfo, {
  capabilities: isModern ? capabilities : {},
  versionNegotiation: { mode: isModern ? "auto" : "legacy" },
});
await client.connect(new StreamableHTTPClientTransport(new URL(url), { requestInit: { headers } }));
const { tools } = await client.listTools();

let nextId = 1000;
/** The SDK's codecs do not know tasks of the extension, so a host sends their messages itself. */
const rawDispatch = async (request) => {
  const name = request.params.name ?? request.params.taskId;
  const response = await fetch(url, {
    method: "POST",
    headers: {
      ...headers,
      "Content-Type": "application/json",
      Accept: "application/json, text/event-stream",
      "MCP-Protocol-Version": version,
      "Mcp-Method": request.method,
      "Mcp-Name": name,
    },
    body: JSON.stringify({ jsonrpc: "2.0", id: nextId++, ...request }),
  });
  return await response.json();
};
const session = createTaskSessionFromClient(client, {
  endpointId: url,
  onInputRequest: async ({ params }) => {
    console.log(JSON.stringify({ asked: params.message, schema: params.requestedSchema }));
    return JSON.parse(reply ?? '{"action":"cancel"}');
  },
  ...(isModern
    ? { rawDispatch, v2RequestFraming: { protocolVersion: version, clientInfo, clientCapabilities: capabilities } }
    : {}),
});
const execution = await session.callTool(
  "start",
  { agent: "clerk", message },
  {
    task: { preference: "require" },
    declaration: toolDeclarationFromMcpTool(tools.find((tool) => tool.name === "start")),
  },
);
console.log(JSON.stringify({ kind: execution.kind, taskId: execution.handle?.taskId }));
if (process.env.CANCELS) await execution.cancel();
const { outcome } = await execution.settle();
console.log(JSON.stringify({ status: outcome.status, run: outcome.result?.structuredContent, error: outcome.error?.message }));
await session.close();
await client.close();
