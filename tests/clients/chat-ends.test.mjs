// Ends other than the usual one: model errors, retries, stop, a reader that leaves, a server that stops or dies.

import assert from "node:assert/strict";
import { readFile } from "node:fs/promises";
import { join } from "node:path";
import { describe, test } from "node:test";
import { NEWEST, VERSIONS, comparable, history, openChat, sdk } from "./chat-client.mjs";
import { assertSameHistory, checkedChunks, fixture } from "./chat-fixture.mjs";
import { scripted, until, within } from "./harness.mjs";

const running = fixture();
const texts = (message) => message.parts.filter((part) => part.type === "text").map((part) => part.text);

async function sleepers(mark) {
  const { readdir } = await import("node:fs/promises");
  const found = [];
  for (const pid of (await readdir("/proc")).filter((name) => /^\d+$/.test(name))) {
    // A process may end between the listing and the reading.
    const line = await readFile(`/proc/${pid}/cmdline`, "utf8").catch(() => "");
    if (line.includes(mark)) found.push(pid);
  }
  return found;
}

for (const version of VERSIONS) {
  describe(version, { concurrency: false }, () => {
    const open = (options) => openChat(version, running.server, options);
    const stop = (chat, body) => running.server.json(`/agent/chat/${chat.id}/stop`, { method: "POST", body: JSON.stringify(body ?? {}) });
    const shows = (chat, what, condition) => until(what, () => chat.lastMessage?.role === "assistant" && condition(chat.lastMessage));

    test("overload and rate limits before the first word are retried, and the answer comes once", async () => {
      const chat = open();
      await chat.send(scripted("Go.", [{ error: { status: 529, retryAfter: 0 } }, { error: { status: 429, retryAfter: 0 } }, { text: "Here." }]));
      assert.equal(chat.status, "ready", String(chat.error));
      assert.deepEqual(texts(chat.lastMessage), ["Here."]);
      await checkedChunks(chat.posts()[0]);
      await assertSameHistory(running.server, chat);
    });

    test("a model error after the first words ends the turn with `error`, keeps the words, and the session goes on", async () => {
      const chat = open();
      await chat.send(scripted("Go.", [{ text: "So far" }, { errorEvent: "overloaded_error" }]));
      assert.equal(chat.status, "error");
      const found = await checkedChunks(chat.posts()[0]).catch((error) => { throw error; });
      assert.equal(found.at(-1).type, "error");
      assert.deepEqual([chat.lastMessage.metadata.status, texts(chat.lastMessage)], ["error", ["So far"]]);
      assert.equal(typeof chat.lastMessage.metadata.error.code, "string");
      await assertSameHistory(running.server, chat);
      await chat.send(scripted("Again.", [{ text: "Now." }]));
      assert.deepEqual([chat.status, texts(chat.lastMessage)], ["ready", ["Now."]]);
      await assertSameHistory(running.server, chat);
    });

    test("a broken connection to the model in a tool call ends the turn with `error` and the session goes on", async () => {
      const chat = open();
      await chat.send(scripted("Go.", [{ text: "I run." }, { tool: "bash", input: { command: "echo never" }, chunkBytes: 4 }, { sleep: 200 }, { cut: true }]));
      assert.equal(chat.status, "error");
      await assertSameHistory(running.server, chat);
      await chat.send(scripted("Again.", [{ text: "Now." }]));
      assert.deepEqual([chat.status, texts(chat.lastMessage)], ["ready", ["Now."]]);
    });

    test("a refused request ends with `error` and no retry", async () => {
      const chat = open();
      const before = (await running.double.requests()).counters.requests;
      await chat.send(scripted("Go.", [{ error: { status: 400, times: 9, message: "this is not allowed" } }]));
      assert.equal(chat.status, "error");
      assert.equal((await running.double.requests()).counters.requests - before, 1);
      await assertSameHistory(running.server, chat);
    });

    test("stop ends a running command within a second, its process tree too, and both sides agree on what is left", async () => {
      const chat = open();
      const mark = `sleep 7${String(Date.now()).slice(-6)}`;
      const sending = chat.send(scripted("Run.", [{ text: "I wait." }, { tool: "bash", input: { command: `echo started; ${mark} & ${mark}` } }], [{ text: "never" }]));
      await until("the command runs", async () => (await sleepers(mark.split(" ")[1])).length >= 2);
      const begun = performance.now();
      const answer = await stop(chat, { turnId: chat.lastMessage.metadata.turnId });
      assert.ok(performance.now() - begun < 1_500, "stop answers soon");
      assert.ok([200, 204].includes(answer.status), String(answer.status));
      await sending;
      assert.deepEqual(await sleepers(mark.split(" ")[1]), []);
      const found = await checkedChunks(chat.posts()[0]);
      assert.deepEqual(found.slice(-3).map((chunk) => chunk.type), ["finish-step", "message-metadata", "abort"]);
      const tool = chat.lastMessage.parts.find((part) => part.type === "tool-bash");
      assert.deepEqual([tool.state, tool.errorText], ["output-error", "Stopped by the user."]);
      assert.deepEqual([chat.lastMessage.metadata.status, chat.lastMessage.metadata.reason], ["aborted", "user"]);
      assert.equal(chat.posts().length, 1);
      await assertSameHistory(running.server, chat);
      await chat.send(scripted("On.", [{ text: "On we go." }]));
      assert.deepEqual(texts(chat.lastMessage), ["On we go."]);
      await assertSameHistory(running.server, chat);
    });

    test("stop in mid-thought, in mid-text and in mid-argument leaves a history that goes on", async () => {
      for (const [action, shown] of [
        [{ thinking: "a b c d e f", chunks: 6, delayMs: 300 }, (part) => part.type === "reasoning" && part.text !== ""],
        [{ text: "a b c d e f", chunks: 6, delayMs: 300 }, (part) => part.type === "text" && part.text !== ""],
        [{ tool: "bash", input: { command: `echo ${"x".repeat(4_000)}` }, chunkBytes: 300, delayMs: 300 }, (part) => part.type === "tool-bash"],
      ]) {
        const chat = open({ transport: { body: { thinkingLevel: "low" } } });
        const sending = chat.send(scripted("Go.", [action, { text: "never" }]));
        await shows(chat, "the part", (message) => message.parts.some(shown));
        await stop(chat);
        await sending;
        assert.equal((await checkedChunks(chat.posts()[0])).at(-1).type, "abort");
        await assertSameHistory(running.server, chat);
        await chat.send(scripted("On.", [{ thinking: "ok" }, { text: "On we go." }]));
        assert.deepEqual([chat.status, texts(chat.lastMessage)], ["ready", ["On we go."]]);
      }
    });

    test("stopping when nothing runs is 204", async () => {
      const chat = open();
      await chat.send(scripted("Go.", [{ text: "x" }]));
      assert.equal((await stop(chat)).status, 204);
      assert.equal((await stop(chat, { turnId: "turn_other", extra: 1 })).status, 204);
    });

    test("a client that leaves changes nothing: the turn runs to its end", async () => {
      const chat = open();
      const sending = chat.send(scripted("Go.", [{ text: "a b c d e f g h", chunks: 8, delayMs: 50 }]));
      await shows(chat, "the first words", (message) => texts(message).join("") !== "");
      await chat.stop();
      await sending;
      const whole = await until("the turn's end", async () => (await history(running.server, chat.id)).find((message) => message.role === "assistant"));
      assert.deepEqual(texts(whole), ["a b c d e f g h"]);
      assert.equal(whole.metadata.status, undefined);
    });

    test("automatic re-send after a stopped turn with tools never runs the session again", async () => {
      const chat = open({ sendAutomaticallyWhen: sdk(version).lastAssistantMessageIsCompleteWithToolCalls });
      const sending = chat.send(scripted("Run.", [{ tool: "bash", input: { command: "echo a" } }, { tool: "bash", input: { command: "sleep 60" } }], [{ text: "never" }]));
      await shows(chat, "the first result", (message) => message.parts.some((part) => part.state === "output-available"));
      await stop(chat);
      await sending;
      await new Promise((resolve) => setTimeout(resolve, 100));
      assert.equal(chat.posts().filter((exchange) => exchange.status === 200).length, 1);
      await assertSameHistory(running.server, { id: chat.id, messages: chat.messages });
    });
  });
}

