// A conversation over OpenAI's Responses API: prints the text while it is written, answers, and decides about calls.
//
//   node responses.mjs http://127.0.0.1:8080/v1 travel-desk "Book me a train to Bergen"
import process from "node:process";
import OpenAI from "openai";

const [baseURL, model, text] = process.argv.slice(2);
const client = new OpenAI({ baseURL, apiKey: process.env.TOKEN });

let request = { model, input: text };
for (;;) {
  const stream = client.responses.stream(request);
  stream.on("response.output_text.delta", ({ delta }) => process.stdout.write(delta));
  stream.on("response.output_text.done", () => console.log());
  const response = await stream.finalResponse();
  const { requests = [], because } = response.everstep;
  if (!requests.length) {
    console.log(because);
    break;
  }

  // A person would answer here: this program takes the first choice, and approves.
  const input = [];
  for (const item of response.output) {
    if (item.type !== "mcp_approval_request") continue;
    console.log(`${item.name} ${item.arguments}: approved`);
    input.push({ type: "mcp_approval_response", approval_request_id: item.id, approve: true });
  }
  for (const { kind, choices } of requests) {
    if (kind !== "question") continue;
    console.log(`> ${choices[0] ?? "yes"}`);
    input.push({ role: "user", content: choices[0] ?? "yes" });
  }
  request = { model, input, previous_response_id: response.id };
}
