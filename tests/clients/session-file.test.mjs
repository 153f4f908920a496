// The pi coding agent's own reader on copies of session files that the server wrote: entries, tree, model context.

import assert from "node:assert/strict";
import { copyFile, mkdtemp, readFile, readdir, rm } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { after, afterEach, before, describe, test } from "node:test";
import { SessionManager, convertToLlm } from "@mariozechner/pi-coding-agent";
import { streamAnthropic } from "@mariozechner/pi-ai/anthropic";
import { openChat } from "./chat-client.mjs";
import { fixture } from "./chat-fixture.mjs";
import { scripted, startDouble, until, within } from "./harness.mjs";

const running = fixture();
let folder;
let piModel;
before(async () => {
  folder = await mkdtemp(join(tmpdir(), "agent-pi-"));
  // pi leaves it to the provider to join neighbouring messages of one role.
  piModel = await startDouble("--join-roles");
});
after(async () => {
  await piModel?.stop();
  await rm(folder, { recursive: true, force: true });
});
afterEach(async () => assert.deepEqual(await piModel.takeFailures(), [], "every request of pi was right"));

/** A copy of a session's file; pi may write into what it opens. */
async function copyOf(sessionId) {
  const sessions = join(running.server.state, "sessions");
  const names = (await readdir(sessions)).filter((name) => name.endsWith(".jsonl"));
  const name = names.find((candidate) => candidate.endsWith(`_${sessionId}.jsonl`));
  assert.ok(name, `no file of ${sessionId} in ${names}`);
  assert.match(name, /^\d{4}-\d{2}-\d{2}T\d{2}-\d{2}-\d{2}-\d{3}Z_/);
  await copyFile(join(sessions, name), join(folder, name));
  return join(folder, name);
}

function outline(messages) {
  return messages.map((message) => [
    message.role,
    typeof message.content === "string" ? "string" : message.content.map((block) => block.type).join(" "),
    message.stopReason ?? message.isError,
  ]);
}

/** Lets pi's own provider send its context to the model double, which checks it. */
async function continueWithPi(context, text) {
  const model = {
    id: "claude-scripted", name: "scripted", api: "anthropic-messages", provider: "anthropic", baseUrl: piModel.url,
    reasoning: true, input: ["text", "image"], cost: { input: 0, output: 0, cacheRead: 0, cacheWrite: 0 }, contextWindow: 200_000, maxTokens: 32_000,
  };
  const messages = [...convertToLlm(context.messages), { role: "user", content: scripted("Go on.", [{ text }]), timestamp: Date.now() }];
  const tools = ["bash", "write"].map((name) => ({ name, description: name, parameters: { type: "object", properties: {} } }));
  const stream = streamAnthropic(model, { systemPrompt: "You are pi.", messages, tools }, { apiKey: "scripted-key", maxRetries: 0 });
  return within(10_000, "pi's answer", stream.result());
}

