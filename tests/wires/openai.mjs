// Requests of the unmodified SDK of OpenAI.
import { createInterface } from "node:readline";
import { readFileSync, writeFileSync } from "node:fs";
import process from "node:process";
import { pathToFileURL } from "node:url";

const { argv, stdin, stdout } = process;
const { default: OpenAI } = await import(pathToFileURL(argv[2]));

const say = (kind, value = null, channel = null) => stdout.write(JSON.stringify({ kind, value, channel }) + "\n");
process.on("unhandledRejection", (error) => say("uncaught", String(error)));

const clients = {};

async function collect(stream) {
  const events = [];
  for await (const event of stream) events.push(event);
  return events;
}

const calls = {
  models: async (client) => (await client.models.list()).data,
  response: (client, body) => client.responses.create(body),
  async stream(client, body) {
    const stream = client.responses.stream(body);
    const events = await collect(stream);
    return { events, response: await stream.finalResponse() };
  },
  retrieve: (client, { id }) => client.responses.retrieve(id),
  rest: async (client, { id, after }) =>
    collect(await client.responses.retrieve(id, { stream: true, starting_after: after })),
  cancel: (client, { id }) => client.responses.cancel(id),
  chat: (client, body) => client.chat.completions.create(body),
  async chatStream(client, body) {
    const stream = client.chat.completions.stream(body);
    const chunks = await collect(stream);
    return { chunks, text: await stream.finalContent(), usage: (await stream.finalChatCompletion()).usage };
  },
};

const commands = {
  make({ name, ...config }) {
    clients[name] = new OpenAI({ maxRetries: 0, ...config });
  },
  async call({ name, method, body }) {
    try {
      say("done", { value: await calls[method](clients[name], body) }, name);
    } catch (error) {
      say("done", { error: { status: error.status, code: error.code, param: error.param, message: error.message } }, name);
    }
  },
  // Reads recorded streams, one after the other: `[body, ...]` in a file.
  async judge({ path }) {
    const verdicts = [];
    for (const body of JSON.parse(readFileSync(path))) {
      const headers = { "content-type": "text/event-stream" };
      const fetch = async () => new Response(body, { headers });
      const client = new OpenAI({ apiKey: "none", baseURL: "http://agents.test/v1", maxRetries: 0, fetch });
      try {
        const response = await client.responses.stream({ model: "clerk", input: "Go" }).finalResponse();
        verdicts.push({ error: null, response });
      } catch (error) {
        verdicts.push({ error: String(error) });
      }
    }
    writeFileSync(`${path}.verdicts`, JSON.stringify(verdicts));
    say("judged");
  },
};

createInterface({ input: stdin })
  .on("line", (line) => {
    const command = JSON.parse(line);
    Promise.resolve(commands[command.does](command)).catch((error) => say("refused", String(error)));
  })
  .on("close", () => process.exit(0));

say("ready");
