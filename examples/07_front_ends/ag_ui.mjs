// An agent run with the client of AG-UI: prints what it writes, and answers what it asks.
//
//   node ag_ui.mjs http://127.0.0.1:8080/agui/travel-desk "Book me a train to Bergen"
import process from "node:process";
import { HttpAgent } from "@ag-ui/client";

const [url, content] = process.argv.slice(2);
const headers = { Authorization: `Bearer ${process.env.TOKEN}` };
const agent = new HttpAgent({ url, headers });

agent.subscribe({
  onTextMessageContentEvent: ({ event }) => process.stdout.write(event.delta),
  onTextMessageEndEvent: () => process.stdout.write("\n"),
  onToolCallEndEvent: ({ toolCallName, toolCallArgs }) => console.log(`${toolCallName} ${JSON.stringify(toolCallArgs)}`),
  onToolCallResultEvent: ({ event }) => console.log(`= ${event.content}`),
  onRunErrorEvent: ({ event }) => console.log(`failed: ${event.message}`),
  onRunFinishedEvent: ({ event }) => console.log(event.metadata.because),
});

agent.addMessage({ id: crypto.randomUUID(), role: "user", content });
await agent.runAgent();

// A person would answer here: this program takes the first choice, and approves.
while (agent.pendingInterrupts.length > 0) {
  const resume = agent.pendingInterrupts.map(({ id, reason, message, responseSchema }) => {
    const payload = reason === "tool_call" ? { approved: true } : (responseSchema.enum?.[0] ?? "yes");
    console.log(`${message} ${JSON.stringify(payload)}`);
    return { interruptId: id, status: "resolved", payload };
  });
  await agent.runAgent({ resume });
}
