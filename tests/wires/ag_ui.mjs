// Runs agents with the unmodified client of AG-UI: a command in each line of stdin, what happened in each of stdout.
import { readFileSync, writeFileSync } from "node:fs";
import { createInterface } from "node:readline";
import process from "node:process";
import { pathToFileURL } from "node:url";

const { argv, stdin, stdout } = process;
const { HttpAgent } = await import(pathToFileURL(argv[2]));
const { EverstepAgent } = await import(pathToFileURL(argv[3]));

const say = (kind, value = null, channel = null) => stdout.write(JSON.stringify({ kind, value, channel }) + "\n");
process.on("unhandledRejection", (error) => say("uncaught", String(error)));
// The client logs failures of runs; they are reported.
console.error = (...words) => say("logged", words.map(String).join(" "));
console.warn = (...words) => say("warned", words.map(String).join(" "));

const agents = {};

let busy = 0;

const commands = {
  make({ name, resumes, ...config }) {
    agents[name] = new (resumes ? EverstepAgent : HttpAgent)({ ...config });
    agents[name].subscribe({ onEvent: ({ event }) => say("event", event, name) });
  },
  add: ({ name, message }) => agents[name].addMessage(message),
  async run({ name, does, ...parameters }) {
    await finish(name, agents[name].runAgent(parameters));
  },
  async connect({ name }) {
    await finish(name, agents[name].connectAgent());
  },
  // Reads recorded streams, one after the other: `[{ messages, body }]` in a file.
  async judge({ path }) {
    const verdicts = [];
    for (const { messages, body } of JSON.parse(readFileSync(path))) {
      const headers = { "content-type": "text/event-stream" };
      const fetch = async () => new Response(body, { headers });
      const agent = new HttpAgent({ url: "http://agents.test", fetch, initialMessages: messages });
      const error = await agent.runAgent().then(() => null, String);
      verdicts.push({ error, messages: agent.messages, state: agent.state });
    }
    writeFileSync(`${path}.verdicts`, JSON.stringify(verdicts));
    say("judged");
  },
  abort: ({ name }) => agents[name].abortRun(),
  // How many commands run, except this one.
  running: () => say("running", busy - 1),
};

async function finish(name, running) {
  const agent = agents[name];
  let error = null;
  try {
    await running;
  } catch (failure) {
    error = String(failure);
  }
  const { messages, state, pendingInterrupts, lastEventId } = agent;
  say("done", { error, messages, state, pendingInterrupts, lastEventId }, name);
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
