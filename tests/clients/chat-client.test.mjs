// The judge judged: a whole turn as the contract writes it is assembled equally by every client, passes every check,
// and each check finds the fault it is for.

import assert from "node:assert/strict";
import { readFileSync } from "node:fs";
import { createServer } from "node:http";
import { after, before, describe, test } from "node:test";
import { NEWEST, VERSIONS, chunks, comparable, frames, openChat, orderFaults, schemaFaults } from "./chat-client.mjs";

const sample = (name) => readFileSync(new URL(`samples/${name}`, import.meta.url), "utf8");
const lines = (name) => sample(name).trim().split("\n");
const body = (of) => `: stream-open\n\n${of.map((line, index) => `id: turn_1:${index + 1}\ndata: ${line}\n\n`).join("")}data: [DONE]\n\n`;

let http;
let answer;
const server = {};
before(async () => {
  http = createServer((request, response) => {
    request.resume();
    request.on("end", () => {
      response.writeHead(200, { "content-type": "text/event-stream" });
      response.end(answer);
    });
  });
  await new Promise((resolve) => http.listen(0, "127.0.0.1", resolve));
  server.url = `http://127.0.0.1:${http.address().port}`;
});
after(() => http.close());

for (const version of VERSIONS) {
  describe(version, { concurrency: false }, () => {
    test("assembles a whole turn as the contract says", async () => {
      answer = body(lines("turn.jsonl"));
      const chat = openChat(version, server);
      await chat.send("Run the tests and write the file.");
      assert.deepEqual([chat.status, chat.error], ["ready", undefined]);
      assert.deepEqual(comparable(chat.lastMessage), comparable(JSON.parse(sample("turn-message.json"))));
      assert.equal(chat.posts()[0].bytes, answer);
      assert.deepEqual(chat.wire.data.filter((part) => part.type === "data-status").length, 1);
    });

    test("assembles a stopped turn and does not send again", async () => {
      answer = body(lines("stopped-turn.jsonl"));
      const chat = openChat(version, server, { sendAutomaticallyWhen: ({ messages }) => messages.at(-1).parts.some((part) => part.type === "tool-bash" && part.providerExecuted !== true) });
      await chat.send("Sleep.");
      assert.equal(chat.lastMessage.metadata.status, "aborted");
      assert.deepEqual([chat.posts().length, chat.lastMessage.parts[1].errorText], [1, "Stopped by the user."]);
    });
  });
}

for (const version of NEWEST) {
  test(`${version}: a cut is seen as a lost connection with what had come`, async () => {
    answer = body(lines("turn.jsonl"));
    const chat = openChat(version, server);
    chat.wire.cutAfter = 8;
    await chat.send("Go.");
    assert.equal(chat.status, "error");
    assert.equal(frames(chat.posts()[0].bytes).length, 8);
    assert.equal(chat.lastMessage.parts.at(-1).text, "I run the tests ");
  });
}

describe("the checks", () => {
  const good = lines("turn.jsonl").map((line) => JSON.parse(line));
  const without = (index) => good.toSpliced(index, 1);
  const at = (type) => good.findIndex((chunk) => chunk.type === type);

  test("pass what is right", async () => {
    assert.deepEqual(chunks(body(lines("turn.jsonl"))), good);
    assert.deepEqual([orderFaults(good), await schemaFaults(good)], [[], []]);
  });

  test("find each broken order", () => {
    const last = (type) => good.findLastIndex((chunk) => chunk.type === type);
    for (const broken of [
      without(0), without(1), without(good.length - 1), without(last("finish-step")),
      without(at("text-start")), without(at("text-end")), without(at("reasoning-end")),
      without(at("tool-input-start")), without(at("tool-input-available")), without(last("tool-output-available")),
      good.toSpliced(last("tool-output-available") + 1, 0, good[last("tool-output-available")]),
      good.with(at("tool-input-start"), { ...good[at("tool-input-start")], providerExecuted: undefined }),
      [...good, good.at(-1)],
    ]) assert.notDeepEqual(orderFaults(broken), []);
  });

  test("find each chunk that a client refuses", async () => {
    for (const broken of [{ type: "abort", reason: 1 }, { type: "text-delta", id: "a" }, { type: "surprise" }, { type: "finish", finishReason: "stop", usage: {} }]) {
      assert.notDeepEqual(await schemaFaults([broken]), []);
    }
  });

  test("find each broken frame", () => {
    const whole = body(lines("turn.jsonl"));
    for (const broken of [
      whole.replace("data: [DONE]\n\n", ""), whole.replace("id: turn_1:3\n", ""), whole.replace("id: turn_1:3\n", "id: turn_1:1\n"),
      whole.replace("id: turn_1:3\n", "id: turn_2:3\n"), whole.replace("id: turn_1:3\n", "event: chunk\nid: turn_1:3\n"), `${whole}data: {}\n\n`,
    ]) assert.throws(() => chunks(broken));
  });
});