describe("a session file", { concurrency: false }, () => {
  let chat;
  before(async () => {
    chat = openChat("ai-7", running.server, { transport: { body: { thinkingLevel: "low" } } });
    await chat.send(scripted(
      "Run and write.",
      [{ thinking: "Look first." }, { text: "I run." }, { tool: "bash", input: { command: "echo out; exit 2" } }, { tool: "write", input: { path: "pi.txt", content: "hi\n" } }],
      [{ thinking: "Good." }, { text: "Done." }],
    ));
    assert.equal(chat.status, "ready", String(chat.error));
  });

  test("opens unchanged, with every entry in one chain", async () => {
    const path = await copyOf(chat.id);
    const text = await readFile(path, "utf8");
    const lines = text.trimEnd().split("\n").map((line) => JSON.parse(line));
    assert.ok(Buffer.byteLength(text.split("\n")[0]) <= 511);
    const { type, version, id } = lines[0];
    assert.deepEqual({ type, version, id }, { type: "session", version: 3, id: chat.id });
    const session = SessionManager.open(path);
    assert.equal(await readFile(path, "utf8"), text);
    assert.equal(session.getSessionId(), chat.id);
    assert.deepEqual(session.getEntries(), lines.slice(1));
    assert.deepEqual(session.getBranch().map((entry) => entry.id), lines.slice(1).map((entry) => entry.id));
    assert.equal(session.getTree().length, 1);
    assert.equal(session.getLeafId(), lines.at(-1).id);
    for (const entry of lines.slice(1)) assert.match(entry.id, /^[0-9a-f]{8}$/);
  });

  test("gives pi the model context of the conversation, and pi's own provider goes on with it", async () => {
    const context = SessionManager.open(await copyOf(chat.id)).buildSessionContext();
    assert.deepEqual(outline(context.messages), [
      ["user", "text", undefined],
      ["assistant", "thinking text toolCall toolCall", "toolUse"],
      ["toolResult", "text", true],
      ["toolResult", "text", false],
      ["assistant", "thinking text", "stop"],
    ]);
    const [, assistant, failed] = context.messages;
    assert.equal(failed.toolCallId, assistant.content[2].id);
    assert.match(failed.content[0].text, /out/);
    const { provider, api, model, usage } = assistant;
    assert.deepEqual({ provider, api, model }, { provider: "anthropic", api: "anthropic-messages", model: "claude-scripted" });
    assert.equal(usage.totalTokens, usage.input + usage.output + usage.cacheRead + usage.cacheWrite);
    const answer = await continueWithPi(context, "Read and understood.");
    assert.equal(answer.errorMessage, undefined);
    assert.deepEqual(answer.content.filter((block) => block.type === "text").map((block) => block.text), ["Read and understood."]);
  });

  test("a fork opens in pi, names its parent, and holds the conversation up to the message", async () => {
    const { status, body } = await running.server.json(`/agent/sessions/${chat.id}/fork`, { method: "POST", body: "{}" });
    assert.equal(status, 201);
    const [path, parent] = [await copyOf(body.id), await copyOf(chat.id)];
    const header = JSON.parse((await readFile(path, "utf8")).split("\n")[0]);
    assert.equal(header.parentSession, parent.split("/").at(-1));
    const [fork, whole] = [SessionManager.open(path), SessionManager.open(parent)];
    assert.equal(fork.getHeader().parentSession, header.parentSession);
    assert.deepEqual(fork.buildSessionContext().messages, whole.buildSessionContext().messages);
    assert.equal(fork.getTree().length, 1);
    assert.equal((await continueWithPi(fork.buildSessionContext(), "On.")).errorMessage, undefined);
  });

  test("lists in pi with its first message", async () => {
    const path = await copyOf(chat.id);
    const [listed] = (await SessionManager.list(running.server.workspace, folder)).filter((session) => session.path === path);
    assert.match(listed.firstMessage, /^Run and write\./);
    assert.equal(listed.messageCount, 5);
  });

  test("a stopped tool call has its result, and pi goes on", async () => {
    const stopped = openChat("ai-7", running.server);
    const sending = stopped.send(scripted("Run.", [{ text: "I wait." }, { tool: "bash", input: { command: "sleep 60" } }]));
    await until("the command", () => stopped.lastMessage?.parts.some((part) => part.type === "tool-bash" && part.state === "input-available"));
    await running.server.json(`/agent/chat/${stopped.id}/stop`, { method: "POST", body: "{}" });
    await sending;
    const context = SessionManager.open(await copyOf(stopped.id)).buildSessionContext();
    assert.deepEqual(outline(context.messages), [["user", "text", undefined], ["assistant", "text toolCall", "toolUse"], ["toolResult", "text", true]]);
    assert.equal(context.messages[2].content[0].text, "Stopped by the user.");
    assert.equal((await continueWithPi(context, "On.")).errorMessage, undefined);
  });

  test("a message cut in mid-stream is aborted or an error, without orphans, and pi goes on", async () => {
    const cut = openChat("ai-7", running.server);
    await cut.send(scripted("Run.", [{ text: "I run." }, { tool: "bash", input: { command: "echo never" } }, { sleep: 200 }, { cut: true }]));
    const context = SessionManager.open(await copyOf(cut.id)).buildSessionContext();
    assert.equal(context.messages.at(-1).role, "assistant");
    assert.equal(context.messages.at(-1).stopReason, "error");
    assert.equal((await continueWithPi(context, "On.")).errorMessage, undefined);
  });

  test("regenerate and edit are branches, and pi stands where the server stands", async () => {
    const branching = openChat("ai-7", running.server);
    await branching.send(scripted("One.", [{ text: "first" }]));
    await within(10_000, "the turn", branching.regenerate());
    await within(10_000, "the turn", branching.sendMessage({ text: scripted("Edited.", [{ text: "edited" }]), messageId: branching.messages[0].id }));
    const session = SessionManager.open(await copyOf(branching.id));
    const context = session.buildSessionContext();
    assert.deepEqual(outline(context.messages), [["user", "text", undefined], ["assistant", "text", "stop"]]);
    assert.equal(context.messages[1].content[0].text, "edited");
    const messages = session.getEntries().filter((entry) => entry.type === "message");
    assert.deepEqual(messages.map((entry) => entry.message.role), ["user", "assistant", "assistant", "user", "assistant"]);
  });
});
