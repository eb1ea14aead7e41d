// Chats with Vercel's AI SDK: `Chat` of @ai-sdk/react, which useChat holds, with the default transport.
import { createInterface } from "node:readline";
import { readFileSync, writeFileSync } from "node:fs";
import process from "node:process";
import { pathToFileURL } from "node:url";

const { argv, stdin, stdout } = process;
const { Chat } = await import(pathToFileURL(argv[2]));
const { DefaultChatTransport, lastAssistantMessageIsCompleteWithApprovalResponses } = await import(
  pathToFileURL(argv[3])
);

const say = (kind, value = null, channel = null) => stdout.write(JSON.stringify({ kind, value, channel }) + "\n");
process.on("unhandledRejection", (error) => say("uncaught", String(error)));
console.error = (...words) => say("logged", words.map(String).join(" "));

const chats = {};

let busy = 0;

const commands = {
  make({ name, id, messages, ...transport }) {
    chats[name] = new Chat({
      id,
      messages,
      transport: new DefaultChatTransport(transport),
      sendAutomaticallyWhen: lastAssistantMessageIsCompleteWithApprovalResponses,
      onData: (part) => say("data", part, name),
    });
  },
  send: ({ name, message, body }) => settle(name, chats[name].sendMessage(message, { body })),
  resume: ({ name }) => settle(name, chats[name].resumeStream()),
  regenerate: ({ name }) => settle(name, chats[name].regenerate()),
  // The decision sends the message by itself.
  decide: ({ name, ...decision }) => settle(name, chats[name].addToolApprovalResponse(decision)),
  async answer({ name, ...output }) {
    await chats[name].addToolOutput(output);
    await settle(name, chats[name].sendMessage());
  },
  stop: ({ name }) => chats[name].stop(),
  // Reads recorded streams, one after the other: `[body, ...]` in a file.
  async judge({ path }) {
    const verdicts = [];
    for (const body of JSON.parse(readFileSync(path))) {
      const headers = { "content-type": "text/event-stream" };
      const fetch = async () => new Response(body, { headers });
      const chat = new Chat({ transport: new DefaultChatTransport({ api: "http://agents.test", fetch }) });
      await chat.sendMessage({ text: "Go" });
      verdicts.push({ error: chat.error?.message ?? null, messages: chat.messages });
    }
    writeFileSync(`${path}.verdicts`, JSON.stringify(verdicts));
    say("judged");
  },
  // How many commands run, except this one.
  running: () => say("running", busy - 1),
};

async function settle(name, doing) {
  await doing;
  const chat = chats[name];
  while (chat.status === "submitted" || chat.status === "streaming") await new Promise((then) => setTimeout(then, 5));
  say("done", { error: chat.error?.message ?? null, status: chat.status, messages: chat.messages }, name);
}

createInterface({ input: stdin })
  .on("line", (line) => {
    const command = JSON.parse(line);
    busy += 1;
    Promise.resolve(commands[command.does](command))
      .catch((error) => say("refused", String(error)))
      .finally(() => (busy -= 1));
  })
  .on("close", () => process.exit(0));

say("ready");
