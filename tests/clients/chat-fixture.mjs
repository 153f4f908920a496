// One server and one scripted model for the tests of a file, and the check that the model saw no broken request.

import assert from "node:assert/strict";
import { after, afterEach, before } from "node:test";
import { chunks, comparable, history, orderFaults, schemaFaults } from "./chat-client.mjs";
import { startDouble, startServer } from "./harness.mjs";

/** Starts both before the tests of the file and stops them after; `server` and `double` are filled in by then. */
export function fixture({ doubleArgs = [], ...options } = {}) {
  const running = { server: undefined, double: undefined };
  before(async () => {
    running.double = await startDouble(...doubleArgs);
    try {
      running.server = await startServer(running.double.url, options);
    } catch (error) {
      await running.double.stop();
      throw error;
    }
  });
  after(async () => {
    await running.server?.remove();
    await running.double?.stop();
  });
  afterEach(async () => assert.deepEqual(await running.double.takeFailures(), [], "every request to the model was right"));
  return running;
}

/** The chunks of an exchange, after all rules of the stream were checked on them. */
export async function checkedChunks(exchange) {
  assert.equal(exchange.status, 200);
  const expected = {
    "content-type": "text/event-stream",
    "cache-control": "no-cache, no-transform",
    "x-accel-buffering": "no",
    "x-vercel-ai-ui-message-stream": "v1",
    "content-encoding": null,
  };
  const actual = Object.fromEntries(Object.keys(expected).map((name) => [name, exchange.headers.get(name)]));
  assert.deepEqual({ ...actual, "content-type": actual["content-type"]?.split(";")[0] }, expected);
  const found = chunks(exchange.bytes);
  assert.deepEqual(orderFaults(found), [], "the order of chunks");
  assert.deepEqual(await schemaFaults(found), [], "the SDKs' own schemas");
  assert.equal(found[0].messageMetadata.turnId, exchange.headers.get("x-turn-id"));
  return found;
}

/** The messages that the client holds are those that the server tells. */
export async function assertSameHistory(server, chat) {
  assert.deepEqual(chat.messages.map(comparable), await history(server, chat.id));
}
