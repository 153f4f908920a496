// Sizes: histories above 16 MiB, large arguments, long turns.

import assert from "node:assert/strict";
import { readFile } from "node:fs/promises";
import { join } from "node:path";
import { describe, test } from "node:test";
import { NEWEST, openChat } from "./chat-client.mjs";
import { assertSameHistory, checkedChunks, fixture } from "./chat-fixture.mjs";
import { scripted } from "./harness.mjs";

const running = fixture();

for (const version of NEWEST) {
  describe(version, { concurrency: false }, () => {
    test("a client that sends 20 MiB of history with a new message is answered", async () => {
      const chat = openChat(version, running.server);
      await chat.send(scripted("One.", [{ text: "one" }]));
      const bulk = { id: "bulk", role: "assistant", parts: [{ type: "text", text: "x".repeat(20 * 1024 * 1024), state: "done" }] };
      const kept = chat.messages;
      chat.messages = [...chat.messages, bulk];
      await chat.send(scripted("Two.", [{ text: "two" }]));
      assert.equal(chat.status, "ready", String(chat.error).slice(0, 300));
      chat.messages = [...kept, ...chat.messages.slice(-2)];
      await assertSameHistory(running.server, chat);
    });

    test("a 200 kB argument in four-byte pieces stays fluid in the client", async () => {
      const chat = openChat(version, running.server);
      const name = `large-${version}.txt`;
      let longest = 0;
      let last = performance.now();
      const watch = setInterval(() => { longest = Math.max(longest, performance.now() - last); last = performance.now(); }, 5);
      const begun = performance.now();
      await chat.send(scripted("Write.", [{ tool: "write", input: { path: name, content: "{{repeat:20000:0123456789}}" }, chunkBytes: 4 }], [{ text: "Done." }]));
      clearInterval(watch);
      assert.equal(await readFile(join(running.server.workspace, name), "utf8"), "0123456789".repeat(20_000));
      assert.ok(longest < 1_000, `the client's loop stood still for ${longest} ms`);
      assert.ok(performance.now() - begun < 20_000, `${performance.now() - begun} ms`);
      const deltas = (await checkedChunks(chat.posts()[0])).filter((chunk) => chunk.type === "tool-input-delta");
      assert.equal(deltas.map((chunk) => chunk.inputTextDelta).join("").length > 200_000, true);
      assert.ok(deltas.slice(0, -1).every((chunk) => Buffer.byteLength(chunk.inputTextDelta) >= 256));
      await assertSameHistory(running.server, chat);
    });

    test("a long text arrives whole at no more than 60 deltas a second", async () => {
      const chat = openChat(version, running.server);
      const begun = performance.now();
      await chat.send(scripted("Long.", [{ text: "{{repeat:4000:word }}", chunks: 4_000 }]));
      const deltas = (await checkedChunks(chat.posts()[0])).filter((chunk) => chunk.type === "text-delta");
      assert.equal(deltas.map((chunk) => chunk.delta).join(""), "word ".repeat(4_000));
      const seconds = (performance.now() - begun) / 1_000;
      assert.ok(deltas.length <= 60 * seconds + 2, `${deltas.length} deltas in ${seconds} s`);
      await assertSameHistory(running.server, chat);
    });
  });
}
