// A chat as `useChat` of Vercel's AI SDK holds it, without a page: prints the message, and decides about calls.
//
//   node chat.mjs http://127.0.0.1:8080/ai/travel-desk/chat "Book me a train to Bergen"
import process from "node:process";
import { Chat } from "@ai-sdk/react";
import { DefaultChatTransport } from "ai";

const [api, text] = process.argv.slice(2);
const headers = { Authorization: `Bearer ${process.env.TOKEN}` };
const chat = new Chat({ transport: new DefaultChatTransport({ api, headers }) });

await chat.sendMessage({ text });

// A person would answer here: this program takes the first choice, and approves.
for (;;) {
  const parts = chat.lastMessage.parts;
  const call = parts.find((part) => part.state === "approval-requested");
  const asked = parts.filter((part) => part.type === "data-question").map((part) => part.data);
  const open = parts.find((part) => part.state === "input-available" && part.type === "tool-user_input");
  const question = asked.find((each) => each.toolCallId === open?.toolCallId);
  if (call) {
    console.log(`${call.type} ${JSON.stringify(call.input)}: approved`);
    await chat.addToolApprovalResponse({ id: call.approval.id, approved: true });
  } else if (question) {
    const output = question.choices[0] ?? "yes";
    console.log(`${question.prompt} ${output}`);
    await chat.addToolOutput({ tool: "user_input", toolCallId: question.toolCallId, output });
  } else break;
  await chat.sendMessage();
}

for (const part of chat.lastMessage.parts) if (part.type === "text") console.log(part.text);
console.log(chat.error?.message ?? chat.lastMessage.metadata.because);