describe("the server stops", { concurrency: false }, () => {
  for (const [signal, reason] of [["SIGTERM", "shutdown"], ["SIGKILL", "crash"]]) {
    test(`by ${signal} in mid-turn: the turn is marked, nothing acknowledged is lost, and the session goes on`, async () => {
      const version = NEWEST.at(-1);
      const first = openChat(version, running.server);
      await first.send(scripted("One.", [{ tool: "bash", input: { command: "echo kept" } }], [{ text: "Kept." }]));
      const before = first.messages.map(comparable);
      const sending = first.send(scripted("Two.", [{ text: "I run." }, { tool: "bash", input: { command: "echo started; sleep 60" } }], [{ text: "never" }]));
      await until("the command", () => first.messages.length === 4 && first.lastMessage.parts.some((part) => part.type === "tool-bash" && part.state !== "input-streaming"));
      // Chunks reach the disk within 250 ms; a kill before that may lose them.
      const log = join(running.server.state, "turns", first.id, `${first.lastMessage.metadata.turnId}.log`);
      await until("the command on disk", async () => (await readFile(log, "utf8").catch(() => "")).includes("tool-input-available"));
      await running.server.restart(signal);
      await within(10_000, "the client's end", sending);
      const after = await history(running.server, first.id);
      assert.deepEqual(after.slice(0, 2), before);
      assert.equal(after.length, 4);
      assert.deepEqual([after[3].metadata.status, after[3].metadata.reason], ["aborted", reason]);
      assert.match(JSON.stringify(after[3].parts), /I run\./);
      const again = openChat(version, running.server, { id: first.id, messages: after });
      await again.send(scripted("Three.", [{ text: "And on." }]));
      assert.deepEqual([again.status, texts(again.lastMessage)], ["ready", ["And on."]]);
      await assertSameHistory(running.server, again);
    });
  }
});
