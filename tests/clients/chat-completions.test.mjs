// What matters of chats once more over the other wire: tools, reasoning, images, ends of every kind, resume, counts. The
// double refuses a conversation that is not put together as chat completions demand.

import assert from "node:assert/strict";
import { describe, test } from "node:test";
import { NEWEST, chunks, comparable, frames, history, openChat } from "./chat-client.mjs";
import { assertSameHistory, checkedChunks, fixture } from "./chat-fixture.mjs";
import { CHAT_COMPLETIONS, scripted, until, within } from "./harness.mjs";

const running = fixture({ env: { ...CHAT_COMPLETIONS, BORING_AGENT_MODEL_PRICES: "scripted-model=1/8/0.1" } });
const texts = (message) => message.parts.filter((part) => part.type === "text").map((part) => part.text);
const reasoning = (message) => message.parts.filter((part) => part.type === "reasoning").map((part) => part.text);
const thinking = { transport: { body: { thinkingLevel: "low" } } };
const lastBody = async () => running.double.body((await running.double.requests()).requests.at(-1).number);

for (const version of NEWEST) {
  describe(version, { concurrency: false }, () => {
    const open = (options) => openChat(version, running.server, { ...thinking, ...options });
    const stop = (chat) => running.server.json(`/agent/chat/${chat.id}/stop`, { method: "POST", body: "{}" });
    const shows = (chat, what, condition) => until(what, () => chat.lastMessage?.role === "assistant" && condition(chat.lastMessage), 30_000);

    test("a turn with reasoning, text and two tool calls, then another turn", async () => {
      const chat = open();
      await chat.send(scripted(
        "Look.",
        [{ thinking: "I look first." }, { text: "I look." }, { tool: "write", input: { path: "a.txt", content: "hi\n" }, chunkBytes: 8 }, { tool: "bash", input: { command: "echo one; echo two" }, chunkBytes: 8 }],
        [{ thinking: "Now I know." }, { text: "It says: {{lastToolResult}}" }],
      ));
      assert.deepEqual([chat.status, chat.error], ["ready", undefined]);
      assert.deepEqual(reasoning(chat.lastMessage), ["I look first.", "Now I know."]);
      assert.match(texts(chat.lastMessage)[1], /^It says: one\ntwo/);
      const found = await checkedChunks(chat.posts()[0]);
      assert.ok(found.filter((chunk) => chunk.type === "tool-input-delta").length >= 2);
      assert.equal(found.at(-1).finishReason, "stop");
      await assertSameHistory(running.server, chat);
      const body = await lastBody();
      assert.deepEqual(body.messages.slice(2).map((message) => [message.role, message.reasoning_content !== undefined]), [["assistant", true], ["tool", false], ["tool", false]]);
      await chat.send(scripted("And?", [{ text: "All done." }]));
      assert.deepEqual(texts(chat.lastMessage), ["All done."]);
      await assertSameHistory(running.server, chat);
    });

    test("counts and prices are those of the provider, the cache's part apart", async () => {
      const chat = open();
      await chat.send(scripted(`Count ${chat.id}.`, [{ text: "One two three." }]));
      await chat.send(scripted(`Again ${chat.id}.`, [{ text: "Four five." }]));
      const { requests } = await running.double.requests();
      const [first, second] = chat.messages.filter((message) => message.role === "assistant").map((message) => message.parts.find((part) => part.type === "data-usage").data);
      assert.equal(requests.at(-1).outcome, "finished");
      assert.deepEqual([first.outputTokens, second.outputTokens], [3, 2]);
      // The second call read the whole first prompt from the cache.
      assert.equal(second.cacheReadTokens, first.inputTokens + first.cacheReadTokens);
      for (const usage of [first, second]) {
        const cost = (usage.inputTokens + usage.outputTokens * 8 + usage.cacheReadTokens * 0.1) / 1e6;
        assert.ok(Math.abs(usage.costUsd - cost) < 1e-7, JSON.stringify(usage));
      }
      const { body } = await running.server.json(`/agent/sessions/${chat.id}`);
      assert.ok(Math.abs(body.usage.costUsd - first.costUsd - second.costUsd) < 1e-7, JSON.stringify(body.usage));
    });

    test("an image of the user and one that a tool read reach the model", async () => {
      const chat = open();
      const pixel = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg==";
      const url = `data:image/png;base64,${pixel}`;
      const text = scripted("See.", [{ tool: "bash", input: { command: `echo ${pixel} | base64 -d > p.png` } }], [{ tool: "read", input: { path: "p.png" } }], [{ text: "Two pixels." }]);
      await within(60_000, "the end of the turn", chat.sendMessage({ text, files: [{ type: "file", mediaType: "image/png", filename: "a.png", url }] }));
      assert.deepEqual([chat.status, texts(chat.lastMessage)], ["ready", ["Two pixels."]], String(chat.error));
      const images = (await lastBody()).messages.flatMap((message) => (Array.isArray(message.content) ? message.content : [])).filter((part) => part.type === "image_url");
      assert.deepEqual(images.map((part) => part.image_url.url), [url, url]);
      await assertSameHistory(running.server, chat);
    });

    test("overload and rate limits before the first word are retried, and the answer comes once", async () => {
      const chat = open();
      await chat.send(scripted("Go.", [{ error: { status: 529, retryAfter: 0 } }, { error: { status: 429, retryAfter: 0 } }, { text: "Here." }]));
      assert.deepEqual([chat.status, texts(chat.lastMessage)], ["ready", ["Here."]], String(chat.error));
      await checkedChunks(chat.posts()[0]);
    });

    for (const [name, script, kept] of [
      ["an error after the first words", [{ text: "So far" }, { errorEvent: "overloaded_error" }], ["So far"]],
      ["a broken connection in a tool call", [{ text: "I run." }, { tool: "bash", input: { command: "echo never" }, chunkBytes: 4 }, { sleep: 200 }, { cut: true }], ["I run."]],
      ["a refused request", [{ error: { status: 400, times: 9, message: "this is not allowed" } }], []],
    ]) {
      test(`${name} ends the turn with \`error\`, keeps what came, and the session goes on`, async () => {
        const chat = open();
        await chat.send(scripted("Go.", script));
        assert.equal(chat.status, "error");
        assert.equal(frames(chat.posts()[0].bytes).map(({ data }) => data).filter((data) => data.startsWith('{"type":"error"')).length, 1);
        assert.deepEqual([chat.lastMessage.metadata.status, texts(chat.lastMessage)], ["error", kept]);
        await assertSameHistory(running.server, chat);
        await chat.send(scripted("Again.", [{ thinking: "ok" }, { text: "Now." }]));
        assert.deepEqual([chat.status, texts(chat.lastMessage)], ["ready", ["Now."]]);
        await assertSameHistory(running.server, chat);
      });
    }

    test("arguments that are no JSON and an unknown tool become results that the model reads", async () => {
      const chat = open();
      await chat.send(scripted("Go.", [{ rawToolInput: "{\"command\": ", tool: "bash" }, { tool: "nosuch", input: {} }], [{ text: "Read: {{lastToolResult}}" }]));
      assert.match(texts(chat.lastMessage)[0], /^Read: There is no tool named nosuch/);
      await chat.send(scripted("On.", [{ text: "On we go." }]));
      assert.deepEqual([chat.status, texts(chat.lastMessage)], ["ready", ["On we go."]]);
      await assertSameHistory(running.server, chat);
    });

    test("stop in mid-thought, in mid-text, in mid-argument and in a command leaves a history that goes on", async () => {
      for (const [action, shown] of [
        [{ thinking: "a b c d e f", chunks: 6, delayMs: 300 }, (part) => part.type === "reasoning" && part.text !== ""],
        [{ text: "a b c d e f", chunks: 6, delayMs: 300 }, (part) => part.type === "text" && part.text !== ""],
        [{ tool: "bash", input: { command: `echo ${"x".repeat(4_000)}` }, chunkBytes: 300, delayMs: 300 }, (part) => part.type === "tool-bash"],
        [{ tool: "bash", input: { command: "sleep 60" } }, (part) => part.type === "tool-bash" && part.state === "input-available"],
      ]) {
        const chat = open();
        const sending = chat.send(scripted("Go.", [{ thinking: "Hm." }, action], [{ text: "never" }]));
        await shows(chat, "the part", (message) => message.parts.some(shown));
        await stop(chat);
        await sending;
        assert.equal((await checkedChunks(chat.posts()[0])).at(-1).type, "abort");
        await assertSameHistory(running.server, chat);
        await chat.send(scripted("On.", [{ thinking: "ok" }, { text: "On we go." }]));
        assert.deepEqual([chat.status, texts(chat.lastMessage)], ["ready", ["On we go."]], String(chat.error));
      }
    });

    test("a client cut in mid-turn resumes without loss", async () => {
      const chat = open();
      chat.wire.cutAfter = 6;
      await chat.send(scripted("Tell.", [{ thinking: "Two things.", chunks: 2, delayMs: 20 }, { text: "I run it.", chunks: 3, delayMs: 20 }, { tool: "bash", input: { command: "echo a" } }], [{ text: "All is written.", chunks: 4, delayMs: 20 }]));
      assert.equal(chat.status, "error");
      await until("the turn's end", async () => (await history(running.server, chat.id)).at(-1)?.role === "assistant", 30_000);
      const whole = await running.server.request(`/agent/chat/${chat.id}/stream?turn=${chat.lastMessage.metadata.turnId}`);
      assert.equal(chunks(await whole.text()).at(-1).type, "finish");
      chat.messages = await history(running.server, chat.id);
      assert.deepEqual(texts(chat.lastMessage), ["I run it.", "All is written."]);
      await chat.send(scripted("On.", [{ text: "On we go." }]));
      assert.deepEqual(chat.messages.map(comparable), await history(running.server, chat.id));
    });
  });
}

