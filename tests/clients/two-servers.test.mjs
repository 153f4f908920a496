// Two servers on one state directory: one writes a session at a time, both read it, and nothing is lost between them.

import assert from "node:assert/strict";
import { writeFile } from "node:fs/promises";
import { join } from "node:path";
import { after, test } from "node:test";
import { history, openChat } from "./chat-client.mjs";
import { fixture } from "./chat-fixture.mjs";
import { scripted, startServer, until } from "./harness.mjs";

const running = fixture();
/** A turn that goes on until a file is there. */
const waiting = (file) =>
  scripted("Wait.", [{ text: "I wait." }, { tool: "bash", input: { command: `until [ -e ${file} ]; do sleep 0.05; done` } }], [{ text: "Waited." }]);
let second;
after(() => second?.remove());

test("a session that one server writes is locked for the other, which may read it", async () => {
  second = await startServer(running.double.url, { env: { BORING_AGENT_STATE_DIR: running.server.state } });
  const chat = openChat("ai-7", running.server);
  const sending = chat.send(waiting("go-1"));
  await until("text", () => chat.lastMessage?.role === "assistant");
  const refused = await second.json("/agent/chat", { method: "POST", body: JSON.stringify({ id: chat.id, message: "me too" }) });
  assert.deepEqual([refused.status, refused.body.error.code], [423, "session_locked"]);
  await writeFile(join(running.server.workspace, "go-1"), "");
  await sending;
  assert.equal(chat.status, "ready", String(chat.error));
  assert.deepEqual(await history(second, chat.id), await history(running.server, chat.id));
  const { body } = await second.json("/agent/sessions");
  assert.ok(body.sessions.some(({ id }) => id === chat.id), "both list it");
});

test("what the first server leaves the second one goes on with", async () => {
  const id = crypto.randomUUID();
  const chat = openChat("ai-7", running.server, { id });
  const sending = chat.send(waiting("never"));
  await until("text", () => chat.lastMessage?.role === "assistant");
  await running.server.kill("SIGKILL");
  await sending;
  const next = openChat("ai-7", second, { id });
  await next.send(scripted("On.", [{ text: "on" }]));
  assert.equal(next.status, "ready", String(next.error));
  const messages = await history(second, id);
  assert.deepEqual(messages.map((message) => message.role), ["user", "assistant", "user", "assistant"]);
  assert.equal(messages[1].metadata.reason, "crash");
});
