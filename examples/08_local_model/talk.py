"""Talks to the agents of `everstep up --model local` over HTTP, and prints the conversations.

python talk.py [TURNS]
"""

import json
import os
import sys
import time
from datetime import UTC, datetime, timedelta
from typing import Any

import httpx2
import jwt

API = os.environ.get("EVERSTEP_API_URL", "http://127.0.0.1:8080")
SECRET = os.environ["EVERSTEP_AUTH_SECRET"]
OPEN = {"pending", "running"}

# The smallest image: one white pixel.
PIXEL = bytes.fromhex(
    "89504e470d0a1a0a0000000d494844520000000100000001080200000090775"
    "3de0000000c4944415408d763f8ffff3f0005fe02fea735815a0000000049454e44ae426082"
)


class Person:
    """A user of the API."""

    def __init__(self, name: str, scope: str = "") -> None:
        claims = {"sub": name, "scope": scope, "exp": datetime.now(UTC) + timedelta(hours=2)}
        token = jwt.encode(claims, SECRET, "HS256")
        headers = {"Authorization": f"Bearer {token}"}
        self.name = name
        self.http = httpx2.Client(base_url=API, timeout=60, headers=headers)

    def call(self, method: str, path: str, body: object = None) -> Any:
        """Call the API; an error ends the program."""
        answer = self.http.request(method, path, json=body)
        if answer.is_error:
            raise SystemExit(f"{method} {path}: {answer.status_code} {answer.text}")
        return answer.json()

    def start(self, agent: str, content: str, **fields: object) -> str:
        """Start an execution and return its id."""
        say(f"{self.name:<7} {content}")
        body = {"agent": agent, "content": content, **fields}
        return self.call("POST", "/agent/executions", body)["id"]

    def wait(self, execution: str) -> dict[str, Any]:
        """Wait until the execution has ended or waits for a person."""
        while (row := self.call("GET", f"/agent/executions/{execution}"))["status"] in OPEN:
            time.sleep(0.3)
        return row

    def show(self, execution: str) -> dict[str, Any]:
        """Print what an execution does until it has ended or waits."""
        row = self.wait(execution)
        for step in self.call("GET", f"/agent/executions/{execution}/steps")["items"]:
            for call in step["calls"]:
                arguments = ", ".join(f"{name}: {value!r}" for name, value in call["args"].items())
                say(f"        {call['tool']}({arguments}) -> {call.get('result') or '(waits)'}")
        if row["status"] == "completed":
            say(f"model   {row['output']['response']}")
        else:
            say(f"        {row['status']} {row.get('error_message') or ''}".rstrip())
        return row


def say(text: str) -> None:
    """Print a line at once."""
    print(text, flush=True)


def title(text: str) -> None:
    """Print a heading."""
    say(f"\n## {text}\n")


def read_an_order(ann: Person) -> None:
    """The tool reads the caller's orders only."""
    title("A tool that reads only the caller's orders")
    ann.show(ann.start("order-desk", "What is in my order number 7?"))
    ann.show(ann.start("order-desk", "What is in my order number 8?"))


def approve_a_refund(ann: Person, chief: Person) -> None:
    """Another person approves."""
    title("A call that another person approves")
    execution = ann.start("refund-desk", "Please pay back my order number 7.")
    ann.show(execution)
    (request,) = ann.call("GET", f"/agent/executions/{execution}/requests")["items"]
    path = f"/agent/executions/{execution}/approvals/{request['id']}"
    decision = {"decision": "approve", "args_digest": request["args_digest"]}
    refused = ann.http.post(path, json=decision)
    say(f"ann     approves it: {refused.status_code} {refused.json()['detail']}")
    chief.call("POST", path, decision)
    say("chief   approves it")
    ann.show(execution)


def structured_result(ann: Person) -> None:
    """The result has the form of a schema."""
    title("A structured result")
    properties = {"name": {"type": "string"}, "city": {"type": "string"}, "age": {"type": "integer"}}
    schema = {"type": "object", "properties": properties, "required": ["name", "city", "age"]}
    row = ann.show(ann.start("friend", "Ada Berg is 36 and lives in Oslo. Extract the data.", output=schema))
    say(f"data    {json.dumps(row['output'].get('data'))}")


def refuse_an_image(ann: Person) -> None:
    """The model cannot see an image, and says so."""
    title("An image that the model cannot see")
    answer = ann.http.post(
        "/agent/attachments?name=photo.png", content=PIXEL, headers={"Content-Type": "image/png"}
    )
    say(f"ann     uploads photo.png: {answer.status_code}")
    question = "What do you see in the attached photo?"
    ann.show(ann.start("friend", question, attachments=[answer.json()["id"]]))


def raise_a_budget(ann: Person, chief: Person) -> None:
    """A budget pauses the execution until a person raises it."""
    title("A budget that pauses and is raised")
    budget = {"tokens": 100, "on_exhausted": "ask"}
    execution = ann.start("friend", "Name three fruits.", budget=budget)
    ann.show(execution)
    say(f"        {json.dumps(ann.call('GET', f'/agent/executions/{execution}')['budget'])}")
    refused = ann.http.post(f"/agent/executions/{execution}/budget", json={"tokens": 2000})
    say(f"ann     raises it to 2000 tokens: {refused.status_code} {refused.json()['detail']}")
    chief.call("POST", f"/agent/executions/{execution}/budget", {"tokens": 2000})
    say("chief   raises it to 2000 tokens")
    ann.show(execution)


FACTS = ("cat", "tree", "river", "train", "song", "cake", "star", "book", "shoe", "lamp")


def long_conversation(ann: Person, turns: int) -> None:
    """A conversation beyond the model's window."""
    title(f"A conversation of {turns} turns")
    session = None
    for number in range(1, turns + 1):
        word = FACTS[number % len(FACTS)]
        text = "My name is Ann." if number == 1 else f"Tell me a fact about a {word}."
        text = "What is my name?" if number == turns else text
        path = f"/agent/sessions/{session}/messages" if session else "/agent/messages"
        sent = ann.call("POST", path, {"content": text, **({} if session else {"agent": "old-friend"})})
        session = session or sent["session_id"]
        execution = sent["execution_id"]
        row = ann.wait(execution)
        if row["status"] != "completed":
            raise SystemExit(f"turn {number}: {row}")
        compactions = [
            each
            for step in ann.call("GET", f"/agent/executions/{execution}/steps")["items"]
            for each in step.get("compactions") or ()
        ]
        if number in {1, 2, turns - 1, turns} or compactions:
            say(f"{number:>3}  ann    {text}")
            say(f"     model  {row['output']['response']}")
        for each in compactions:
            say(f"     compacted: {json.dumps({name: each[name] for name in each if 'tokens' in name})}")
    count, cursor = 0, ""
    while cursor is not None:
        page = ann.call("GET", f"/agent/sessions/{session}/messages?limit=200{cursor}")
        count += sum(message["role"] == "user" for message in page["items"])
        cursor = f"&cursor={page['next_cursor']}" if page["next_cursor"] else None
    say(f"     The session has all {count} questions.")


def main() -> None:
    """Run all parts."""
    turns = int(sys.argv[1]) if len(sys.argv) > 1 else 60
    ann, chief = Person("ann"), Person("chief", "sessions:all approve")
    read_an_order(ann)
    approve_a_refund(ann, chief)
    structured_result(ann)
    refuse_an_image(ann)
    raise_a_budget(ann, chief)
    long_conversation(ann, turns)


if __name__ == "__main__":
    main()