test("the end that the provider names is the one that clients see", async () => {
  for (const [word, reason] of [["length", "length"], ["content_filter", "content-filter"], ["stop", "stop"], ["eos", "other"]]) {
    const chat = openChat("ai-7", running.server);
    await chat.send(scripted("Go.", [{ text: "x" }, { stop: word }]));
    assert.equal((await checkedChunks(chat.posts()[0])).at(-1).finishReason, reason);
  }
});

test("a conversation longer than the model's window says so", async () => {
  const chat = openChat("ai-7", running.server);
  await chat.send("word ".repeat(200_001));
  assert.equal(chat.status, "error");
  assert.equal(chat.lastMessage.metadata.error.code, "context_too_long");
});

test("the models are those that are configured", async () => {
  const { body } = await running.server.json("/agent/models");
  assert.deepEqual(body, {
    models: [{ provider: "openai", id: "scripted-model", label: "scripted-model", available: true }],
    defaultModel: { provider: "openai", id: "scripted-model" },
  });
});

test("session files name the wire", async () => {
  const { readdir, readFile } = await import("node:fs/promises");
  const { join } = await import("node:path");
  const chat = openChat("ai-7", running.server, thinking);
  await chat.send(scripted("Go.", [{ thinking: "Hm." }, { text: "x" }]));
  const folder = join(running.server.state, "sessions");
  const [name] = (await readdir(folder)).filter((name) => name.endsWith(`${chat.id}.jsonl`));
  const lines = (await readFile(join(folder, name), "utf8")).trim().split("\n").map((line) => JSON.parse(line));
  const { message } = lines.find((line) => line.message?.role === "assistant");
  assert.deepEqual([message.api, message.provider, message.model], ["openai-completions", "openai", "scripted-model"]);
  assert.deepEqual(message.content[0], { type: "thinking", thinking: "Hm.", thinkingSignature: "reasoning_content" });
  assert.ok(message.usage.cost.total > 0);
});
